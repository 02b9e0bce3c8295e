package conformance

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/relay"
)

// contentScenarios: which messages are taken, and that they stay what they are.
var contentScenarios = []Scenario{
	{
		Name:    "Enqueue/CommitIsFound",
		Promise: "a message whose producer died at once after its commit is delivered; one whose producer died before it does not exist",
		Needs:   []Need{Children},
		run:     commitIsFound,
	},
	{
		Name:    "Enqueue/DuplicateID",
		Promise: "an id that waits already is ErrDuplicateID; the transaction can be rolled back and its connection goes on",
		run:     duplicateID,
	},
	{
		Name:    "Enqueue/BytesAreExact",
		Promise: "id, key, topic, type, headers and payload are byte for byte what was enqueued, at every attempt, after a hold, a requeue and a replay, and for operators",
		run:     bytesAreExact,
	},
	{
		Name:    "Enqueue/LargePayload",
		Promise: "a payload of 5 MiB is refused at enqueue by the default limit, and within a higher one delivered as it is; a read ends with the message that reaches its limit of bytes",
		run:     largePayload,
	},
	{
		Name:    "Enqueue/RefusedIsNotWritten",
		Promise: "a call with a message that breaks a limit writes nothing, names message and field, and leaves the transaction usable",
		run:     refusedIsNotWritten,
	},
}

func commitIsFound(t *trial) {
	t.startMany(2, patient)
	for i := range t.size(5, 2) {
		key := fmt.Sprintf("key-%d", i)
		t.spawnProducer(true, t.message(key), t.message(key), t.message(""))
		t.spawnProducer(false, t.message(""), t.message(""))
	}
	t.settleDown()
	t.noDuplicates()
}

// spawnProducer has a child process enqueue the messages and die by SIGKILL, at
// once after the commit or right before it.
func (t *trial) spawnProducer(commit bool, messages ...outbox.Message) {
	c := t.spawn(childWith{produce: &production{Messages: messages, Commit: commit}})
	select {
	case <-c.gone:
	case <-t.ctx.Done():
		t.fail("the producer did not end")
	}
	if !c.killedItself() {
		t.fail("the producer did not come to its end: %v: %s", c.status, c.errors())
	}
	if commit {
		t.record(committed, messages...)
	} else {
		t.record(rolledBack, messages...)
	}
}

func duplicateID(t *trial) {
	// One connection, so that what a refusal leaves behind would be met.
	db := t.open()
	db.SetMaxOpenConns(1)
	box := t.newBox(db, t.target.Dialect)

	refuses := func(what string, w *write, messages ...outbox.Message) {
		_, err := box.Enqueue(t.ctx, w.tx, messages...)
		var typed *outbox.Error
		switch {
		case err == nil:
			t.error("%s was taken", what)
		case !errors.Is(err, outbox.ErrDuplicateID), !errors.As(err, &typed):
			t.error("%s: the error is not ErrDuplicateID but %v", what, err)
		}
		w.rollBack()
		after := t.beginOn(box)
		after.enqueue(t.message("after"))
		after.commit()
	}
	var delayed []uuid.UUID
	for _, delay := range []time.Duration{0, time.Hour} {
		waits := t.message("waits")
		waits.Delay = delay
		t.enqueueAll(waits)
		if delay > 0 {
			delayed = append(delayed, waits.ID)
		}

		w := t.beginOn(box)
		w.enqueue(t.message("other"))
		refuses(fmt.Sprintf("an id that waits (delay %v)", delay), w, waits)

		many := []outbox.Message{t.message("other"), waits, t.message("other")}
		refuses(fmt.Sprintf("an id that waits (delay %v), among others", delay), t.beginOn(box), many...)

		twice := t.message("twice")
		twice.Delay = delay
		refuses(fmt.Sprintf("an id twice in a call (delay %v)", delay), t.beginOn(box), twice, twice)

		w = t.beginOn(box)
		w.enqueue(twice)
		refuses(fmt.Sprintf("an id twice in a transaction (delay %v)", delay), w, twice)
	}
	t.atTheSameMoment()

	t.start()
	n, err := t.operator.Requeue(t.ctx, outbox.Filter{IDs: delayed}, 0)
	t.must(err, "requeue what is delayed")
	if n != len(delayed) {
		t.error("requeue made %d of %d delayed messages due", n, len(delayed))
	}
	t.settleDown()
}

