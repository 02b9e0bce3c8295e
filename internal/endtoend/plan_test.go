package endtoend

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/google/uuid"
)

// fate is what becomes of a business transaction.
type fate int

const (
	commits fate = iota
	rollsBack
)

// planned is one business transaction: a change of an order, and a message about it.
type planned struct {
	id    uuid.UUID // of the message
	order int
	fate  fate
}

// fault is what happens while messages are under way.
type fault string

const (
	relayDies      fault = "the relays die, one after the broker accepted, before it settles"
	relayKilled    fault = "a relay is killed, right after a settle"
	consumerDies   fault = "the consumer dies after its commit, before it acknowledges"
	consumerKilled fault = "the consumer is killed"
	handlerFails   fault = "the handler fails and the message is given back"
	brokerKilled   fault = "the broker is killed and started"
	serverKilled   fault = "the database server is killed and started"
	serverStopped  fault = "the database server is stopped and started"
)

// plan is all that the seed decides.
type plan struct {
	orders int
	// before and after are written while nothing goes wrong.
	before, after []planned
	storm         []blow
}

// blow is a fault and the transactions in whose middle it comes.
type blow struct {
	fault fault
	items []planned
}

// scale says how large a plan is.
type scale struct {
	orders int
	calm   int // transactions before and after
	storm  int // transactions for each fault
	faults []fault
}

func newPlan(seed uint64, s scale) plan {
	random := rand.New(rand.NewPCG(seed, 0))
	p := plan{orders: s.orders}
	items := func(n int) (all []planned) {
		for range n {
			var item planned
			binary.BigEndian.PutUint64(item.id[:8], random.Uint64())
			binary.BigEndian.PutUint64(item.id[8:], random.Uint64())
			item.id[6], item.id[8] = item.id[6]&0x0f|0x40, item.id[8]&0x3f|0x80 // version 4
			item.order = 1 + random.IntN(s.orders)
			if random.IntN(8) == 0 {
				item.fate = rollsBack
			}
			all = append(all, item)
		}
		return all
	}
	p.before = items(s.calm)
	for _, i := range random.Perm(len(s.faults)) {
		p.storm = append(p.storm, blow{s.faults[i], items(s.storm)})
	}
	p.after = items(s.calm)
	return p
}

func committing(items []planned) (n int) {
	for _, item := range items {
		if item.fate == commits {
			n++
		}
	}
	return n
}
