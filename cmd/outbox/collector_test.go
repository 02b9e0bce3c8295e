package main

import (
	"math"
	"runtime/debug"
	"testing"
)

func TestTuneCollector(t *testing.T) {
	percent, limit := debug.SetGCPercent(100), debug.SetMemoryLimit(math.MaxInt64)
	defer func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	}()
	for _, tt := range []struct {
		name    string
		env     map[string]string
		workers int
		bytes   int64
		percent int
		limit   int64
	}{
		{"the defaults", nil, 0, 0, 400, 448 << 20},
		{"as the flags say", nil, 2, 1 << 20, 400, 76 << 20},
		{"a limit of one's own", map[string]string{"GOMEMLIMIT": "1GiB"}, 0, 0, 400, math.MaxInt64},
		{"a growth of one's own", map[string]string{"GOGC": "50"}, 0, 0, 100, math.MaxInt64},
	} {
		t.Run(tt.name, func(t *testing.T) {
			restore := tuneCollector(func(name string) string { return tt.env[name] }, tt.workers, tt.bytes)
			if got := debug.SetGCPercent(100); got != tt.percent {
				t.Errorf("the heap may grow by %d%%, want %d", got, tt.percent)
			}
			if got := debug.SetMemoryLimit(-1); got != tt.limit {
				t.Errorf("the limit is %d bytes, want %d", got, tt.limit)
			}
			restore()
			if percent, limit := debug.SetGCPercent(100), debug.SetMemoryLimit(-1); percent != 100 || limit != math.MaxInt64 {
				t.Errorf("afterwards it is %d%% and %d bytes, as if it stayed", percent, limit)
			}
		})
	}
}
