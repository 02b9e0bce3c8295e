//go:build unix

package webhook_test

import (
	"context"
	"syscall"
)

// pause returns when the process has stopped; a signal alone takes its time.
func (e *endpoint) pause(context.Context) error {
	if err := e.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		_, err := syscall.Wait4(e.cmd.Process.Pid, new(syscall.WaitStatus), syscall.WUNTRACED, nil)
		if err != syscall.EINTR {
			return err
		}
	}
}

func (e *endpoint) resume(context.Context) error { return e.cmd.Process.Signal(syscall.SIGCONT) }
