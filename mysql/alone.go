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

// write runs a statement that changes one row, and commits it. Its last insert id is
// twice a number, and one more where the session commits by itself. found is false when
// there was no such row, or another session had it locked.
func write(ctx context.Context, db dialect.DB, statement string, args ...any) (number int64, found bool, err error) {
	c, back, err := session(ctx, db)
	if err != nil {
		return 0, false, err
	}
	var id int64
	if c == nil {
		found, err = inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
			id, err = told(ctx, tx, statement, args...)
			return id != 0, err
		})
		return id / 2, found, err
	}
	defer back()
	id, err = told(ctx, c, statement, args...)
	end := ""
	switch {
	case err != nil || id == 0:
		end = "ROLLBACK" // not to know whether it matters
	case id%2 == 0:
		end = "COMMIT"
	}
	if end != "" {
		if failed := endBy(ctx, c, end); err == nil {
			err = failed
		}
	}
	return id / 2, err == nil && id != 0, ended(ctx, err)
}

// alone runs do with one session, outside a transaction, and ends what do has begun where
// the session does not commit by itself, which do reports. ran is false when db can give
// no session.
func alone(ctx context.Context, db dialect.DB, do func(c *sql.Conn) (autocommit bool, err error)) (ran bool, err error) {
	c, back, err := session(ctx, db)
	if c == nil || err != nil {
		return false, err
	}
	defer back()
	autocommit, err := do(c)
	if !autocommit {
		if failed := endBy(ctx, c, "ROLLBACK"); err == nil {
			err = failed
		}
	}
	return true, ended(ctx, err)
}
