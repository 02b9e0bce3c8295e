package relay_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/relay"
)

// keyIn is the nth key whose lane is this one.
func keyIn(lane, lanes, nth int) string {
	for i := 0; ; i++ {
		key := fmt.Sprint("key ", i)
		if dialect.LaneOfKey(dialect.KeyHash(key), lanes) != lane {
			continue
		}
		if nth == 0 {
			return key
		}
		nth--
	}
}

// ops counts a memory's operations.
type ops struct {
	mu sync.Mutex
	n  map[string]int
}

func countOps(m *memory) *ops {
	o := &ops{n: make(map[string]int)}
	m.fail = func(op string) error {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.n[op]++
		return nil
	}
	return o
}

// take returns the counts since the last call.
func (o *ops) take() map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.n
	o.n = make(map[string]int)
	return n
}

// owners counts the lanes that are leased.
func (m *memory) owners() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := make(map[string]int)
	for i := range m.lanes {
		if !m.free(i, "") {
			n[m.lanes[i].owner]++
		}
	}
	return n
}

// A lane that was emptied is kept for the next message, which costs no claim and no
// release, and is given back when none comes.
func TestLaneIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(16)
		o := m.open(t)
		b, e, ops := &broker{}, &events{}, countOps(m)
		stop := run(t, o, b, relay.Config{Owner: "me", Observer: e})
		key := keyIn(3, 16, 0)
		for range 10 {
			m.enqueue(t, o, outbox.Message{Key: key})
			o.Wake()
			time.Sleep(100 * time.Millisecond)
		}
		got := ops.take()
		if got["claim"] != 1 || got["release"] != 0 || got["settle and archive"] != 10 || got["surface"]+got["due"] != 0 {
			t.Errorf("for ten messages of one lane, a moment apart: %v", got)
		}
		if n := got["poll"]; n > 50 {
			t.Errorf("%d polls for ten messages", n)
		}
		if got := m.owners(); got["me"] != 1 {
			t.Errorf("lanes held between messages: %v", got)
		}
		time.Sleep(2500 * time.Millisecond) // PollMax, and a poll
		if got := m.owners(); len(got) != 0 {
			t.Errorf("lanes held when nothing came for a while: %v", got)
		}
		m.enqueue(t, o, outbox.Message{Key: key})
		time.Sleep(2 * time.Second)
		stop()
		if n := len(b.got()); n != 11 {
			t.Errorf("%d of 11 messages published", n)
		}
		if claimed, released := count[relay.Claimed](e), count[relay.Released](e); claimed != 2 || released != 2 {
			t.Errorf("%d claims and %d releases, want 2 of each", claimed, released)
		}
	})
}

// keptUntilFails has a lane kept for a while, and given back when an operation fails: the
// server may be another one.
func keptUntilFails(t *testing.T, m *memory, o *outbox.Outbox, op string, after time.Duration) {
	t.Helper()
	broken := false
	m.fail = func(is string) error {
		if broken && is == op {
			broken = false
			return classError(dialect.OutcomeUnknown)
		}
		return nil
	}
	defer run(t, o, &broker{}, relay.Config{Owner: "me", PollMin: 400 * time.Millisecond, PollMax: 2 * time.Second})()
	m.enqueue(t, o, outbox.Message{Key: keyIn(3, 16, 0)})
	o.Wake()
	time.Sleep(after)
	if n := m.owners()["me"]; n != 1 {
		t.Errorf("%d lanes are kept", n)
	}
	m.mu.Lock()
	broken = true
	m.mu.Unlock()
	o.Wake()
	time.Sleep(10 * time.Millisecond)
	if n := m.owners()["me"]; n != 0 {
		t.Errorf("%d lanes are kept by a relay whose %s has failed", n, op)
	}
}

