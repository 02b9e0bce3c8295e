package tail

import (
	"encoding/binary"
	"testing"
)

// part is a piece of the log in the stream, at a position.
func part(at uint64, content string) []byte {
	data := append([]byte{'w'}, make([]byte, 24)...)
	binary.BigEndian.PutUint64(data[1:], at)
	return append(data, content...)
}

// alive is a sign of life.
func alive(at uint64, answer byte) []byte {
	data := append([]byte{'k'}, make([]byte, 17)...)
	binary.BigEndian.PutUint64(data[1:], at)
	data[17] = answer
	return data
}

func TestReader(t *testing.T) {
	var r reader
	for i, step := range []struct {
		data          []byte
		woken, answer bool
		read          uint64
	}{
		{part(10, "B"), false, false, 10},
		{part(11, "R"), false, false, 11},
		{part(12, "I"), false, false, 12},
		{part(13, "I"), false, false, 13},
		{alive(14, 1), false, true, 14},
		{part(15, "C"), true, false, 15},
		{part(16, "B"), false, false, 16}, // before PostgreSQL 15: of other tables
		{part(17, "C"), false, false, 17},
		{alive(30, 0), false, false, 30},
		{alive(20, 0), false, false, 30}, // never back
		{part(31, ""), false, false, 31},
		{[]byte("?unknown"), false, false, 31},
	} {
		woken, answer, err := r.take(step.data)
		if err != nil || woken != step.woken || answer != step.answer || r.read.Load() != step.read {
			t.Errorf("step %d: woken %v, answer %v, read up to %d, %v; want %+v", i, woken, answer, r.read.Load(), err, step)
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add(part(1, "I"))
	f.Add(alive(1, 1))
	f.Add([]byte("w"))
	f.Add([]byte{})
	f.Fuzz(func(_ *testing.T, data []byte) {
		var r reader
		_, _, _ = r.take(data) // does not panic
	})
}
