package mysql

import (
	"context"
	"database/sql"

	"github.com/outbox-suite/outbox/dialect"
)

// Statements that are a transaction by themselves, where begin and commit would be most
// of the work. They need one session to themselves, in case it has autocommit=0: then
// what they began is ended here, or a later user of the session would find it.

// alone runs do with one session, and rolls back what do has left open in it. ran is
// false when the pool cannot give one.
func alone(ctx context.Context, db dialect.DB, do func(c *sql.Conn) (ended bool, err error)) (ran bool, err error) {
	var c *sql.Conn
	switch db := db.(type) {
	case *sql.Conn:
		c = db
	case interface {
		Conn(ctx context.Context) (*sql.Conn, error)
	}:
		if c, err = db.Conn(ctx); err != nil {
			return true, err
		}
		defer func() { _ = c.Close() }()
	default:
		return false, nil
	}
	ended, err := do(c)
	if !ended {
		if _, undone := c.ExecContext(ctx, "ROLLBACK"); err == nil {
			err = undone
		}
	}
	return true, err
}

// write runs a statement that changes one row by itself and commits it. Its last insert
// id is twice a number, and one more where the session commits by itself. found is false
// when there was no such row, or another session had it locked.
func write(ctx context.Context, db dialect.DB, statement string, args ...any) (number int64, found bool, err error) {
	_, err = alone(ctx, db, func(c *sql.Conn) (bool, error) {
		result, err := c.ExecContext(ctx, statement, args...)
		if err != nil {
			return false, err
		}
		told, err := result.LastInsertId()
		if err != nil || told == 0 {
			return false, err
		}
		if told%2 == 0 {
			if _, err := c.ExecContext(ctx, "COMMIT"); err != nil {
				return false, err
			}
		}
		number, found = told/2, true
		return true, nil
	})
	return number, found, ended(ctx, err)
}

// look runs a statement that returns whether the session commits by itself and whether
// there is anything. nothing is true only when it says that there is not.
func look(ctx context.Context, db dialect.DB, statement string, args ...any) (nothing bool, err error) {
	_, err = alone(ctx, db, func(c *sql.Conn) (bool, error) {
		var autocommit, found bool
		switch err := c.QueryRowContext(ctx, statement, args...).Scan(&autocommit, &found); {
		case err == sql.ErrNoRows: //nolint:errorlint // as database/sql returns it
			return false, nil
		case err != nil:
			return false, err
		}
		nothing = autocommit && !found
		return autocommit, nil
	})
	return nothing, ended(ctx, err)
}
