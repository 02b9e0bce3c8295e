package mysql

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
	v := reflect.ValueOf(store.sql)
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		switch {
		case v.Field(i).Kind() == reflect.String && (name == "insert" || name == "schedule"):
			row := map[string]string{"insert": insertRow, "schedule": scheduleRow}[name]
			write(name, v.Field(i).String()+row+", "+row)
		case name == "nextRevision":
			write(name, v.Field(i).String()+nextRevisionRow+", "+nextRevisionRow+nextRevisionEnd)
		case v.Field(i).Kind() == reflect.String:
			write(name, v.Field(i).String())
		default:
			q := filtered{v.Field(i).Field(0).String(), v.Field(i).Field(1).String()}
			if name == "chooseReplay" {
				write(name, q.with(&done))
			} else {
				write(name, q.with(&parked))
			}
		}
	}
	write("oldest", store.oldest(42))
	return b.String()
}

// SurfacedTwice is the reason of a message that surfaced twice.
const SurfacedTwice = surfacedTwice

// Statement returns one statement of a store by its name in the golden files.
func Statement(s dialect.Store, name string) string {
	return reflect.ValueOf(s.(*store).sql).FieldByName(name).String()
}

// StatementsOf returns the statements of a version of the schema.
func StatementsOf(s dialect.Store, version int) []string { return s.(*store).statementsOf(version) }

// TooOld says what is wrong with a server's version.
var TooOld = tooOld

// NextSeq is the number of the next row by the statement that would create the table.
var NextSeq = nextSeq

// Quote quotes an identifier.
var Quote = quote
