package file

import (
	"os"
	"syscall"
	"unsafe"
)

var lockFileEx = syscall.NewLazyDLL("kernel32.dll").NewProc("LockFileEx")

const lockExclusive = 2 // LOCKFILE_EXCLUSIVE_LOCK

// lockFile waits for the exclusive lock of the file. It belongs to this opening
// of the file and ends when it is closed, also by the death of the process.
//
// Locks of Windows keep others from reading and writing what they cover, so it
// covers one byte far behind the end.
func lockFile(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := conn.Control(func(handle uintptr) {
		at := syscall.Overlapped{Offset: 0, OffsetHigh: 1 << 30}
		if ok, _, callErr := lockFileEx.Call(handle, lockExclusive, 0, 1, 0, uintptr(unsafe.Pointer(&at))); ok == 0 {
			err = os.NewSyscallError("LockFileEx", callErr)
		}
	})
	if err != nil {
		return err
	}
	return controlErr
}

// syncFolder does nothing: NTFS journals the names.
func syncFolder(string) error { return nil }
