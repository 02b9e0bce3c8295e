package main

import (
	"cmp"
	"runtime/debug"
)

// What the collector may let pile up: a heap of five times what is in use, because a
// relay that drains makes garbage all the time and has little in use.
const heapGrowth = 400 // percent

// tuneCollector has garbage collected less often while relays run here, and returns what
// sets it back. Batches so large that the heap would be hundreds of megabytes are another
// matter: the limit is what relays need whose workers all have the largest batch, as it
// was read, as the publisher encodes it and again as garbage. What GOGC and GOMEMLIMIT say
// stays.
func tuneCollector(getenv func(string) string, workers int, batchBytes int64) (restore func()) {
	if getenv("GOGC") != "" {
		return func() {}
	}
	percent := debug.SetGCPercent(heapGrowth)
	limit := debug.SetMemoryLimit(-1) // which only asks
	if getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(64<<20 + 6*int64(cmp.Or(workers, 4))*cmp.Or(batchBytes, 16<<20))
	}
	return func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	}
}
