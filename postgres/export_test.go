package postgres

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
	// The statements with a filter, with all its conditions.
	all := dialect.Filter{
		IDs: make([][16]byte, 1), Key: sql.Null[string]{Valid: true}, Topic: "t", Type: "t", States: []string{dialect.Dead},
	}
	parked, done := store.parkedFilter(all), store.doneFilter(all)
	v, plain := reflect.ValueOf(store.sql), reflect.ValueOf(render(dialect.Tables{Prefix: "outbox", Lanes: 1}))
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		if v.Field(i).Kind() == reflect.String {
			write(name, v.Field(i).String())
			continue
		}
		q := filtered{v.Field(i).Field(0).String(), v.Field(i).Field(1).String()}
		text := plain.Field(i).Field(0).String() + plain.Field(i).Field(1).String()
		own := 0
		for strings.Contains(text, fmt.Sprint("$", own+1)) {
			own++
		}
		if name == "replay" || name == "replayable" {
			write(name, q.with(&done, own))
		} else {
			write(name, q.with(&parked, own))
		}
	}
	return b.String()
}

// SurfacedTwice is the reason of a message that surfaced twice.
const SurfacedTwice = surfacedTwice

// Channel is the channel on which relays of the tables are woken.
var Channel = channel

// Statement returns one statement of a store by its name in the golden files.
func Statement(s dialect.Store, name string) string {
	return reflect.ValueOf(s.(*store).sql).FieldByName(name).String()
}

// Quote quotes an identifier.
var Quote = quote
