//go:build unix && !solaris && !illumos && !aix

package file

import (
	"errors"
	"os"
	"syscall"
)

// lockFile waits for the exclusive lock of the file. It belongs to this opening
// of the file and ends when it is closed, also by the death of the process.
func lockFile(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := conn.Control(func(fd uintptr) {
		for {
			err = syscall.Flock(int(fd), syscall.LOCK_EX)
			if !errors.Is(err, syscall.EINTR) {
				return
			}
		}
	})
	if err != nil {
		return os.NewSyscallError("flock", err)
	}
	return controlErr
}

// syncFolder puts the names in a folder on disk.
func syncFolder(path string) error {
	d, err := os.Open(path) //nolint:gosec // the folder of the file the user named
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
