//go:build unix

package bench

import (
	"syscall"
	"time"
)

// processTime is the processor time that this process has used.
func processTime() (time.Duration, bool) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), true
}
