package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"

	"github.com/outbox-suite/outbox/dialect"
)

// Statements that are a transaction by themselves, where begin and commit would be most
// of the work. They need one session to themselves, in case it has autocommit=0: then
// what they began is ended here, or a later user of the session would find it.

// session is one session of the pool, and how to give it back; nil when db can give none.
func session(ctx context.Context, db dialect.DB) (c *sql.Conn, back func(), err error) {
	switch db := db.(type) {
	case *sql.Conn:
		return db, func() {}, nil
	case interface {
		Conn(ctx context.Context) (*sql.Conn, error)
	}:
		if c, err = db.Conn(ctx); err != nil {
			return nil, nil, err
		}
		return c, func() { _ = c.Close() }, nil
	}
	return nil, nil, nil
}

// endBy ends what a session has begun, or the session where that fails: with a context
// that has ended nothing is sent, and the pool would hand the open transaction on.
func endBy(ctx context.Context, c *sql.Conn, statement string) error {
	_, err := c.ExecContext(ctx, statement)
	if err != nil {
		_ = c.Raw(func(any) error { return driver.ErrBadConn })
	}
	return err
}

// executor runs a statement in a session or in a transaction.
type executor interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// told runs a statement and returns its last insert id.
func told(ctx context.Context, e executor, statement string, args ...any) (int64, error) {
	result, err := e.ExecContext(ctx, statement, args...)
	if err != nil {
		return 0, err
	}
	return result.LastInsertId()
}

// write runs a statement that changes one row, and commits it. Its last insert id is 0
// when there was no such row or another session had it locked, and otherwise odd where the
// session commits by itself. found is false when it is 0.
func write(ctx context.Context, db dialect.DB, statement string, args ...any) (found bool, err error) {
	var id int64
	ran, err := alone(ctx, db, func(c *sql.Conn) (ended bool, err error) {
		if id, err = told(ctx, c, statement, args...); err != nil || id == 0 {
			return false, err // not to know whether anything was begun
		}
		if id%2 == 0 {
			err = endBy(ctx, c, "COMMIT")
		}
		return true, err
	})
	if ran || err != nil {
		return err == nil && id != 0, err
	}
	return inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
		id, err := told(ctx, tx, statement, args...)
		return id != 0, err
	})
}

// alone runs do with one session, outside a transaction, and rolls back what do has begun
// unless it reports that nothing is open. ran is false when db can give no session.
func alone(ctx context.Context, db dialect.DB, do func(c *sql.Conn) (ended bool, err error)) (ran bool, err error) {
	c, back, err := session(ctx, db)
	if c == nil || err != nil {
		return false, err
	}
	defer back()
	over, err := do(c)
	if !over {
		if failed := endBy(ctx, c, "ROLLBACK"); err == nil {
			err = failed
		}
	}
	return true, ended(ctx, err)
}
