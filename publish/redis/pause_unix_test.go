//go:build unix

package redis_test

import (
	"context"
	"syscall"
)

// pause returns when the process has stopped; a signal alone takes its time.
func (b *broker) pause(context.Context) error {
	if err := b.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		_, err := syscall.Wait4(b.cmd.Process.Pid, new(syscall.WaitStatus), syscall.WUNTRACED, nil)
		if err != syscall.EINTR {
			return err
		}
	}
}

func (b *broker) resume(context.Context) error { return b.cmd.Process.Signal(syscall.SIGCONT) }
