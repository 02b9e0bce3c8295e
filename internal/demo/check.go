package demo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/outbox-suite/outbox"
)

// evidence is what the databases and the file hold in the end. It is all that the
// check goes by.
type evidence struct {
	plan    []plannedRow
	journal []change    // the committed changes
	orders  map[int]int // order to revision
	file    []byte
	effects []change // in the order they were applied
	left    outbox.Stats
}

type plannedRow struct {
	id    string
	order int
	fate  fate
}

// change is a change of an order that a message tells of.
type change struct {
	id              string
	order, revision int
}

// event is what the demo reads of a published line.
type event struct {
	ID       string `json:"id"`
	Subject  string `json:"subject"`
	Type     string `json:"type"`
	Topic    string `json:"topic"`
	Sequence string `json:"sequence"`
	Epoch    string `json:"epoch"`
	Lane     int    `json:"lane"`
	Data     struct {
		Order    int `json:"order"`
		Revision int `json:"revision"`
	} `json:"data"`
}

// Report is what the check found.
type Report struct {
	OK      bool    `json:"ok"`
	Engine  string  `json:"engine"`
	Seed    uint64  `json:"seed"`
	Orders  int     `json:"orders"`
	Writers int     `json:"writers"`
	Seconds float64 `json:"seconds"`

	// Committed and RolledBack are the writers' transactions, as the business
	// tables tell them.
	Committed  int `json:"committed"`
	RolledBack int `json:"rolled_back"`
	// RelaysKilled were ended by SIGKILL.
	RelaysKilled int `json:"relays_killed"`
	// Published are different messages in the file, Duplicates further lines of
	// the same ones.
	Published  int `json:"published"`
	Duplicates int `json:"duplicates"`
	// Effects are those the consumer has applied.
	Effects int `json:"effects"`

	// What must be 0. Lost messages were committed and not published, Unexpected
	// ones published and not committed. OrderViolations are first publishes of a
	// message after those of a later one of its key. Altered lines differ from what
	// was committed, or are no events at all. Unexplained duplicates were published
	// again under the same lease.
	Lost            int `json:"lost"`
	Unexpected      int `json:"unexpected"`
	OrderViolations int `json:"order_violations"`
	Altered         int `json:"altered"`
	Unexplained     int `json:"unexplained_duplicates"`
	// Left are messages that are still in the outbox.
	Left int64 `json:"left"`
	// EffectsLost were published and not applied, EffectsRepeated applied again,
	// EffectsUnexpected applied and never committed, EffectsOutOfOrder applied after
	// a later one of their order.
	EffectsLost       int `json:"effects_lost"`
	EffectsRepeated   int `json:"effects_repeated"`
	EffectsUnexpected int `json:"effects_unexpected"`
	EffectsOutOfOrder int `json:"effects_out_of_order"`
	// Business counts transactions that did not end as planned, and changes that
	// the orders themselves do not show.
	Business int `json:"business_violations"`

	// Broken has one sentence for each promise that did not hold, with the first
	// examples.
	Broken []string `json:"broken"`
	// Folder, Prefix and Topic, the broker's, tell where everything is, if it was
	// kept.
	Folder string `json:"folder,omitempty"`
	Prefix string `json:"prefix,omitempty"`
	Topic  string `json:"topic,omitempty"`
}

func (r *Report) broken(format string, args ...any) {
	r.OK = false
	r.Broken = append(r.Broken, fmt.Sprintf(format, args...))
}

// finding collects the cases of one kind.
type finding struct {
	promise  string
	examples []string
	count    int
}

func (f *finding) add(format string, args ...any) {
	if f.count++; len(f.examples) < 3 {
		f.examples = append(f.examples, fmt.Sprintf(format, args...))
	}
}

// into records the finding and returns the number of its cases.
func (f *finding) into(r *Report) int {
	if f.count > 0 {
		r.broken("%s: %d, such as %q", f.promise, f.count, f.examples)
	}
	return f.count
}

// check compares what was committed with what was published and with what became
// of it.
func check(e evidence) Report {
	r := Report{OK: true, Broken: []string{}}
	committed := checkBusiness(e, &r)
	published := checkFile(e.file, committed, &r)
	checkEffects(e.effects, committed, published, &r)
	if r.Left = e.left.Ready + e.left.Scheduled + e.left.Retry + e.left.Held + e.left.Dead; r.Left > 0 {
		r.broken("the outbox is empty in the end: %d messages are left, %d of them dead", r.Left, e.left.Dead)
	}
	return r
}

// checkBusiness compares what the writers were to do with what is in the business
// tables, and returns the committed changes by message.
func checkBusiness(e evidence, r *Report) map[string]change {
	business := finding{promise: "a transaction commits or rolls back as a whole"}
	committed := make(map[string]change, len(e.journal))
	revisions := make(map[int][]int)
	for _, c := range e.journal {
		committed[c.id] = c
		revisions[c.order] = append(revisions[c.order], c.revision)
	}
	r.Committed = len(committed)
	planned := make(map[string]bool, len(e.plan))
	for _, p := range e.plan {
		planned[p.id] = true
		c, found := committed[p.id]
		switch {
		case p.fate == rollsBack && !found:
			r.RolledBack++
		case p.fate == rollsBack:
			business.add("%s was to roll back and is in the journal", p.id)
		case !found:
			business.add("%s was to commit and is not in the journal", p.id)
		case c.order != p.order:
			business.add("%s changed order %d instead of %d", p.id, c.order, p.order)
		}
	}
	for id := range committed {
		if !planned[id] {
			business.add("%s is in the journal and nobody was to write it", id)
		}
	}
	for _, order := range slices.Sorted(maps.Keys(e.orders)) {
		list := revisions[order]
		slices.Sort(list)
		for i, revision := range list {
			if revision != i+1 {
				business.add("order %d has revision %d where %d belongs", order, revision, i+1)
				break
			}
		}
		if len(list) != e.orders[order] {
			business.add("order %d is at revision %d and has %d changes", order, e.orders[order], len(list))
		}
		delete(revisions, order)
	}
	for order := range revisions {
		business.add("order %d has changes and does not exist", order)
	}
	r.Business = business.into(r)
	if r.Committed == 0 || r.RolledBack == 0 {
		r.broken("there was something to see: %d transactions committed and %d rolled back", r.Committed, r.RolledBack)
	}
	return committed
}

