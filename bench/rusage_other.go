//go:build !unix

package bench

import "time"

// processTime tells nothing here.
func processTime() (time.Duration, bool) { return 0, false }
