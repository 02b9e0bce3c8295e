package sqlite

import (
	"context"
	"reflect"

	"github.com/outbox-suite/outbox/dialect"
)

// Statement is a rendered statement and its name.
type Statement struct{ Name, Text string }

// Statements are the statements of a store in the order they are declared, and the
// conditions of a filter.
func Statements(bound dialect.Store) []Statement {
	v := reflect.ValueOf(bound.(*store).sql)
	var all []Statement
	for i := range v.NumField() {
		all = append(all, Statement{v.Type().Field(i).Name, v.Field(i).String()})
	}
	return append(
		all,
		Statement{"readyValues", readyValuesSQL},
		Statement{"scheduledValues", scheduledValuesSQL},
		Statement{"hasID", hasIDSQL},
		Statement{"hasKey", hasKeySQL},
		Statement{"hasTopic", hasTopicSQL},
		Statement{"hasType", hasTypeSQL},
		Statement{"hasState", hasStateSQL},
		Statement{"requeueable", requeueableSQL},
		Statement{"parkedOrder", parkedOrderSQL},
		Statement{"selectOrder", selectOrderSQL},
		Statement{"selectDoneOrder", selectDoneOrderSQL},
	)
}

// Objects are the names of all tables and indexes that are looked for.
func Objects(bound dialect.Store) []string {
	var names []string
	for _, object := range objects() {
		names = append(names, dialect.Expand(object, bound.(*store).tables, func(name string) string { return name }))
	}
	return names
}

// DSN is the driver's name for a path.
var DSN = dsn

// Hold takes the writer's place of a store until release is called.
func Hold(bound dialect.Store) (release func()) {
	s := bound.(*store)
	s.writing <- struct{}{}
	return s.unlock
}

// Waiting is how many settlements wait for the writer's place.
func Waiting(bound dialect.Store) int {
	s := bound.(*store)
	s.settlements.mu.Lock()
	defer s.settlements.mu.Unlock()
	return len(s.settlements.waiting)
}

// Quote quotes an identifier.
var Quote = quote

// ReadByColumns is Ready without the packed read, and ReadPacked tells what that came to.
func ReadByColumns(ctx context.Context, bound dialect.Store, db dialect.DB, lane int, after int64, limit dialect.Limit) ([]dialect.Row, error) {
	return bound.(*store).readColumns(ctx, db, lane, after, limit)
}

// ReadPacked returns false where it could not read.
func ReadPacked(ctx context.Context, bound dialect.Store, db dialect.DB, lane int, after int64, limit dialect.Limit) ([]dialect.Row, bool, error) {
	return bound.(*store).readPacked(ctx, db, lane, after, limit)
}

// Unpackable is how many reads need not try to be packed; below 0 none.
func Unpackable(bound dialect.Store) int64 { return bound.(*store).unpackable.Load() }
