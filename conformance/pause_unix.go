//go:build unix

package conformance

import "syscall"

// canPause tells whether a process can be stopped and made to go on.
const canPause = true

const (
	pauseSignal   = syscall.SIGSTOP
	proceedSignal = syscall.SIGCONT
)