// atTheSameMoment has two transactions enqueue the same id while both are open:
// the second one's fate hangs on the first one's.
func (t *trial) atTheSameMoment() {
	for _, commits := range []bool{true, false} {
		m := t.message("moment")
		first := t.begin()
		if commits {
			first.enqueue(m)
		} else { // not for the history: the second one will commit it
			_, err := t.box.Enqueue(t.ctx, first.tx, m)
			t.must(err, "enqueue")
		}
		var second error
		var running sync.WaitGroup
		entered := make(chan struct{})
		running.Go(func() {
			close(entered)
			tx, err := t.db.BeginTx(t.ctx, nil)
			if err != nil {
				second = err
				return
			}
			defer tx.Rollback()
			if _, second = t.box.Enqueue(t.ctx, tx, m); second == nil {
				second = tx.Commit()
			}
		})
		<-entered
		if commits {
			first.commit()
		} else {
			first.rollBack()
		}
		running.Wait()
		switch {
		case commits && !errors.Is(second, outbox.ErrDuplicateID):
			t.error("the same id in two transactions, of which the first commits: the second got %v instead of ErrDuplicateID", second)
		case !commits && second != nil:
			t.error("the same id in two transactions, of which the first rolls back: the second got %v", second)
		case !commits:
			t.record(committed, m)
		}
	}
}

// content is one way to fill a message.
type content struct {
	name string
	fill func(m *outbox.Message)
}

