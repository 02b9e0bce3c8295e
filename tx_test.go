package outbox_test

import (
	"database/sql"
	"reflect"
	"testing"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/inbox"
)

// What writes beside a business change takes an open transaction: a pool or a
// single connection, which would write outside of it, must not compile. A value
// compiles as an argument exactly when its type is assignable to the parameter's.
func TestOutsideTransactionDoesNotCompile(t *testing.T) {
	methods := []struct {
		name string
		f    reflect.Type
		tx   int // the place of the transaction among the parameters
	}{
		{"outbox.Outbox.Enqueue", reflect.TypeOf((*outbox.Outbox).Enqueue), 2},
		{"inbox.Inbox.Record", reflect.TypeOf((*inbox.Inbox).Record), 2},
		{"inbox.Inbox.RecordNext", reflect.TypeOf((*inbox.Inbox).RecordNext), 2},
		{"inbox.Inbox.Skip", reflect.TypeOf((*inbox.Inbox).Skip), 2},
		{"dialect.Producer.Insert", reflect.TypeOf(dialect.Producer.Insert), 2},
		{"dialect.Inbox.Record", reflect.TypeOf(dialect.Inbox.Record), 2},
		{"dialect.Reviser.Revise", reflect.TypeOf(dialect.Reviser.Revise), 2},
		{"dialect.Reviser.Advance", reflect.TypeOf(dialect.Reviser.Advance), 2},
		{"dialect.Reviser.SetProgress", reflect.TypeOf(dialect.Reviser.SetProgress), 2},
	}
	for _, m := range methods {
		parameter := m.f.In(m.tx)
		if tx := reflect.TypeFor[*sql.Tx](); !tx.AssignableTo(parameter) {
			t.Errorf("%s: %v is refused for %v", m.name, tx, parameter)
		}
		for _, outside := range []reflect.Type{reflect.TypeFor[*sql.DB](), reflect.TypeFor[*sql.Conn](), reflect.TypeFor[*sql.Stmt]()} {
			if outside.AssignableTo(parameter) {
				t.Errorf("%s: %v is taken for %v", m.name, outside, parameter)
			}
		}
	}
}
