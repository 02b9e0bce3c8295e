//go:build race

package conformance

// raceEnabled makes loads small: everything is several times slower.
const raceEnabled = true
