package sqlserver_test

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/sqlserver"
)

// TestReviseSends the rows of the keys in the order of the runs, before the messages, and
// asks for nothing unless a revision is given.
func TestReviseSends(t *testing.T) {
	reviser := bind(t).(dialect.Reviser)
	message := func(key string, hash int64) dialect.Message {
		return dialect.Message{
			Headers: "{}", Key: sql.Null[string]{V: key, Valid: true}, KeyHash: sql.Null[int64]{V: hash, Valid: true},
		}
	}
	messages := []dialect.Message{message("b", 2), message("a", 1), message("b", 2)}
	runs := []dialect.Run{{Key: "a", KeyHash: 1, Messages: []int{1}}, {Key: "b", KeyHash: 2, Messages: []int{0, 2}}}
	r := &recorder{}
	if refusal, err := reviser.Revise(t.Context(), r, messages, runs); err != nil || refusal != nil {
		t.Fatal(refusal, err)
	}
	want := []string{"SET XACT_ABORT OFF;", "UPDATE [outbox_revision]", "SET XACT_ABORT OFF;", "UPDATE [outbox_revision]", "INSERT INTO [outbox] "}
	if len(r.queries) != len(want) {
		t.Fatalf("queries: %q", r.queries)
	}
	for i, text := range want {
		if !strings.Contains(r.queries[i], text) {
			t.Errorf("query %d is %q, want %q", i, r.queries[i], text)
		}
	}
	if got, want := fmt.Sprint(r.args[1], r.args[3]), fmt.Sprint([]any{int64(1), []byte("a"), int64(1)}, []any{int64(2), []byte("b"), int64(2)}); got != want {
		t.Errorf("arguments %s, want %s", got, want)
	}
	var list []struct{ Revision int64 }
	if err := json.Unmarshal([]byte(r.args[4][0].(mssql.VarCharMax)), &list); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(list); got != "[{1} {0} {0}]" {
		t.Errorf("messages behind each are %s", got)
	}
	// A row that another has made meanwhile is no error.
	duplicate := mssql.Error{Number: 2627, All: []mssql.Error{{Number: 2627}}}
	r = &recorder{err: duplicate, times: 1}
	if _, err := reviser.Revise(t.Context(), r, messages, runs); err != nil || len(r.queries) != len(want)+1 || r.queries[0] != r.queries[1] {
		t.Errorf("a duplicate of the row stopped it: %q, %v", r.queries, err)
	}
	// One that the transaction's snapshot does not have is a conflict, for nothing would
	// be raised.
	r = &recorder{err: duplicate}
	_, err := reviser.Revise(t.Context(), r, messages, runs)
	if got := sqlserver.New().Classify(err); got != dialect.Conflict || len(r.queries) != 2 {
		t.Errorf("a row that is not seen: %q, %v is %v", r.queries, err, got)
	}
	// What is given is compared before anything is raised.
	r = &recorder{}
	runs[1].First = 4
	if _, err := reviser.Revise(t.Context(), r, messages, runs); err == nil || len(r.queries) != 1 {
		t.Errorf("a transaction that cannot read: %q, %v", r.queries, err)
	}
	if _, err := reviser.Advance(t.Context(), &recorder{}, "me", dialect.Revision{Key: "a", KeyHash: 1, Number: 1}); err == nil {
		t.Error("a consumer's transaction that cannot read was told nothing of it")
	}
}

// TestReviseSnapshot has another transaction make the row of a key after the caller's has
// begun, at SNAPSHOT: no message and no consumer goes by a row that it does not see.
func TestReviseSnapshot(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		reviser := f.store.(dialect.Reviser)
		key := keyIn(0)
		at := dialect.Revision{Key: key, KeyHash: dialect.KeyHash(key), Number: 1}
		steps := map[string]func(tx *sql.Tx) error{
			"Revise": func(tx *sql.Tx) error {
				runs := []dialect.Run{{Key: key, KeyHash: at.KeyHash, Messages: []int{0}}}
				_, err := reviser.Revise(t.Context(), tx, []dialect.Message{message("m", key)}, runs)
				return err
			},
			"Advance": func(tx *sql.Tx) error {
				_, err := reviser.Advance(t.Context(), tx, "me", at)
				return err
			},
			"SetProgress": func(tx *sql.Tx) error { return reviser.SetProgress(t.Context(), tx, "me", at) },
		}
		for name, step := range steps {
			f.exec(`DELETE FROM {revision}`)
			f.exec(`DELETE FROM {progress}`)
			late, err := f.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelSnapshot})
			f.ok(err)
			var n int64
			f.ok(late.QueryRowContext(t.Context(), f.sql(`SELECT COUNT(*) FROM {meta}`)).Scan(&n)) // the snapshot is of now
			first := f.begin()
			f.ok(step(first))
			f.ok(first.Commit())
			f.is(name, sqlserver.New().Classify(step(late)), dialect.Conflict)
			f.ok(late.Rollback())
		}
	})
}
