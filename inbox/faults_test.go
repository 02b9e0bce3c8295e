package inbox_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"
	"testing"

	"github.com/outbox-suite/outbox/dialect"
)

var (
	errUnknown  = errors.New("connection broke during commit")
	errConflict = errors.New("deadlock")
)

// faultyDialect knows the errors above beside the engine's own, and calls read
// after every reading back.
type faultyDialect struct {
	dialect.Dialect
	read func()
}

func (d faultyDialect) Classify(err error) dialect.Class {
	switch {
	case errors.Is(err, errUnknown):
		return dialect.OutcomeUnknown
	case errors.Is(err, errConflict):
		return dialect.Conflict
	}
	return d.Dialect.Classify(err)
}

func (d faultyDialect) Bind(tables dialect.Tables) (dialect.Store, error) {
	store, err := d.Dialect.Bind(tables)
	reviser, _ := store.(dialect.Reviser)
	return faultyStore{store, reviser, d.read}, err
}

type faultyStore struct {
	dialect.Store
	dialect.Reviser
	read func()
}

func (s faultyStore) Recorded(ctx context.Context, db dialect.DB, consumer, messageID string) (bool, error) {
	recorded, err := s.Store.Recorded(ctx, db, consumer, messageID)
	if s.read != nil {
		s.read()
	}
	return recorded, err
}

func (s faultyStore) Progress(ctx context.Context, db dialect.DB, consumer string, at dialect.Revision) (int64, error) {
	last, err := s.Reviser.Progress(ctx, db, consumer, at)
	if s.read != nil {
		s.read()
	}
	return last, err
}

// commits decides what becomes of commits, by the order of the calls. Each answer
// is lost on the way.
type commits struct {
	connect func() (driver.Conn, error)
	during  func() // called in a commit that is not fine

	mu   sync.Mutex
	plan []fate
	late []driver.Tx // commits that have not reached the server yet
}

type fate int

const (
	fine    fate = iota
	applied      // the server committed
	undone       // the server rolled back
	delayed      // the server has not got it yet
)

// open returns a pool whose commits meet the fates, and then are fine.
func (c *commits) open(t *testing.T) *sql.DB {
	t.Helper()
	db := sql.OpenDB(c)
	t.Cleanup(func() {
		c.arrive(t)
		db.Close()
	})
	return db
}

// arrive lets the delayed commits reach the server.
func (c *commits) arrive(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, tx := range c.late {
		if err := tx.Commit(); err != nil {
			t.Errorf("late commit: %v", err)
		}
	}
	c.late = nil
}

func (c *commits) Connect(context.Context) (driver.Conn, error) {
	conn, err := c.connect()
	if err != nil {
		return nil, err
	}
	return &faultyConn{Conn: conn, commits: c}, nil
}

func (c *commits) Driver() driver.Driver { return nil }

type faultyConn struct {
	driver.Conn
	commits *commits
	broken  bool
	open    bool // the server has a transaction that is still to commit
}

func (c *faultyConn) Begin() (driver.Tx, error) {
	tx, err := c.Conn.Begin() //nolint:staticcheck // the form every driver has
	return &faultyTx{tx, c}, err
}

// BeginTx implements [driver.ConnBeginTx], without which no isolation level but the
// session's could be asked for.
func (c *faultyConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	b, ok := c.Conn.(driver.ConnBeginTx)
	if !ok {
		return c.Begin()
	}
	tx, err := b.BeginTx(ctx, opts)
	return &faultyTx{tx, c}, err
}

// IsValid keeps a broken connection from going back to the pool.
func (c *faultyConn) IsValid() bool { return !c.broken }

func (c *faultyConn) Close() error {
	if c.open {
		return nil // the server does not know yet
	}
	return c.Conn.Close()
}

type faultyTx struct {
	driver.Tx
	conn *faultyConn
}

func (x *faultyTx) Commit() error {
	c := x.conn.commits
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.plan) == 0 {
		return x.Tx.Commit()
	}
	next := c.plan[0]
	c.plan = c.plan[1:]
	var err error
	switch next {
	case fine:
		return x.Tx.Commit()
	case applied:
		err = x.Tx.Commit()
	case undone:
		err = x.Rollback()
	case delayed:
		c.late = append(c.late, x.Tx)
		x.conn.open = true
	}
	x.conn.broken = true
	if c.during != nil {
		c.during()
	}
	return errors.Join(errUnknown, err)
}