// A stop gives kept lanes back at once, and a drain keeps none.
func TestKeptLaneIsReleased(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, m *memory, o *outbox.Outbox){
		"at a stop": func(t *testing.T, m *memory, o *outbox.Outbox) {
			stop := run(t, o, &broker{}, relay.Config{Owner: "me"})
			m.enqueue(t, o, outbox.Message{Key: keyIn(3, 16, 0)})
			time.Sleep(100 * time.Millisecond)
			if n := m.owners()["me"]; n != 1 {
				t.Errorf("%d lanes are kept", n)
			}
			stop()
		},
		"in a drain": func(t *testing.T, m *memory, o *outbox.Outbox) {
			m.after = func(op string) {
				if op == "pending" && len(m.owners()) != 0 {
					t.Error("a lane is held when the relay asks whether it is done")
				}
			}
			m.enqueue(t, o, outbox.Message{Key: keyIn(3, 16, 0)})
			drain(t, o, &broker{}, relay.Config{Owner: "me"})
		},
		"after a poll that failed": func(t *testing.T, m *memory, o *outbox.Outbox) {
			keptUntilFails(t, m, o, "poll", 50*time.Millisecond)
		},
		"after a horizon that failed": func(t *testing.T, m *memory, o *outbox.Outbox) {
			keptUntilFails(t, m, o, "horizon", 300*time.Millisecond) // until another one is due
		},
		"when little of its lease is left": func(t *testing.T, m *memory, o *outbox.Outbox) {
			m.after = func(op string) {
				if op == "settle and archive" {
					time.Sleep(1900 * time.Millisecond) // it is renewed after 1 s, and would be after 2
				}
			}
			defer run(t, o, &broker{}, relay.Config{Owner: "me", Lease: 3 * time.Second, PollMax: time.Second})()
			m.enqueue(t, o, outbox.Message{Key: keyIn(3, 16, 0)})
			o.Wake()
			time.Sleep(1950 * time.Millisecond)
			if n := m.owners()["me"]; n != 0 {
				t.Errorf("%d lanes are kept after a settle that took two thirds of the lease", n)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory(16)
				o := m.open(t)
				end(t, m, o)
				if got := m.owners(); len(got) != 0 {
					t.Errorf("lanes held after: %v", got)
				}
			})
		})
	}
}

// What comes to a lane while it is given back is not left until the next poll.
func TestMessageDuringRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(16)
		o := m.open(t)
		releasing := make(chan bool, 9)
		m.after = func(op string) {
			if op == "release" {
				releasing <- true
				time.Sleep(300 * time.Millisecond)
			}
		}
		b := &broker{}
		stop := run(t, o, b, relay.Config{Owner: "me", PollMin: 2 * time.Second, PollMax: 2 * time.Second})
		m.enqueue(t, o, outbox.Message{Key: keyIn(3, 16, 0)})
		o.Wake()
		<-releasing
		m.enqueue(t, o, outbox.Message{Key: keyIn(3, 16, 1)})
		o.Wake()
		time.Sleep(310 * time.Millisecond)
		if n := len(b.got()); n != 2 {
			t.Errorf("%d of 2 messages published when the lane was free again", n)
		}
		stop()
	})
}

// A kept lane's lease is renewed while there is time for another try.
func TestKeptLaneIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(16)
		o := m.open(t)
		var extended []time.Time
		m.fail = func(op string) error {
			if op == "extend" {
				extended = append(extended, time.Now())
			}
			return nil
		}
		b := &broker{answer: func(_ context.Context, got relay.Message) error {
			if got.Topic == "slow" {
				time.Sleep(4 * time.Second)
			}
			return nil
		}}
		stop := run(t, o, b, relay.Config{Owner: "me", Lease: 9 * time.Second, PollMax: 3 * time.Second})
		key := keyIn(3, 16, 0)
		m.enqueue(t, o, outbox.Message{Key: key})
		o.Wake()
		settled := time.Now()
		time.Sleep(2500 * time.Millisecond)
		m.enqueue(t, o, outbox.Message{Key: key, Topic: "slow"})
		o.Wake()
		time.Sleep(4 * time.Second)
		stop()
		if len(extended) == 0 || extended[0].Sub(settled) > 5*time.Second {
			t.Errorf("a lease of 9 s, taken up after 2.5, that began at %v, was renewed at %v", settled, extended)
		}
	})
}

