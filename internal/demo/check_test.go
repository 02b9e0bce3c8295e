package demo

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// sound is evidence of a run in which all went well: two orders with three changes
// each, one transaction rolled back, and one line published again by the next
// owner of its lane.
func sound() evidence {
	e := evidence{orders: map[int]int{1: 3, 2: 3}}
	var lines []string
	for revision := 1; revision <= 3; revision++ {
		for order := 1; order <= 2; order++ {
			c := change{id(order, revision), order, revision}
			e.plan = append(e.plan, plannedRow{c.id, order, commits})
			e.journal = append(e.journal, c)
			e.effects = append(e.effects, c)
			lines = append(lines, line(order, revision, 7))
		}
	}
	e.plan[0].fate = late
	e.plan = append(e.plan, plannedRow{id(9, 9), 1, rollsBack})
	lines = append(lines, line(2, 1, 8))
	e.file = []byte(strings.Join(lines, ""))
	return e
}

func id(order, revision int) string {
	return fmt.Sprintf("00000000-0000-4000-8000-%06d%06d", order, revision)
}

func line(order, revision, epoch int) string {
	return fmt.Sprintf(`{"specversion":"1.0","id":"%s","source":"/outbox","type":"order.changed","subject":"order-%d",`+
		`"topic":"orders","sequence":"%d","lane":%d,"epoch":"%d","attempt":1,"data":{"order":%d,"revision":%d}}`+"\n",
		id(order, revision), order, 10*revision+order, order, epoch, order, revision)
}

// lines edits the file.
func (e *evidence) lines(edit func(lines [][]byte) [][]byte) {
	lines := edit(bytes.SplitAfter(e.file, []byte("\n")))
	e.file = bytes.Join(lines, nil)
}

