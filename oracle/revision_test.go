package oracle_test

import (
	"database/sql"
	"database/sql/driver"
	"strings"
	"testing"

	"github.com/sijms/go-ora/v2/network"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/oracle"
)

// TestReviseSends the rows of the keys in the order of the runs, before the messages, with
// as many arguments as there are binds.
func TestReviseSends(t *testing.T) {
	message := func(key string, hash int64) dialect.Message {
		return dialect.Message{
			Topic: "t", Type: "y", Headers: "{}",
			Key: sql.Null[string]{V: key, Valid: true}, KeyHash: sql.Null[int64]{V: hash, Valid: true},
		}
	}
	for name, c := range map[string]struct {
		first int64 // of the second run
		want  string
	}{
		"Any":   {0, "INSERT REVISION, UPDATE REVISION, INSERT REVISION, UPDATE REVISION, INSERT MESSAGE"},
		"Next":  {4, "INSERT REVISION, SELECT REVISION, INSERT REVISION, SELECT REVISION, UPDATE REVISION, UPDATE REVISION, INSERT MESSAGE"},
		"Wrong": {6, "INSERT REVISION, SELECT REVISION, INSERT REVISION, SELECT REVISION"},
	} {
		t.Run(name, func(t *testing.T) {
			r, db, store := recording(t)
			r.answer = func(string, []driver.NamedValue) [][]driver.Value { return [][]driver.Value{{int64(3)}} }
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			refusal, err := store.(dialect.Reviser).Revise(t.Context(), tx,
				[]dialect.Message{message("b", 2), message("", 1), message("b", 2)},
				[]dialect.Run{{Key: "", KeyHash: 1, Messages: []int{1}}, {Key: "b", KeyHash: 2, First: c.first, Messages: []int{0, 2}}})
			if err != nil || (refusal != nil) != (name == "Wrong") {
				t.Fatal(refusal, err)
			}
			if refusal != nil && (refusal.Run != 1 || refusal.Last.V != 3) {
				t.Errorf("refused %+v", refusal)
			}
			_ = tx.Rollback()
			r.check(t)
			if got := r.kinds(); got != c.want {
				t.Errorf("sent %s, want %s", got, c.want)
			}
		})
	}
	for name, want := range map[string]string{
		"Next":  "INSERT PROGRESS, SELECT PROGRESS, UPDATE PROGRESS",
		"Ahead": "INSERT PROGRESS, SELECT PROGRESS",
		"Set":   "INSERT PROGRESS, UPDATE PROGRESS",
		"Read":  "SELECT PROGRESS",
	} {
		t.Run(name, func(t *testing.T) {
			r, db, store := recording(t)
			r.answer = func(string, []driver.NamedValue) [][]driver.Value { return [][]driver.Value{{int64(3)}} }
			reviser := store.(dialect.Reviser)
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			at := dialect.Revision{Key: "b", KeyHash: 2, Number: 4}
			switch name {
			case "Read":
				_, err = reviser.Progress(t.Context(), db, "me", at)
			case "Set":
				err = reviser.SetProgress(t.Context(), tx, "me", at)
			default:
				if name == "Ahead" {
					at.Number++
				}
				_, err = reviser.Advance(t.Context(), tx, "me", at)
			}
			if err != nil {
				t.Fatal(err)
			}
			_ = tx.Rollback()
			r.check(t)
			if got := r.kinds(); got != want {
				t.Errorf("sent %s, want %s", got, want)
			}
		})
	}
}

// TestReviseUnseen refuses to go on without the row of the key, which the transaction's
// snapshot does not have and another transaction has made since.
func TestReviseUnseen(t *testing.T) {
	r, db, store := recording(t)
	r.answer, r.unseen = nil, true
	r.fail = func(text string) error {
		if strings.HasPrefix(text, "INSERT") {
			return network.NewOracleError(1)
		}
		return nil
	}
	reviser := store.(dialect.Reviser)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	at := dialect.Revision{Key: "b", KeyHash: 2, Number: 1}
	for name, do := range map[string]func() error{
		"Any": func() error {
			_, err := reviser.Revise(t.Context(), tx, make([]dialect.Message, 1), []dialect.Run{{Key: "b", KeyHash: 2, Messages: []int{0}}})
			return err
		},
		"First": func() error {
			_, err := reviser.Revise(t.Context(), tx, make([]dialect.Message, 1), []dialect.Run{{Key: "b", KeyHash: 2, First: 1, Messages: []int{0}}})
			return err
		},
		"Advance": func() error { _, err := reviser.Advance(t.Context(), tx, "me", at); return err },
		"Set":     func() error { return reviser.SetProgress(t.Context(), tx, "me", at) },
	} {
		if err := do(); oracle.New().Classify(err) != dialect.Conflict {
			t.Errorf("%s: %v", name, err)
		}
	}
	for kind := range strings.SplitSeq(r.kinds(), ", ") {
		if kind == "INSERT MESSAGE" {
			t.Error("a message was sent")
		}
	}
}

// kinds are the statements sent, but those that begin and end transactions.
func (r *recorder) kinds() string {
	var all []string
	for _, s := range r.sent {
		word, rest, _ := strings.Cut(s.text, " ")
		switch {
		case word == "BEGIN", word == "COMMIT", word == "ROLLBACK", word == "SET":
		case strings.HasPrefix(rest, `INTO "OUTBOX" `):
			all = append(all, word+" MESSAGE")
		case strings.Contains(rest, `"OUTBOX_REVISION"`):
			all = append(all, word+" REVISION")
		case strings.Contains(rest, `"OUTBOX_PROGRESS"`):
			all = append(all, word+" PROGRESS")
		default:
			all = append(all, s.text)
		}
	}
	return strings.Join(all, ", ")
}