// A kept lane whose claim is gone, as after a failover that breaks no connection, is claimed
// before anything is published there.
func TestKeptLaneIsLost(t *testing.T) {
	for name, lose := range map[string]func(l *memoryLane){
		"a server that never saw the claim": func(l *memoryLane) { *l = memoryLane{epoch: l.epoch - 1} },
		"another owner since":               func(l *memoryLane) { *l = memoryLane{epoch: l.epoch + 1} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory(16)
				o := m.open(t)
				e, ops := &events{}, countOps(m)
				b := &broker{}
				m.horizon = func() dialect.Horizon { return dialect.Horizon{Newest: m.seq, Begun: 1, Running: 1} }
				stop := run(t, o, b, relay.Config{Owner: "me", Observer: e, PollMax: 5 * time.Second})
				put := func(lane int) {
					m.enqueue(t, o, outbox.Message{Key: keyIn(lane, 16, 0)})
					o.Wake()
					time.Sleep(100 * time.Millisecond)
				}
				put(2)
				put(3)
				for range 4 { // until the floor has followed
					o.Wake()
					time.Sleep(300 * time.Millisecond)
				}
				ops.take()
				m.mu.Lock()
				floor := slices.Max(m.floors)
				lose(&m.lanes[3])
				m.mu.Unlock()
				put(3)
				if got := m.owners()["me"]; floor == 0 || got != 1 || m.floors[len(m.floors)-1] != 0 {
					t.Errorf("%d lanes are held, and polls are above %d after %d: the server may be another one", got, m.floors[len(m.floors)-1], floor)
				}
				stop()
				if n := len(b.got()); n != 3 {
					t.Errorf("3 messages were published %d times", n)
				}
				if got := ops.take(); got["claim"] != 1 || got["settle and archive"] != 1 {
					t.Errorf("for a message in the lane that was lost: %v", got)
				}
				if n := count[relay.LeaseLost](e); n != 1 {
					t.Errorf("a lane was lost %d times", n)
				}
				if got := m.owners(); len(got) != 0 {
					t.Errorf("lanes held after: %v", got)
				}
			})
		})
	}
}

// A relay that has more to do than it can shares with one that comes later.
func TestOverloadedRelayShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Each relay has four workers, and a message takes 20 ms: 200 a second.
		const lanes, rate = 16, 330
		m := newMemory(lanes)
		o := m.open(t)
		slow := func(context.Context, relay.Message) error {
			time.Sleep(20 * time.Millisecond)
			return nil
		}
		one, two := &broker{answer: slow}, &broker{answer: slow}
		cfg := relay.Config{Owner: "one", PublishConcurrency: 1, PublishSize: 1}
		stopOne := run(t, o, one, cfg)
		feed, end := context.WithCancel(t.Context())
		var feeding sync.WaitGroup
		feeding.Go(func() {
			for n := 0; feed.Err() == nil; n++ {
				for lane := range lanes {
					m.enqueue(t, o, outbox.Message{Key: keyIn(lane, lanes, n%3)})
				}
				o.Wake()
				time.Sleep(lanes * time.Second / rate)
			}
		})
		time.Sleep(5 * time.Second)
		cfg.Owner = "two"
		stopTwo := run(t, o, two, cfg)
		time.Sleep(20 * time.Second) // until what was left by one alone is gone
		before := [2]int{len(one.got()), len(two.got())}
		time.Sleep(20 * time.Second)
		first, second := len(one.got())-before[0], len(two.got())-before[1]
		end()
		feeding.Wait()
		stopOne()
		stopTwo()
		if all := first + second; all < 20*rate*95/100 || min(first, second) < all/4 {
			t.Errorf("of %d messages two relays published %d and %d", 20*rate, first, second)
		}
	})
}

// hanging is a broker whose calls for some keys only end with their context.
func hanging(hangs func(key string) bool) *broker {
	return &broker{answer: func(ctx context.Context, msg relay.Message) error {
		if hangs(msg.Key) {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}}
}

// A relay whose calls hang gives the lanes back that it keeps.
func TestHangingRelayKeepsNoLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(16)
		o := m.open(t)
		var hang sync.Map
		b := hanging(func(key string) bool { _, ok := hang.Load(key); return ok })
		stop := run(t, o, b, relay.Config{Owner: "me", Workers: 2, PublishTimeout: time.Minute, Grace: time.Millisecond})
		for lane := range 8 {
			m.enqueue(t, o, outbox.Message{Key: keyIn(lane, 16, 0)})
		}
		time.Sleep(500 * time.Millisecond)
		if n := m.owners()["me"]; n != 8 {
			t.Errorf("%d of 8 lanes are kept", n)
		}
		for lane := range 2 {
			hang.Store(keyIn(lane, 16, 0), true)
			m.enqueue(t, o, outbox.Message{Key: keyIn(lane, 16, 0)})
		}
		o.Wake()
		time.Sleep(300 * time.Millisecond)
		if n := m.owners()["me"]; n != 2 {
			t.Errorf("%d lanes are held while both workers hang, want the two they are in", n)
		}
		stop()
	})
}