func TestSoundEvidencePasses(t *testing.T) {
	got := check(sound())
	want := Report{OK: true, Committed: 6, RolledBack: 1, Published: 6, Duplicates: 1, Effects: 6, Broken: []string{}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestSabotageIsFound breaks one thing at a time and expects it, and nothing else,
// to be found.
func TestSabotageIsFound(t *testing.T) {
	for _, c := range []struct {
		name     string
		sabotage func(e *evidence)
		found    string         // in what is broken
		counts   map[string]int // the fields of the report that are not 0
	}{
		{
			"a line is missing", func(e *evidence) {
				e.lines(func(l [][]byte) [][]byte { return slices.Delete(l, 5, 6) })
			},
			"every committed message is published",
			map[string]int{"Lost": 1},
		},
		{
			"a message was lost and the consumer has not got it either", func(e *evidence) {
				e.lines(func(l [][]byte) [][]byte { return slices.Delete(l, 0, 1) })
				e.effects = slices.Delete(e.effects, 0, 1)
			},
			"every committed message is published",
			map[string]int{"Lost": 1},
		},
		{
			"a line is corrupted", func(e *evidence) {
				e.lines(func(l [][]byte) [][]byte { l[4] = append([]byte("x"), l[4]...); return l })
			},
			"line 5: is no event",
			map[string]int{"Altered": 1, "Lost": 1},
		},
		{
			"the last line is torn", func(e *evidence) { e.file = e.file[:len(e.file)-20] },
			"has no end",
			map[string]int{"Altered": 1},
		},
		{
			"two lines of a key are swapped", func(e *evidence) {
				e.lines(func(l [][]byte) [][]byte { l[0], l[2] = l[2], l[0]; return l })
			},
			"messages of one key are first published in order",
			map[string]int{"OrderViolations": 1},
		},
		{
			"the sequence runs backwards", func(e *evidence) {
				e.file = bytes.ReplaceAll(e.file, []byte(`"sequence":"31"`), []byte(`"sequence":"1"`))
			},
			"messages of one key are first published in order",
			map[string]int{"OrderViolations": 1},
		},
		{
			"a message is published whose transaction rolled back", func(e *evidence) {
				e.file = append(e.file, strings.ReplaceAll(line(1, 3, 7), id(1, 3), id(9, 9))...)
				e.file = append(e.file, strings.ReplaceAll(line(1, 3, 8), id(1, 3), id(9, 9))...)
			},
			"no message is published whose transaction rolled back",
			map[string]int{"Unexpected": 1, "EffectsLost": 1},
		},
		{
			"the payload tells of another change", func(e *evidence) {
				e.lines(func(l [][]byte) [][]byte {
					l[0] = bytes.Replace(l[0], []byte(`"revision":1`), []byte(`"revision":2`), 1)
					return l
				})
			},
			"every line is the event that was committed",
			map[string]int{"Altered": 1},
		},
		{
			"a duplicate differs from its first line", func(e *evidence) {
				e.lines(func(l [][]byte) [][]byte {
					l[6] = bytes.Replace(l[6], []byte(`"sequence":"12"`), []byte(`"sequence":"13"`), 1)
					return l
				})
			},
			"differs from its first line",
			map[string]int{"Altered": 1},
		},
		{
			"a message is published twice under one lease", func(e *evidence) { e.file = append(e.file, line(1, 3, 7)...) },
			"nothing is published again under the same lease",
			map[string]int{"Unexplained": 1},
		},
		{
			"a message was left in the outbox", func(e *evidence) { e.left.Held, e.left.Dead = 1, 1 },
			"2 messages are left, 1 of them dead",
			map[string]int{"Left": 2},
		},
		{
			"an effect is missing", func(e *evidence) { e.effects = e.effects[:5] },
			"the consumer applies every published message",
			map[string]int{"EffectsLost": 1},
		},
		{
			"an effect happened twice", func(e *evidence) { e.effects = append(e.effects, e.effects[0]) },
			"the consumer applies no message twice",
			map[string]int{"EffectsRepeated": 1},
		},
		{
			"an effect has another content", func(e *evidence) { e.effects[5].revision = 4 },
			"the consumer applies only what was committed",
			map[string]int{"EffectsUnexpected": 1},
		},
		{
			"effects are out of order", func(e *evidence) { e.effects[0], e.effects[2] = e.effects[2], e.effects[0] },
			"in order",
			map[string]int{"EffectsOutOfOrder": 1},
		},
		{
			"a rolled back change is in the journal", func(e *evidence) {
				e.plan[1].fate = rollsBack
			},
			"was to roll back and is in the journal",
			map[string]int{"Business": 1},
		},
		{
			"an order lost a change", func(e *evidence) { e.orders[2] = 2 },
			"order 2 is at revision 2 and has 3 changes",
			map[string]int{"Business": 1},
		},
		{
			"a planned change was never made", func(e *evidence) {
				e.plan = append(e.plan, plannedRow{id(2, 4), 2, commits})
			},
			"was to commit and is not in the journal",
			map[string]int{"Business": 1},
		},
		{
			"nothing happened at all", func(e *evidence) { *e = evidence{} },
			"there was something to see", nil,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := sound()
			c.sabotage(&e)
			r := check(e)
			if r.OK || !strings.Contains(strings.Join(r.Broken, "\n"), c.found) {
				t.Errorf("ok is %t, broken: %q, want %q", r.OK, r.Broken, c.found)
			}
			got := map[string]int{
				"Lost": r.Lost, "Unexpected": r.Unexpected, "OrderViolations": r.OrderViolations, "Altered": r.Altered,
				"Unexplained": r.Unexplained, "Left": int(r.Left), "EffectsLost": r.EffectsLost, "EffectsRepeated": r.EffectsRepeated,
				"EffectsUnexpected": r.EffectsUnexpected, "EffectsOutOfOrder": r.EffectsOutOfOrder, "Business": r.Business,
			}
			for name, n := range got {
				if n != c.counts[name] {
					t.Errorf("%s is %d, want %d (broken: %q)", name, n, c.counts[name], r.Broken)
				}
			}
		})
	}
}
