package sqlserver

import (
	"database/sql"
	"fmt"
	"reflect"
	"strings"

	"github.com/microsoft/go-mssqldb/msdsn"

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
	write("grants", store.Grants())
	for name, text := range Statements(s) {
		write(name, text)
	}
	return b.String()
}

// Statements yields every statement of a store but the schema's, in order, those with
// a filter with all its conditions.
func Statements(s dialect.Store) func(yield func(name, text string) bool) {
	store := s.(*store)
	all := dialect.Filter{
		IDs: make([][16]byte, 1), Key: sql.Null[string]{Valid: true}, Topic: "t", Type: "t", States: []string{dialect.Dead, dialect.Retry},
	}
	parked, done := store.parkedFilter(all), store.doneFilter(all)
	// How many parameters stand before the filter's.
	own := map[string]int{"parked": 2, "chooseRequeue": 2, "chooseDiscard": 2, "chooseReplay": 5}
	v := reflect.ValueOf(store.sql)
	return func(yield func(name, text string) bool) {
		for i := range v.NumField() {
			name, text := v.Type().Field(i).Name, ""
			if v.Field(i).Kind() == reflect.String {
				text = v.Field(i).String()
			} else {
				q := filtered{v.Field(i).Field(0).String(), v.Field(i).Field(1).String()}
				f := &parked
				if name == "chooseReplay" {
					f = &done
				}
				text = q.with(f, own[name])
			}
			if !yield(name, text) {
				return
			}
		}
	}
}

// SurfacedTwice is the reason of a message that surfaced twice.
const SurfacedTwice = surfacedTwice

// StatementsOf returns the statements of a version of the schema.
func StatementsOf(s dialect.Store, version int) []string { return s.(*store).statementsOf(version) }

// Problems says what is wrong with a server and database of these properties.
func Problems(version string, edition, compatibility, delayed int, updateability string) []string {
	v := server{version, edition, compatibility, delayed, updateability}
	return v.problems()
}

// Parse reads a DSN.
func Parse(dsn string) (msdsn.Config, error) { return parse(dsn) }

// Micros is a duration as statements take it.
var Micros = micros
