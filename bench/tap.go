package bench

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"
	"sync/atomic"
)

// counter counts what a pool asks of its driver: statements, and the begins and ends
// of transactions, each of which is a round trip or more.
type counter struct {
	asked atomic.Int64
	// committing is called before each commit; nil: nobody looks.
	committing func()

	mu    sync.Mutex
	query string
	args  []any
}

// last returns the latest query and its arguments.
func (c *counter) last() (string, []any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.query, c.args
}

// tap returns a pool that reaches the database through db's connections, counting.
// Closing it does not close db.
func tap(db *sql.DB, c *counter) *sql.DB { return sql.OpenDB(&tapConnector{db, c}) }

type tapConnector struct {
	db *sql.DB
	c  *counter
}

// Connect implements [driver.Connector].
func (t *tapConnector) Connect(ctx context.Context) (driver.Conn, error) {
	owner, err := t.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	tc := &tapConn{owner: owner, c: t.c}
	// The connection stays taken from its pool until the tap closes it, so nobody
	// else uses it meanwhile.
	err = owner.Raw(func(dc any) error {
		tc.Conn = dc.(driver.Conn) //nolint:forcetypeassert // what Raw is documented to hand out
		return nil
	})
	if err != nil {
		_ = owner.Close()
		return nil, err
	}
	return tc, nil
}

// Driver implements [driver.Connector].
func (t *tapConnector) Driver() driver.Driver { return t.db.Driver() }

type tapConn struct {
	driver.Conn
	owner *sql.Conn
	c     *counter
}

// Raw is the connection below, for engines that need their driver's own.
func (t *tapConn) Raw() driver.Conn { return t.Conn }

// Close implements [driver.Conn]: it closes the connection for good.
func (t *tapConn) Close() error {
	_ = t.owner.Raw(func(any) error { return driver.ErrBadConn })
	if err := t.owner.Close(); err != nil && !errors.Is(err, sql.ErrConnDone) {
		return err
	}
	return nil
}

// BeginTx implements [driver.ConnBeginTx].
func (t *tapConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	t.c.asked.Add(1)
	b, ok := t.Conn.(driver.ConnBeginTx)
	if !ok {
		return nil, errors.New("the driver has no BeginTx")
	}
	tx, err := b.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	return tapTx{tx, t.c}, nil
}

type tapTx struct {
	driver.Tx
	c *counter
}

// Commit implements [driver.Tx].
func (t tapTx) Commit() error {
	t.c.asked.Add(1)
	if t.c.committing != nil {
		t.c.committing()
	}
	return t.Tx.Commit()
}

// Rollback implements [driver.Tx].
func (t tapTx) Rollback() error {
	t.c.asked.Add(1)
	return t.Tx.Rollback()
}

// PrepareContext implements [driver.ConnPrepareContext]. What is prepared is run
// once by database/sql, which makes two round trips.
func (t *tapConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	t.c.asked.Add(2)
	if p, ok := t.Conn.(driver.ConnPrepareContext); ok {
		return p.PrepareContext(ctx, query)
	}
	return t.Prepare(query)
}

// ExecContext implements [driver.ExecerContext].
func (t *tapConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	e, ok := t.Conn.(driver.ExecerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	res, err := e.ExecContext(ctx, query, args)
	if !errors.Is(err, driver.ErrSkip) {
		t.c.asked.Add(1)
	}
	return res, err
}

// QueryContext implements [driver.QueryerContext].
func (t *tapConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	q, ok := t.Conn.(driver.QueryerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	values := make([]any, len(args))
	for i, a := range args {
		values[i] = a.Value
	}
	t.c.mu.Lock()
	t.c.query, t.c.args = query, values
	t.c.mu.Unlock()
	rows, err := q.QueryContext(ctx, query, args)
	if !errors.Is(err, driver.ErrSkip) {
		t.c.asked.Add(1)
	}
	return rows, err
}

// CheckNamedValue implements [driver.NamedValueChecker].
func (t *tapConn) CheckNamedValue(v *driver.NamedValue) error {
	if n, ok := t.Conn.(driver.NamedValueChecker); ok {
		return n.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

// ResetSession implements [driver.SessionResetter].
func (t *tapConn) ResetSession(ctx context.Context) error {
	if r, ok := t.Conn.(driver.SessionResetter); ok {
		return r.ResetSession(ctx)
	}
	return nil
}

// IsValid implements [driver.Validator].
func (t *tapConn) IsValid() bool {
	if v, ok := t.Conn.(driver.Validator); ok {
		return v.IsValid()
	}
	return true
}
