//go:build !windows && (!unix || solaris || illumos || aix)

package file

import (
	"errors"
	"fmt"
	"os"
)

// lockFile refuses: without a lock relays would write into each other's lines.
func lockFile(*os.File) error {
	return fmt.Errorf("lock the file: %w on this operating system: write to a stream instead", errors.ErrUnsupported)
}

func syncFolder(string) error { return nil }