// So does one whose last settle in a lane was still open when its workers began to hang.
func TestLaneKeptLateIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(16)
		o := m.open(t)
		m.after = func(op string) {
			if strings.HasPrefix(op, "settle") {
				time.Sleep(200 * time.Millisecond)
			}
		}
		hangs := keyIn(0, 16, 0)
		b := hanging(func(key string) bool { return key == hangs })
		stop := run(t, o, b, relay.Config{Owner: "me", Workers: 1, PublishTimeout: time.Minute, Grace: time.Millisecond})
		m.enqueue(t, o, outbox.Message{Key: keyIn(5, 16, 0)})
		o.Wake()
		time.Sleep(10 * time.Millisecond)
		m.enqueue(t, o, outbox.Message{Key: hangs})
		o.Wake()
		time.Sleep(3 * time.Second)
		if n := m.owners()["me"]; n != 1 {
			t.Errorf("%d lanes are held while the worker hangs, want the one it is in", n)
		}
		stop()
	})
}

// A drain ends beside a relay that always has a lane.
func TestDrainBesideTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(16)
		o := m.open(t)
		stop := run(t, o, &broker{}, relay.Config{Owner: "service"})
		feed, end := context.WithCancel(t.Context())
		var feeding sync.WaitGroup
		feeding.Go(func() {
			for n := 0; feed.Err() == nil; n++ {
				m.enqueue(t, o, outbox.Message{Key: keyIn(n%16, 16, 0)})
				o.Wake()
				time.Sleep(200 * time.Millisecond)
			}
		})
		time.Sleep(time.Second)
		began := time.Now()
		drain(t, m.open(t), &broker{}, relay.Config{Owner: "drain"})
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("the drain took %v", took)
		}
		end()
		feeding.Wait()
		stop()
	})
}

// While the last settle of a turn waits for the database its worker goes on with other
// lanes, and what comes to the lane meanwhile is found when the settle is done.
func TestSettleNeedsNoWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(16)
		o := m.open(t)
		// An operation waits outside the store's lock, which is the whole database's.
		m.after = func(op string) {
			if strings.HasPrefix(op, "settle") {
				time.Sleep(time.Second)
			}
		}
		b := &broker{}
		stop := run(t, o, b, relay.Config{Workers: 1, Retention: relay.NoRetention})
		began := time.Now()
		for lane := range 8 {
			m.enqueue(t, o, outbox.Message{Key: keyIn(lane, 16, 0)})
		}
		again := keyIn(0, 16, 0)
		time.Sleep(500 * time.Millisecond)
		if n := len(b.got()); n != 8 {
			t.Errorf("%d of 8 messages are published while the first is being settled", n)
		}
		id := m.enqueue(t, o, outbox.Message{Key: again})[0]
		o.Wake()
		time.Sleep(time.Second)
		if times := b.times(id); len(times) != 1 || times[0].Sub(began) > 1100*time.Millisecond {
			t.Errorf("the next message of a lane that was being settled was tried at %v, want right after", times)
		}
		stop()
	})
}

// What a poll saw in a lane before a turn there ended is not looked for again.
func TestStalePollClaimsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(4)
		o := m.open(t)
		// A poll takes longer than a turn.
		m.after = func(op string) {
			if op == "poll" {
				time.Sleep(10 * time.Millisecond)
			}
		}
		ops, e := countOps(m), &events{}
		stop := run(t, o, &broker{}, relay.Config{Workers: 4, Observer: e, Retention: relay.NoRetention})
		for n := range 100 {
			m.enqueue(t, o, outbox.Message{Key: keyIn(n%4, 4, 0)})
			o.Wake()
			time.Sleep(7 * time.Millisecond)
		}
		time.Sleep(500 * time.Millisecond)
		stop()
		got := ops.take()
		if got["ready"] != got["settle"] {
			t.Errorf("%d reads for %d settles: the others found nothing", got["ready"], got["settle"])
		}
	})
}

// Scheduled and due messages are looked for when the poll says that there are some.
func TestDueIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		o := m.open(t)
		b, ops := &broker{}, countOps(m)
		stop := run(t, o, b, relay.Config{})
		m.enqueue(t, o, outbox.Message{Key: "now"})
		time.Sleep(500 * time.Millisecond)
		if got := ops.take(); got["surface"]+got["due"] != 0 {
			t.Errorf("with nothing parked: %v", got)
		}
		m.enqueue(t, o, outbox.Message{Key: "later", Delay: time.Second})
		time.Sleep(3 * time.Second)
		stop()
		if got := ops.take(); got["surface"] == 0 || got["due"] == 0 || len(b.got()) != 2 {
			t.Errorf("with a scheduled message: %v, %d published", got, len(b.got()))
		}
	})
}
