package sqlite_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strconv"
	"strings"
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
	// bare connections have nothing by which database/sql could keep one for another use.
	bare bool
	// slower is how much longer an ask takes than the connection is to wait.
	slower time.Duration
	// waits is the sum of what the asks were to wait, in milliseconds, once that was set.
	waits, wait atomic.Int64
	// begun, if it is not nil, is called when a transaction has begun, and ended tells
	// whether the transaction's context ended with that.
	begun func()
	ended atomic.Bool
	// wrote, if it is not nil, is called when a statement that is no PRAGMA was executed.
	wrote func()
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
	asks := askingConn{c.(fullConn), a}
	if a.bare {
		return bareConn{asks, asks, asks, asks, asks}, nil
	}
	return asks, nil
}

// bareConn hides what else a connection can do.
type bareConn struct {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
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
	c.of.waits.Add(c.of.wait.Load())
	time.Sleep(c.of.slower)
	tx, err := c.fullConn.BeginTx(ctx, opts)
	if err == nil && c.of.begun != nil {
		c.of.begun()
		c.of.ended.Store(ctx.Err() != nil)
	}
	return tx, err
}

func (c askingConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if ms, ok := strings.CutPrefix(query, "PRAGMA busy_timeout = "); ok {
		n, err := strconv.ParseInt(ms, 10, 64)
		if err != nil {
			return nil, err
		}
		c.of.wait.Store(n)
	}
	f := c.of.failing.Load()
	if f == nil || f.statement != query {
		result, err := c.fullConn.ExecContext(ctx, query, args)
		if err == nil && c.of.wrote != nil && !strings.HasPrefix(query, "PRAGMA") {
			c.of.wrote()
		}
		return result, err
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
	t.Run("no longer than it is to", func(t *testing.T) {
		e := fresh(t, 1)
		for _, tt := range []struct {
			patience string
			slower   time.Duration
			most     int64
		}{
			{"50", 0, 1}, {"51", 0, 2}, {"120", 0, 3}, {"300", 100 * time.Millisecond, 3}, {"0", 0, 1},
		} {
			db, a := e.asks(tt.patience)
			a.slower = tt.slower
			release, renewed := held(e, e.ctx, db)
			r := <-renewed
			release()
			if asked := a.asked.Load(); r.ok || sqlite.New().Classify(r.err) != dialect.Conflict || asked > tt.most {
				t.Errorf("%s ms: %+v, asked %d times", tt.patience, r, asked)
			}
			e.equal(strconv.Itoa(e.patience(db)), tt.patience, "patience")
			if patience, _ := strconv.ParseInt(tt.patience, 10, 64); a.waits.Load() > patience {
				t.Errorf("%s ms: waits for %d", tt.patience, a.waits.Load())
			}
		}
	})
	t.Run("until it is called off once written", func(t *testing.T) {
		e := fresh(t, 1)
		db, a := e.asks("600000")
		lease := e.claim(0)
		ctx, cancel := context.WithCancel(e.ctx)
		a.wrote = cancel
		if ok, err := e.store.Extend(ctx, db, lease, time.Minute); ok || !errors.Is(err, context.Canceled) {
			t.Errorf("%t, %v: committed for a caller that has gone", ok, err)
		}
		a.wrote = nil
		e.must2(e.store.Extend(e.ctx, db, lease, time.Minute))
	})
	// Behind a driver that cannot tell whether its connections are usable, database/sql
	// closes one whose transaction's context ended.
	t.Run("until it is called off once begun", func(t *testing.T) {
		e := fresh(t, 1)
		db, a := e.asks("600000")
		a.bare = true
		lease := e.claim(0)
		for range 100 {
			ctx, cancel := context.WithCancel(e.ctx)
			a.begun = cancel
			if ok, err := e.store.Extend(ctx, db, lease, time.Minute); ok || !errors.Is(err, context.Canceled) || errors.Is(err, sql.ErrConnDone) {
				t.Fatalf("%t, %v", ok, err)
			}
			if a.ended.Load() {
				t.Fatal("database/sql ends the transaction while its connection is in use")
			}
		}
		a.begun = nil
		e.equal(e.patience(db), 600000, "patience of the pool's next connection")
		e.must2(e.store.Extend(e.ctx, db, lease, time.Minute))
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
