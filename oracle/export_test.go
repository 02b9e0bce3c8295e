package oracle

import (
	"database/sql"
	"fmt"
	"reflect"
	"strings"

	"github.com/outbox-suite/outbox/dialect"
)

// Rendered returns every statement of a store, for the golden files.
func Rendered(s dialect.Store) string {
	store := s.(*store)
	var b strings.Builder
	write := func(name, text string) {
		fmt.Fprintf(&b, "-- %s --\n%s\n\n", name, strings.TrimSpace(text))
	}
	for _, step := range store.Steps() {
		write(fmt.Sprintf("step %d: %s", step.Version, step.Name), step.SQL)
	}
	for _, st := range Statements(s) {
		write(st.Name, st.Text)
	}
	return b.String()
}

// Text is a statement under its name in the golden files.
type Text struct{ Name, Text string }

// everyCondition is a filter with all conditions.
func everyCondition(ids int) dialect.Filter {
	return dialect.Filter{
		IDs: make([][16]byte, ids), Key: sql.Null[string]{V: "k", Valid: true}, Topic: "t", Type: "t", States: []string{dialect.Dead},
	}
}

// Statements returns every statement but those of the schema, those with a filter with
// all its conditions, those with a list for ten elements.
func Statements(s dialect.Store) []Text { return StatementsFor(s, 1, 10) }

// StatementsFor is Statements for numbers of ids in a filter and of elements in a list.
func StatementsFor(s dialect.Store, ids, elements int) (list []Text) {
	store := s.(*store)
	parked, done := store.parkedFilter(everyCondition(ids)), store.doneFilter(everyCondition(ids))
	v := reflect.ValueOf(&store.sql).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		switch v.Field(i).Type() {
		case reflect.TypeFor[string]():
			list = append(list, Text{name, v.Field(i).String()})
		case reflect.TypeFor[filtered]():
			q := filteredOf(store, name)
			if name == "chooseReplay" {
				list = append(list, Text{name, q.with(&done)})
			} else {
				list = append(list, Text{name, q.with(&parked)})
			}
		case reflect.TypeFor[listed]():
			q := listedOf(store, name)
			text, _ := q.with(min(elements, q.most()))
			list = append(list, Text{name, text})
		}
	}
	return list
}

func filteredOf(s *store, name string) filtered {
	return map[string]filtered{
		"parked": s.sql.parked, "requeueLanes": s.sql.requeueLanes, "discardLanes": s.sql.discardLanes,
		"chooseRequeue": s.sql.chooseRequeue, "chooseDiscard": s.sql.chooseDiscard, "chooseReplay": s.sql.chooseReplay,
	}[name]
}

func listedOf(s *store, name string) listed {
	return map[string]listed{
		"readParked": s.sql.readParked, "keysOfReady": s.sql.keysOfReady, "keysOfParked": s.sql.keysOfParked,
		"lockPurge": s.sql.lockPurge, "lockPurgeInbox": s.sql.lockPurgeInbox,
	}[name]
}

// SurfacedTwice is the reason of a message that surfaced twice.
const SurfacedTwice = surfacedTwice

// ErrSurfaceWaits is what Surface fails with when it has waited too long.
var ErrSurfaceWaits = errSurfaceWaits

// SurfaceWait is how long that is.
const SurfaceWait = surfaceWait

// Statement returns one statement of a store by its name in the golden files.
func Statement(s dialect.Store, name string) string {
	return reflect.ValueOf(s.(*store).sql).FieldByName(name).String()
}

// StatementsOf returns the statements of a version of the schema.
func StatementsOf(s dialect.Store, version int) []string { return s.(*store).statementsOf(version) }

// TooOld says what is wrong with a server's version.
var TooOld = tooOld

// Complete is a DSN with what it leaves open.
var Complete = complete

// MostInList is the most elements of a list.
const MostInList = mostInList

// Micros is a duration as statements take it.
var Micros = micros
