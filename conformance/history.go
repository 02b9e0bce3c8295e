package conformance

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
)

// fate is what became of the transaction that wrote a message.
type fate int

const (
	committed  fate = iota
	rolledBack      // or refused before anything was written
	inDoubt         // the commit's outcome is not known: the message may exist or not
)

// written is a message as its producer knows it.
type written struct {
	id       uuid.UUID
	key      string
	keyed    bool
	revision int64 // the place among the messages of its key, from 1
	sum      [sha256.Size]byte
	fate     fate
}

// accepted is a publish that the broker accepted.
type accepted struct {
	id       uuid.UUID
	key      string
	keyed    bool
	revision int64
	sum      [sha256.Size]byte
	replay   int
	relay    string
	lane     int
	epoch    int64
	attempt  int
}

// findings are what the history says about the promises. Each entry is one
// sentence that names the message.
type findings struct {
	// lost were committed and never accepted.
	lost []string
	// unexpected were accepted and never committed.
	unexpected []string
	// duplicated were accepted more often than a fault explains.
	duplicated []string
	// disordered are first publishes that came before one of an earlier
	// revision of their key.
	disordered []string
	// altered were accepted with other content than was written.
	altered []string
	// recovered are messages in doubt that were delivered; explained counts
	// duplicates that a fault explains. Both are allowed.
	recovered, explained int
}

// broken lists what breaks a promise.
func (f findings) broken() []string {
	var all []string
	for _, g := range []struct {
		name string
		list []string
	}{
		{"lost", f.lost},
		{"unexpected", f.unexpected},
		{"duplicated", f.duplicated},
		{"out of order", f.disordered},
		{"altered", f.altered},
	} {
		if len(g.list) > 0 {
			const most = 3
			text := strings.Join(g.list[:min(most, len(g.list))], "; ")
			if len(g.list) > most {
				text += "; …"
			}
			all = append(all, fmt.Sprintf("%d %s: %s", len(g.list), g.name, text))
		}
	}
	return all
}

// judge compares what was written with what was accepted, in the order of
// acceptance. may says how many duplicates of an id the faults explain.
func judge(wrote []written, took []accepted, may map[uuid.UUID]int) findings {
	var f findings
	byID := make(map[uuid.UUID]*written, len(wrote))
	for i := range wrote {
		byID[wrote[i].id] = &wrote[i]
	}
	type publish struct {
		id     uuid.UUID
		replay int
	}
	times := make(map[publish]int, len(took))
	seen := make(map[uuid.UUID]bool, len(took))
	latest := make(map[string]*written) // by key, of the first publishes so far
	for i := range took {
		a := &took[i]
		w := byID[a.id]
		if w == nil || w.fate == rolledBack {
			why := "was never enqueued"
			if w != nil {
				why = "was rolled back"
			}
			f.unexpected = append(f.unexpected, fmt.Sprintf("%v %s and was published by %s", a.id, why, a.relay))
			continue
		}
		if a.sum != w.sum {
			f.altered = append(f.altered, fmt.Sprintf("%s is not what was enqueued", w))
		}
		times[publish{a.id, a.replay}]++
		if seen[a.id] {
			continue
		}
		seen[a.id] = true
		if w.fate == inDoubt {
			f.recovered++
		}
		if !w.keyed {
			continue
		}
		if before := latest[w.key]; before != nil && before.revision > w.revision {
			f.disordered = append(f.disordered, fmt.Sprintf("%s came after revision %d (relay %s, lane %d, epoch %d)", w, before.revision, a.relay, a.lane, a.epoch))
			continue
		}
		latest[w.key] = w
	}
	repeated := make(map[uuid.UUID]int) // beyond the first, all replays together
	for p, n := range times {
		if n > 1 {
			repeated[p.id] += n - 1
		}
	}
	for id, n := range repeated {
		if extra := n - may[id]; extra > 0 {
			f.duplicated = append(f.duplicated, fmt.Sprintf("%s was repeated %d times, %d more than faults explain", byID[id], n, extra))
		} else {
			f.explained += n
		}
	}
	slices.Sort(f.duplicated)
	for i := range wrote {
		if w := &wrote[i]; w.fate == committed && !seen[w.id] {
			f.lost = append(f.lost, w.String()+" was committed and never published")
		}
	}
	return f
}

// String names the message for people.
func (w *written) String() string {
	if !w.keyed {
		return w.id.String()
	}
	return fmt.Sprintf("%v (key %.40q, revision %d)", w.id, w.key, w.revision)
}

// sumOf is a digest of everything that must be the same at every attempt.
func sumOf(m *outbox.Message) [sha256.Size]byte {
	h := sha256.New()
	add := func(s string) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	h.Write(m.ID[:])
	add(m.Topic)
	add(m.Key)
	add(fmt.Sprint(m.HasKey(), m.Revision, m.Payload == nil))
	add(m.Type)
	add(cmp.Or(m.ContentType, "application/json"))
	add(string(m.Payload))
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		add(name)
		add(m.Headers[name])
	}
	return [sha256.Size]byte(h.Sum(nil))
}