// contents are those that engines, drivers and encodings are known to change.
func (t *trial) contents() []content {
	var all []content
	payload := func(name string, p []byte) {
		all = append(all, content{"payload: " + name, func(m *outbox.Message) { m.Payload = p }})
	}
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	payload("every byte", every)
	payload("nil", nil)
	payload("empty", []byte{})
	payload("NUL", []byte{0})
	payload("1 MiB", t.bytes(t.size(1<<20, 1<<20)))
	payload("JSON with a NUL character", []byte(`{"a": "\u0000",  "a": 1.0e+0}`+"\x00\n "))
	payload("no UTF-8", []byte("\xff\xfe\xc3\x28"))
	payload("quotes", []byte(`'"\'';--\x41 0x41 {} $1 ? :a`))
	payload("spaces", []byte(" \r\n a \t "))

	key := func(keys ...string) {
		for _, k := range keys {
			all = append(all, content{fmt.Sprintf("key: %+q", clip(k)), func(m *outbox.Message) { m.Key = k }})
		}
	}
	key("Key", "key", "KEY", "key ", "key  ", " key", "key\t", "key\u00a0")
	key("\u00e9", "e\u0301", "e", "\u00df", "ss", "\ufb01", "fi", "i", "I", "\u0131", "\u0130") // composed and not, folds, ligatures
	key(" ", "0", "00", "null", "NULL", "'", `"`, `\`, "%", "_", "k%", "\U0001f600", "\u202e", strings.Repeat("ä", 256))
	all = append(all,
		content{"key: empty", func(m *outbox.Message) { m.Key, m.EmptyKey = "", true }},
		content{"key: none", func(m *outbox.Message) { m.Key, m.Revision = "", 0 }},
	)
	for _, text := range []string{"Text", "text", "text ", " ", "\u00e9", "e\u0301", "\U0001f600", `'"\`, strings.Repeat("ß", 127)} {
		all = append(all,
			content{fmt.Sprintf("topic: %+q", clip(text)), func(m *outbox.Message) { m.Topic = text }},
			content{fmt.Sprintf("type: %+q", clip(text)), func(m *outbox.Message) { m.Type, m.ContentType = text, text }})
	}
	for name, headers := range map[string]map[string]string{
		"empty value": {"a": ""}, "spaces": {"a": " \t a "}, "case": {"A": "1", "a": "2", "aa": "3"},
		"UTF-8":      {"a": "\u00e9 e\u0301 \U0001f600 \u2028 \ufeff", "b": "\u202e"},
		"JSON":       {"a": `{"a":"\u0000"}`, "b": `\u0000`, "c": `"`, "d": `\`, "e": "<>&'", "f": "null"},
		"controls":   {"a": "\x01\x1f\x7f\u0085"},
		"odd names":  {"!#$%&'*+-.^_`|~": "1", `"`: "2", `\`: "3", "(x)": "4"},
		"many bytes": {"a": strings.Repeat("ä", 7000)},
	} {
		all = append(all, content{"headers: " + name, func(m *outbox.Message) { m.Headers = headers }})
	}
	slices.SortFunc(all, func(a, b content) int { return strings.Compare(a.name, b.name) }) // a map was ranged over
	return all
}

// bytes returns n random bytes, a multiple of 8.
func (t *trial) bytes(n int) []byte {
	b := make([]byte, 0, n)
	for len(b) < n {
		b = binary.LittleEndian.AppendUint64(b, t.rand.Uint64())
	}
	return b
}

func clip(s string) string { return s[:min(len(s), 24)] }

func bytesAreExact(t *trial) {
	// Of each content three messages of one key: the first fails, the second is
	// held behind it, and the third is delayed, so that between them they take
	// every way there is through the tables.
	names := make(map[uuid.UUID]string)
	sums := make(map[uuid.UUID][32]byte)
	keys := make(map[string]int)
	total := 0
	w := t.begin()
	some := t.rand.IntN(4)
	for i, c := range t.contents() {
		if raceEnabled && i%4 != some {
			continue // not for the sake of the content
		}
		for n := range 3 {
			m := t.message(fmt.Sprintf("content-%d", i))
			c.fill(&m)
			if n == 2 {
				m.Delay = time.Microsecond
			}
			w.enqueue(m)
			names[m.ID], sums[m.ID] = c.name, sumOf(&m)
			if m.HasKey() {
				keys[m.Key]++
			}
			total++
		}
	}
	w.commit()

	// Accepted each time, but the relay is not told so before the third.
	t.broker.when(anyMessage, func(c *call) error {
		c.accept()
		switch t.broker.tried(c.message.ID) {
		case 1:
			return errors.New("broker: the answer was lost")
		case 2:
			return relay.Permanent(errors.New("broker: the answer was lost, and was no"))
		}
		return nil
	})
	t.start(patient)
	t.await("every message to be dead or held", func() bool {
		s := t.stats()
		return s.Ready+s.Scheduled+s.Retry == 0 && s.Dead+s.Held == int64(total)
	})
	t.parkedAreExact(names, sums, keys)

	t.awaitRevived()
	n, err := t.operator.Replay(t.ctx, outbox.Filter{All: true}, 0)
	t.must(err, "replay")
	if n != total {
		t.error("%d of %d messages were replayed", n, total)
	}
	t.await("every message to be published again", func() bool { return t.broker.count() >= 4*total })
	t.awaitEmpty()
	t.stopRelays()
	took, _ := t.broker.history()
	wrong := make(map[string]bool)
	for i := range took {
		if took[i].sum != sums[took[i].id] {
			wrong[names[took[i].id]] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wrong)) {
		t.error("it was published with other content: %s", name)
	}
	t.verify()
}

// parkedAreExact checks what operators see, and that a key selects itself alone.
func (t *trial) parkedAreExact(names map[uuid.UUID]string, sums map[uuid.UUID][32]byte, keys map[string]int) {
	list := t.parked(outbox.Filter{All: true})
	if len(list) != len(names) {
		t.error("operators see %d of %d parked messages", len(list), len(names))
	}
	for i := range list {
		m, err := messageOf(&list[i].Row)
		if err != nil || sumOf(&m) != sums[m.ID] {
			t.error("operators see other content (%v): %s", err, names[m.ID])
		}
	}
	for key, want := range keys {
		found := t.parked(outbox.Filter{Key: key, EmptyKey: key == ""})
		for i := range found {
			if found[i].Key.V != key {
				t.error("key %+q selects %+q", clip(key), clip(found[i].Key.V))
			}
		}
		if len(found) != want {
			t.error("key %+q selects %d of its %d messages", clip(key), len(found), want)
		}
	}
}

// parked lists what is parked.
func (t *trial) parked(f outbox.Filter) []outbox.Parked {
	var all []outbox.Parked
	for after := int64(0); ; {
		page, err := t.operator.Parked(t.ctx, f, after, 1000)
		t.must(err, "list parked")
		all = append(all, page...)
		if len(page) < 1000 {
			return all
		}
		after = page[len(page)-1].Pos
	}
}

// messageOf is the message that a row was made of.
func messageOf(row *dialect.Row) (outbox.Message, error) {
	m := outbox.Message{
		ID: row.ID, Topic: row.Topic, Key: row.Key.V, EmptyKey: row.Key.Valid && row.Key.V == "",
		Type: row.Type, ContentType: row.ContentType, Payload: row.Payload, Revision: row.Revision,
	}
	return m, json.Unmarshal([]byte(row.Headers), &m.Headers)
}

func largePayload(t *trial) {
	size := t.size(5<<20, 5<<20)
	messages := make([]outbox.Message, 4)
	for i := range messages {
		messages[i] = t.message([]string{"a", "b"}[i%2])
		messages[i].Payload = t.bytes(size)
	}
	w := t.begin()
	_, err := t.box.Enqueue(t.ctx, w.tx, messages[0])
	t.isInvalid(err, 0, "payload")
	w.rollBack()

	box, err := outbox.New(t.db, t.target.Dialect, outbox.Config{
		Schema: t.tables.Schema, Prefix: t.tables.Prefix, Lanes: t.tables.Lanes,
		Limits: outbox.Limits{Payload: size},
	})
	t.must(err, "new outbox with a higher limit")
	w = t.beginOn(box)
	w.enqueue(messages...)
	w.commit()

	// The first of a key fails once, so that they come from both tables.
	t.broker.first(2, anyMessage, refuse(errors.New("broker: not now")))
	most := size * 3 / 2 // so that two fit
	t.startWith(relayWith{
		dialect: reading(t.target.Dialect, func(op string, rows []dialect.Row) {
			sum := 0
			for i := range rows {
				if sum >= most {
					t.error("a read of %s rows went on after %d bytes, the limit was %d", op, sum, most)
				}
				sum += len(rows[i].Payload) + len(rows[i].Headers)
			}
		}),
		config: func(c *relay.Config) { c.BatchBytes, c.Lease = int64(most), time.Minute },
	})
	t.settleDown()
}

func refusedIsNotWritten(t *trial) {
	long := strings.Repeat("x", 600)
	w := t.begin()
	refused := 0
	for _, bad := range []struct {
		field string
		spoil func(m *outbox.Message)
	}{
		{"topic", func(m *outbox.Message) { m.Topic = "" }},
		{"topic", func(m *outbox.Message) { m.Topic = long }},
		{"topic", func(m *outbox.Message) { m.Topic = "\xff" }},
		{"type", func(m *outbox.Message) { m.Type = "" }},
		{"type", func(m *outbox.Message) { m.Type = long }},
		{"content type", func(m *outbox.Message) { m.ContentType = long }},
		{"key", func(m *outbox.Message) { m.Key = long }},
		{"key", func(m *outbox.Message) { m.Key = "a\x00b" }},
		{"key", func(m *outbox.Message) { m.Key = "\xc3\x28" }},
		{"key", func(m *outbox.Message) { m.EmptyKey = true }},
		{"payload", func(m *outbox.Message) { m.Payload = make([]byte, 1<<20+1) }},
		{"revision", func(m *outbox.Message) { m.Revision = -1 }},
		{"delay", func(m *outbox.Message) { m.Delay = -time.Second }},
		{"headers", func(m *outbox.Message) { m.Headers = map[string]string{"a": "\x00"} }},
		{"headers", func(m *outbox.Message) { m.Headers = map[string]string{"a": "b\r\nc: d"} }},
		{"headers", func(m *outbox.Message) { m.Headers = map[string]string{"a": "\xff"} }},
		{"headers", func(m *outbox.Message) { m.Headers = map[string]string{"": "a"} }},
		{"headers", func(m *outbox.Message) { m.Headers = map[string]string{"ä": "a"} }},
		{"headers", func(m *outbox.Message) { m.Headers = map[string]string{"a": strings.Repeat("x", 17<<10)} }},
	} {
		good, spoilt := t.message("refused"), t.message("refused")
		bad.spoil(&spoilt)
		_, err := t.box.Enqueue(t.ctx, w.tx, good, spoilt)
		t.isInvalid(err, 1, bad.field)
		t.record(rolledBack, good, spoilt)
		refused++
	}
	w.enqueue(t.message("kept"), t.message(""))
	w.commit()
	if s := t.stats(); s.Ready != 2 || s.Scheduled != 0 {
		t.error("after %d refused calls %d messages are ready instead of 2", refused, s.Ready)
	}
	t.start()
	t.settleDown()
}

// isInvalid demands the refusal of the message at index for the field.
func (t *trial) isInvalid(err error, index int, field string) {
	var invalid *outbox.InvalidError
	switch {
	case err == nil:
		t.error("a message with a bad %s was taken", field)
	case !errors.Is(err, outbox.ErrInvalid), !errors.As(err, &invalid):
		t.error("a message with a bad %s: the error is not an InvalidError but %v", field, err)
	case invalid.Index != index || invalid.Field != field:
		t.error("a bad %s of message %d was reported as %q of message %d", field, index, invalid.Field, invalid.Index)
	}
}
