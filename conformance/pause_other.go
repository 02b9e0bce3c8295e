//go:build !unix

package conformance

import "os"

// canPause tells whether a process can be stopped and made to go on.
const canPause = false

var pauseSignal, proceedSignal = os.Interrupt, os.Interrupt
