package sqlite_test

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// TestRandomHistories plays a relay and an operator at random and checks after every
// step that each message stands in one place, that no held row is without a head,
// and that nothing is published before an older message of its key that still waits.
// OUTBOX_SEED repeats a history.
func TestRandomHistories(t *testing.T) {
	seed := rand.Uint64()
	if text := os.Getenv("OUTBOX_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(2) {
		seed := seed + i
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			m := model{env: fresh(t, 2), r: rand.New(rand.NewPCG(seed, 0))}
			for range 100 {
				m.step()
				if t.Failed() {
					return
				}
			}
		})
	}
}

type model struct {
	*env
	r        *rand.Rand
	inserted int
}

func (m *model) step() {
	m.Helper()
	switch m.r.IntN(10) {
	case 0, 1, 2:
		m.insertSome()
	case 3:
		m.due()
	case 4, 5:
		m.operate()
	default:
		m.turn(m.r.IntN(2))
	}
	m.invariants()
	m.conserved()
}

func (m *model) insertSome() {
	var messages []dialect.Message
	for range m.r.IntN(8) {
		key := ""
		if n := m.r.IntN(5); n > 0 {
			key = fmt.Sprint("k", n)
		}
		message := m.message(key)
		if m.r.IntN(6) == 0 {
			message.Delay = time.Hour
		}
		messages = append(messages, message)
	}
	m.insert(messages...)
	m.inserted += len(messages)
}

func (m *model) operate() {
	m.Helper()
	filter := dialect.Filter{All: true}
	switch m.r.IntN(4) {
	case 0:
		key := fmt.Sprint("k", 1+m.r.IntN(4))
		filter = dialect.Filter{Key: sql.Null[string]{V: key, Valid: true}}
	case 1:
		filter = dialect.Filter{States: []string{dialect.Dead}}
	case 2:
		filter = dialect.Filter{}
		for range 5 {
			filter.IDs = append(filter.IDs, [16]byte{3: byte(m.r.IntN(int(m.ids) + 1))})
		}
	}
	limit := 1 + m.r.IntN(5)
	if m.r.IntN(3) > 0 {
		m.requeue(filter, limit)
	} else {
		m.discard(filter, limit)
	}
}

// turn is one of a relay in a lane, with an operator at work while it publishes.
func (m *model) turn(lane int) {
	m.Helper()
	lease := m.claim(lane)
	m.surface(lease, 1+m.r.IntN(3))
	limit := dialect.Limit{Rows: 1 + m.r.IntN(8)}

	due, err := m.store.Due(m.ctx, m.db, lane, limit)
	m.must(err)
	m.inOrder(due)
	var s dialect.Settlement
	s.Archive = true
	stuck := make(map[int64]bool)
	for _, row := range due {
		if stuck[row.KeyHash.V] && row.KeyHash.Valid {
			continue
		}
		if m.r.IntN(3) > 0 {
			s.PublishedParked = append(s.PublishedParked, row.Ref())
			continue
		}
		f := m.failure(row)
		s.FailedParked = append(s.FailedParked, f)
		stuck[row.KeyHash.V] = true
	}
	m.settleTwice(lease, s)

	ready, err := m.store.Ready(m.ctx, m.db, lane, 0, limit)
	m.must(err)
	s = dialect.Settlement{Archive: true}
	var published []dialect.Row
	clear(stuck)
	for _, row := range ready {
		switch {
		case row.Blocked || stuck[row.KeyHash.V] && row.KeyHash.Valid:
			s.Hold = append(s.Hold, row.Ref())
		case m.r.IntN(3) > 0:
			s.Published = append(s.Published, row.Ref())
			published = append(published, row)
		default:
			f := m.failure(row)
			s.Failed = append(s.Failed, f)
			published = append(published, row)
			stuck[row.KeyHash.V] = f.Blocking
		}
	}
	m.inOrder(published)
	m.settleTwice(lease, s)
	if m.r.IntN(2) == 0 {
		m.must(m.store.Release(m.ctx, m.db, lease))
	}
}

func (m *model) failure(row dialect.Row) dialect.Failure {
	f := dialect.Failure{Ref: row.Ref(), Attempts: row.Attempts + 1, Blocking: true, Reason: "no", Delay: time.Duration(m.r.IntN(2)) * time.Hour}
	if m.r.IntN(3) == 0 {
		f.Dead, f.Blocking = true, m.r.IntN(2) == 0
	}
	return f
}

// settleTwice lets an operator come between reading and settling, and settles again
// as after an unknown outcome.
func (m *model) settleTwice(lease dialect.Lease, s dialect.Settlement) {
	m.Helper()
	if m.r.IntN(3) == 0 {
		m.operate()
	}
	m.settle(lease, s)
	if m.r.IntN(3) > 0 {
		return
	}
	// Failed rows that still wait are given their new time again; all else is as it was.
	const all = `SELECT pos, seq, state, blocking, attempts, reason FROM {parked}`
	before := append(append(m.rows(all), m.rows(`SELECT * FROM {ready}`)...), m.rows(`SELECT * FROM {done}`)...)
	m.settle(lease, s)
	after := append(append(m.rows(all), m.rows(`SELECT * FROM {ready}`)...), m.rows(`SELECT * FROM {done}`)...)
	m.equal(after, before, fmt.Sprintf("after the same settlement again (%+v)", s))
}

// inOrder fails when a row is about to be published before an older one of its key
// that waits, unless that one comes before it in the same run.
func (m *model) inOrder(rows []dialect.Row) {
	m.Helper()
	run := make(map[int64]bool)
	for _, row := range rows {
		if row.KeyHash.Valid {
			for _, older := range m.rows(`
				SELECT seq FROM {ready} WHERE key_hash = ?1 AND seq < ?2
				UNION ALL
				SELECT seq FROM {parked} WHERE key_hash = ?1 AND seq < ?2 AND (state IN ('retry', 'held') OR blocking = 1)`,
				row.KeyHash.V, row.Seq) {
				if seq, _ := strconv.ParseInt(older, 10, 64); !run[seq] {
					m.Errorf("%s with seq %d goes before seq %d", row.Payload, row.Seq, seq)
				}
			}
		}
		run[row.Seq] = true
	}
}

func (m *model) conserved() {
	m.Helper()
	got := m.one(`SELECT count(*), count(DISTINCT id) FROM (
		SELECT id FROM {ready} UNION ALL SELECT id FROM {parked} UNION ALL SELECT id FROM {done})`)
	if want := fmt.Sprint(m.inserted, m.inserted); got != want {
		m.Errorf("messages and ids are %s, want %s", got, want)
	}
}
