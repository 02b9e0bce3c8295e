package sqlite_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/sqlite"
)

// asking counts how often its connections ask for the file, and can have one statement fail.
type asking struct {
	driver  driver.Driver
	path    string
	asked   atomic.Int64
	failing atomic.Pointer[failing]
}

// failing is a statement that fails, though it may have been executed.
type failing struct {
	statement string
	executed  bool
}

func (a *asking) Driver() driver.Driver { return a.driver }

func (a *asking) Connect(context.Context) (driver.Conn, error) {
	c, err := a.driver.Open(a.path)
	if err != nil {
		return nil, err
	}
	return askingConn{c.(fullConn), a}, nil
}

// fullConn is what database/sql looks for in a connection.
type fullConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.SessionResetter
	driver.Validator
}

type askingConn struct {
	fullConn
	of *asking
}

func (c askingConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	c.of.asked.Add(1)
	return c.fullConn.BeginTx(ctx, opts)
}

func (c askingConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	f := c.of.failing.Load()
	if f == nil || f.statement != query {
		return c.fullConn.ExecContext(ctx, query, args)
	}
	if f.executed {
		if _, err := c.fullConn.ExecContext(ctx, query, args); err != nil {
			return nil, err
		}
	}
	return nil, errors.New("made to fail")
}

// asks is a pool of one connection to e's file that waits so long for writers.
func (e *env) asks(patience string) (*sql.DB, *asking) {
	e.Helper()
	a := &asking{driver: e.db.Driver(), path: e.path + "?_txlock=immediate&_busy_timeout=" + patience}
	db := sql.OpenDB(a)
	db.SetMaxOpenConns(1)
	e.Cleanup(func() { _ = db.Close() })
	return db, a
}

// patience is how long a connection of a pool waits for writers, in milliseconds.
func (e *env) patience(db *sql.DB) (ms int) {
	e.Helper()
	e.must(db.QueryRowContext(context.WithoutCancel(e.ctx), "PRAGMA busy_timeout").Scan(&ms))
	return ms
}

// Who waits for the file asks anew instead of ever more seldom, for as long as the
// connection is to wait, which it is when the wait is over.
func TestWritesAskAnew(t *testing.T) {
	// held starts a renewal on db while another transaction writes.
	held := func(e *env, ctx context.Context, db *sql.DB) (release func(), renewed chan outcome) {
		lease := e.claim(0)
		writer, err := e.db.BeginTx(e.ctx, nil)
		e.must(err)
		renewed = make(chan outcome, 1)
		go func() {
			ok, err := e.store.Extend(ctx, db, lease, time.Minute)
			renewed <- outcome{ok, err}
		}()
		return func() { _ = writer.Rollback() }, renewed
	}
	t.Run("until it is free", func(t *testing.T) {
		e := fresh(t, 1)
		db, a := e.asks("600000")
		release, renewed := held(e, e.ctx, db)
		e.await(func() bool { return a.asked.Load() >= 3 })
		release()
		e.equal(<-renewed, outcome{true, nil}, "renewal")
		e.equal(e.patience(db), 600000, "patience")
	})
	t.Run("until patience ends", func(t *testing.T) {
		e := fresh(t, 1)
		db, a := e.asks("200")
		release, renewed := held(e, e.ctx, db)
		defer release()
		if r := <-renewed; r.ok || sqlite.New().Classify(r.err) != dialect.Conflict || a.asked.Load() < 2 {
			t.Errorf("%+v, asked %d times", r, a.asked.Load())
		}
		e.equal(e.patience(db), 200, "patience")
	})
	t.Run("until it is called off", func(t *testing.T) {
		e := fresh(t, 1)
		db, a := e.asks("600000")
		ctx, cancel := context.WithCancel(e.ctx)
		release, renewed := held(e, ctx, db)
		defer release()
		e.await(func() bool { return a.asked.Load() >= 2 })
		cancel()
		if r := <-renewed; r.ok || !errors.Is(r.err, context.Canceled) {
			t.Errorf("%+v", r)
		}
		e.equal(e.patience(db), 600000, "patience")
	})
	for name, f := range map[string]failing{
		"with a patience that cannot be set":      {"PRAGMA busy_timeout = 50", false},
		"with a patience that is set and fails":   {"PRAGMA busy_timeout = 50", true},
		"with a patience that cannot be set back": {"PRAGMA busy_timeout = 600000", false},
	} {
		t.Run(name, func(t *testing.T) {
			e := fresh(t, 1)
			db, a := e.asks("600000")
			lease := e.claim(0)
			a.failing.Store(&f)
			if ok, err := e.store.Extend(e.ctx, db, lease, time.Minute); ok || err == nil {
				t.Errorf("%t, %v", ok, err)
			}
			a.failing.Store(nil)
			e.equal(e.patience(db), 600000, "patience of the pool's next connection")
			e.must2(e.store.Extend(e.ctx, db, lease, time.Minute))
		})
	}
}