// first is the first line of a message, and the newest lease it was published
// under.
type first struct {
	line  string
	epoch int64
}

// checkFile compares the published lines with what was committed, and returns the
// messages that were published.
func checkFile(file []byte, committed map[string]change, r *Report) map[string]bool {
	lost := finding{promise: "every committed message is published"}
	unexpected := finding{promise: "no message is published whose transaction rolled back"}
	order := finding{promise: "messages of one key are first published in order"}
	altered := finding{promise: "every line is the event that was committed"}
	unexplained := finding{promise: "nothing is published again under the same lease"}

	published := make(map[string]*first)
	newest := make(map[int]struct {
		revision int
		sequence int64
	})
	number := 0
	for line := range bytes.Lines(file) {
		number++
		e, epoch, sequence, err := parse(line)
		if err != nil {
			altered.add("line %d: %v", number, err)
			continue
		}
		c, found := committed[e.ID]
		if !found {
			if published[e.ID] == nil {
				unexpected.add("line %d: %s", number, e.ID)
			}
		} else if e.Data.Order != c.order || e.Data.Revision != c.revision ||
			e.Subject != key(c.order) || e.Type != "order.changed" || e.Topic != "orders" {
			altered.add("line %d: %s tells of order %d, revision %d", number, e.ID, e.Data.Order, e.Data.Revision)
		}
		if before := published[e.ID]; before != nil {
			r.Duplicates++
			if epoch <= before.epoch {
				unexplained.add("line %d: %s under epoch %d, before under %d", number, e.ID, epoch, before.epoch)
			}
			if stable := content(e); stable != before.line {
				altered.add("line %d: %s differs from its first line", number, e.ID)
			}
			before.epoch = max(epoch, before.epoch)
			continue
		}
		published[e.ID] = &first{content(e), epoch}
		if !found {
			continue
		}
		last := newest[c.order]
		if c.revision <= last.revision || sequence <= last.sequence {
			order.add("line %d: revision %d of order %d after revision %d", number, c.revision, c.order, last.revision)
		}
		last.revision, last.sequence = max(last.revision, c.revision), max(last.sequence, sequence)
		newest[c.order] = last
	}
	r.Published = len(published)
	all := make(map[string]bool, len(published))
	for id := range published {
		all[id] = true
	}
	for id, c := range committed {
		if !all[id] {
			lost.add("%s, revision %d of order %d", id, c.revision, c.order)
		}
	}
	r.Lost, r.Unexpected = lost.into(r), unexpected.into(r)
	r.OrderViolations = order.into(r)
	r.Altered, r.Unexplained = altered.into(r), unexplained.into(r)
	return all
}

// content is what must be the same at every attempt.
func content(e event) string {
	return fmt.Sprint(e.Subject, e.Type, e.Topic, e.Sequence, e.Lane, e.Data)
}

// parse reads a published line.
func parse(line []byte) (e event, epoch, sequence int64, err error) {
	if !bytes.HasSuffix(line, []byte("\n")) {
		return e, 0, 0, fmt.Errorf("has no end")
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return e, 0, 0, fmt.Errorf("is no event: %w", err)
	}
	if e.ID, err = clean(e.ID); err != nil {
		return e, 0, 0, fmt.Errorf("id: %w", err)
	}
	if epoch, err = strconv.ParseInt(e.Epoch, 10, 64); err != nil {
		return e, 0, 0, fmt.Errorf("epoch: %w", err)
	}
	if sequence, err = strconv.ParseInt(e.Sequence, 10, 64); err != nil {
		return e, 0, 0, fmt.Errorf("sequence: %w", err)
	}
	return e, epoch, sequence, nil
}

// checkEffects compares what the consumer did with what it was told.
func checkEffects(effects []change, committed map[string]change, published map[string]bool, r *Report) {
	lost := finding{promise: "the consumer applies every published message"}
	repeated := finding{promise: "the consumer applies no message twice"}
	unexpected := finding{promise: "the consumer applies only what was committed"}
	order := finding{promise: "the consumer applies the messages of an order in order"}
	applied := make(map[string]bool, len(effects))
	newest := make(map[int]int)
	for _, effect := range effects {
		if applied[effect.id] {
			repeated.add("%s", effect.id)
			continue
		}
		applied[effect.id] = true
		c, found := committed[effect.id]
		if !found || c != effect {
			unexpected.add("%s, revision %d of order %d", effect.id, effect.revision, effect.order)
			continue
		}
		if c.revision <= newest[c.order] {
			order.add("revision %d of order %d after revision %d", c.revision, c.order, newest[c.order])
		}
		newest[c.order] = max(newest[c.order], c.revision)
	}
	for id := range published {
		if !applied[id] {
			lost.add("%s", id)
		}
	}
	r.Effects = len(effects)
	r.EffectsLost, r.EffectsRepeated = lost.into(r), repeated.into(r)
	r.EffectsUnexpected, r.EffectsOutOfOrder = unexpected.into(r), order.into(r)
}
