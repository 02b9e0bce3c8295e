package engine

import (
	"context"
	"database/sql"
	_ "embed" // for the schema
	"errors"
	"fmt"
	"strings"

	"github.com/outbox-suite/outbox/dialect"
)

//go:embed schema.sql
var schemaSQL string

// now is the database's time in microseconds. Within a statement it is the same
// wherever it stands.
const now = "(CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)"

// store is the dialect bound to its tables.
type store struct {
	tables dialect.Tables
	sql    statements
}

func newStore(tables dialect.Tables) *store {
	return &store{tables: tables, sql: render(func(text string) string {
		// {now} goes first: a name that looks like it must stay a name.
		return dialect.Expand(strings.ReplaceAll(text, "{now}", now), tables, quote)
	})}
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// write runs do in a transaction of its own.
func write(ctx context.Context, db dialect.DB, do func(tx *sql.Tx) error) error {
	// Serializable is what the driver begins at once as a writer, whatever the pool was
	// opened with.
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// affected is how many rows a statement changed.
func affected(res sql.Result, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	return int(n), err
}

// Steps implements [dialect.Schema].
func (s *store) Steps() []dialect.Step {
	return []dialect.Step{{Version: 1, Name: "the six tables", SQL: s.sql.schema}}
}

// Migrate implements [dialect.Schema]. Of processes that start at once the first one to
// get the lock makes the tables, and the others find them.
func (s *store) Migrate(ctx context.Context, db dialect.DB) (applied []int, err error) {
	err = write(ctx, db, func(tx *sql.Tx) error {
		var there bool
		if err := tx.QueryRowContext(ctx, s.sql.tableThere, s.tables.Prefix+"_meta").Scan(&there); err != nil {
			return err
		}
		if there {
			var version, lanes int
			err := tx.QueryRowContext(ctx, s.sql.meta).Scan(&version, &lanes)
			if err == nil && lanes != s.tables.Lanes {
				err = &dialect.LanesError{Schema: lanes, Set: s.tables.Lanes}
			}
			return err
		}
		if _, err := tx.ExecContext(ctx, s.sql.schema); err != nil {
			return err
		}
		applied = []int{1}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return applied, nil
}

// Inspect implements [dialect.Schema].
func (s *store) Inspect(ctx context.Context, db dialect.DB) (dialect.Inspection, error) {
	var in dialect.Inspection
	if err := db.QueryRowContext(ctx, "SELECT 'SQLite ' || sqlite_version()").Scan(&in.Server); err != nil {
		return in, err
	}
	err := db.QueryRowContext(ctx, s.sql.meta).Scan(&in.Version, &in.Lanes)
	switch {
	case engine{}.Classify(err) == dialect.Missing:
		return in, nil // not migrated yet
	case errors.Is(err, sql.ErrNoRows):
		in.Problems = append(in.Problems, "the meta table is empty: restore its row")
		return in, nil
	case err != nil:
		return in, err
	}
	lanes := -1
	for _, suffix := range []string{"", "_parked", "_done", "_lane", "_inbox"} {
		var there bool
		name := s.tables.Prefix + suffix
		if err := db.QueryRowContext(ctx, s.sql.tableThere, name).Scan(&there); err != nil {
			return in, err
		}
		if !there {
			in.Problems = append(in.Problems, fmt.Sprintf("table %s is missing: restore it from a backup or make it as the schema says", name))
		} else if suffix == "_lane" {
			if err := db.QueryRowContext(ctx, s.sql.countLanes).Scan(&lanes); err != nil {
				return in, err
			}
		}
	}
	if lanes >= 0 && lanes != in.Lanes {
		in.Problems = append(in.Problems, fmt.Sprintf("%d of %d lanes are there: insert the rows that are missing", lanes, in.Lanes))
	}
	return in, nil
}
