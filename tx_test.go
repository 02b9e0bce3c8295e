package outbox_test

import (
	"database/sql"
	"reflect"
	"testing"

	"github.com/outbox-suite/outbox"
)

// TestOutsideTransactionRefused: what would write outside the business transaction
// does not compile where a transaction is asked for.
func TestOutsideTransactionRefused(t *testing.T) {
	tx := reflect.TypeFor[outbox.Tx]()
	if !reflect.TypeFor[*sql.Tx]().Implements(tx) {
		t.Error("a *sql.Tx is refused")
	}
	for _, outside := range []reflect.Type{reflect.TypeFor[*sql.DB](), reflect.TypeFor[*sql.Conn](), reflect.TypeFor[*sql.Stmt]()} {
		if outside.Implements(tx) {
			t.Errorf("a %v compiles as a transaction", outside)
		}
	}
}
