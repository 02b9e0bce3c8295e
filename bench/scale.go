package bench

import (
	"fmt"
	"slices"
	"time"
)

// Scale is how much is done for each figure.
type Scale struct {
	// Name is quick, full or tiny.
	Name string

	drain    int           // messages of a drain in large batches
	single   int           // and in batches of 1
	round    time.Duration // of transactions, all sides together
	turns    int           // of the sides, at least
	slice    int           // transactions of each of several writers before it is the next side's turn
	sizes    []int
	done     []int
	polls    time.Duration
	rates    []int
	paced    time.Duration
	slow     int // messages that take a millisecond each to publish
	slower   int // and those that take longer
	serial   int // and as many one after the other
	held     int
	snapshot int
	memory   int
	idle     time.Duration
	least    int // a round of more messages is taken at most fewRounds times
}

const fewRounds = 3

// Scales are the scales there are. Tiny only tries that everything works: its
// figures mean nothing.
func Scales() []Scale {
	return []Scale{
		{
			Name: "quick", drain: 100_000, single: 500, round: 6 * time.Second, turns: 10, slice: 20,
			sizes: []int{10_000, 100_000, 1_000_000}, done: []int{500_000}, polls: time.Second,
			rates: []int{100, 500, 2000}, paced: 2 * time.Second,
			slow: 20_000, slower: 20_000, serial: 500, held: 10_000, snapshot: 50_000, memory: 100_000, idle: 5 * time.Second, least: 500_000,
		},
		{
			Name: "full", drain: 200_000, single: 3000, round: 15 * time.Second, turns: 20, slice: 20,
			sizes: []int{10_000, 100_000, 1_000_000, 5_000_000}, done: []int{500_000, 5_000_000}, polls: 3 * time.Second,
			rates: []int{100, 500, 2000}, paced: 5 * time.Second,
			slow: 60_000, slower: 40_000, serial: 1000, held: 100_000, snapshot: 200_000, memory: 1_000_000, idle: time.Minute, least: 500_000,
		},
		{
			Name: "tiny", drain: 60, single: 20, round: 10 * time.Millisecond, turns: 2, slice: 2,
			sizes: []int{40, 80}, done: []int{60}, polls: 50 * time.Millisecond,
			rates: []int{100}, paced: 200 * time.Millisecond,
			slow: 60, slower: 60, serial: 10, held: 30, snapshot: 40, memory: 100, idle: 100 * time.Millisecond, least: 1000,
		},
	}
}

// ScaleNamed returns the scale of that name.
func ScaleNamed(name string) (Scale, error) {
	all := Scales()
	if i := slices.IndexFunc(all, func(s Scale) bool { return s.Name == name }); i >= 0 {
		return all[i], nil
	}
	return Scale{}, fmt.Errorf("scale %q is unknown: use quick, full or tiny", name)
}

// batch is how many messages a drain in batches of size moves; they are fewer where
// batches are small or payloads large, so that it takes about as long.
func (s Scale) batch(size, payload int) int {
	n := s.drain
	switch {
	case size < 10:
		n = s.single
	case size < 100:
		n = s.drain / 10
	case size < 1000:
		n = s.drain / 2
	}
	if payload > 1024 && size >= 10 {
		n /= 5
	}
	return max(n, 1)
}
