package bench

import (
	"math"
	"slices"
)

// Figure is what several rounds gave.
type Figure struct {
	Median float64 `json:"median"`
	// Low and High are the smallest and the largest.
	Low  float64 `json:"low"`
	High float64 `json:"high"`
	// Rounds is how many there were.
	Rounds int `json:"rounds"`
}

// figure sums samples up. There is at least one.
func figure(samples []float64) Figure {
	return Figure{Median: percentile(samples, 50), Low: slices.Min(samples), High: slices.Max(samples), Rounds: len(samples)}
}

// ratios divides round by round: what disturbs the machine disturbs both sides of a
// round. Rounds whose baseline is 0 are left out.
func ratios(ours, base []float64) []float64 {
	var r []float64
	for i := range min(len(ours), len(base)) {
		if base[i] != 0 {
			r = append(r, ours[i]/base[i])
		}
	}
	return r
}

// percentile is the value below which p percent of the samples are, between two of
// them where need be.
func percentile(samples []float64, p float64) float64 {
	if len(samples) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(samples))
	at := p / 100 * float64(len(sorted)-1)
	low := int(math.Floor(at))
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}
