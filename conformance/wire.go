package conformance

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
)

// statement is one step on a connection.
type statement struct {
	// ctx is the statement's, or for a commit and a rollback the transaction's.
	ctx context.Context //nolint:containedctx // of this statement
	// kind is begin, exec, query, commit or rollback.
	kind string
	args []driver.NamedValue
	// inTx tells that a transaction is open on the connection.
	inTx bool
}

// wire is called around the statements of a pool, from many goroutines. before
// returning an error keeps the statement from being done; after says what the
// caller gets. An error of theirs stands for a lost connection: the pool closes
// it, and the server undoes what was open.
type wire struct {
	before func(s statement) error
	after  func(s statement, err error) error
}

// tap returns a pool that reaches the database through db's connections, with
// w around every statement. Closing it does not close db.
func tap(db *sql.DB, w wire) *sql.DB {
	return sql.OpenDB(&tapConnector{db, w})
}

type tapConnector struct {
	db   *sql.DB
	wire wire
}

// Connect implements [driver.Connector].
func (c *tapConnector) Connect(ctx context.Context) (driver.Conn, error) {
	owner, err := c.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	tc := &tapConn{owner: owner, wire: c.wire}
	// The connection stays taken from its pool until the tap closes it, so
	// nobody else uses it meanwhile.
	err = owner.Raw(func(dc any) error {
		tc.conn = dc.(driver.Conn) //nolint:forcetypeassert // what Raw is documented to hand out
		return nil
	})
	if err != nil {
		_ = owner.Close()
		return nil, err
	}
	return tc, nil
}

// Driver implements [driver.Connector].
func (c *tapConnector) Driver() driver.Driver { return c.db.Driver() }

// tapConn is a connection with a wire around it. Like every driver.Conn it is
// used by one goroutine at a time.
type tapConn struct {
	owner *sql.Conn
	conn  driver.Conn
	wire  wire
	lost  bool            // the wire has failed a statement
	tx    context.Context //nolint:containedctx // the open transaction's, which Commit is not given
}

// Raw is the connection below, for engines that need their driver's own.
func (c *tapConn) Raw() driver.Conn { return c.conn }

func (c *tapConn) step(s statement, do func() error) error {
	s.inTx = c.tx != nil
	if c.wire.before != nil {
		if err := c.wire.before(s); err != nil {
			c.lost = true
			return err
		}
	}
	err := do()
	if c.wire.after != nil && !errors.Is(err, driver.ErrSkip) {
		told := c.wire.after(s, err)
		c.lost = c.lost || (err == nil && told != nil)
		err = told
	}
	return err
}

// Close implements [driver.Conn]: it closes the connection for good.
func (c *tapConn) Close() error {
	_ = c.owner.Raw(func(any) error { return driver.ErrBadConn })
	if err := c.owner.Close(); err != nil && !errors.Is(err, sql.ErrConnDone) {
		return err
	}
	return nil
}

// Begin implements [driver.Conn].
func (c *tapConn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

// BeginTx implements [driver.ConnBeginTx].
func (c *tapConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	var tx driver.Tx
	begun := false // a driver's tx beside an error may be a nil pointer, which is not nil here
	err := c.step(statement{ctx: ctx, kind: "begin"}, func() (err error) {
		if b, ok := c.conn.(driver.ConnBeginTx); ok {
			tx, err = b.BeginTx(ctx, opts)
		} else {
			tx, err = c.conn.Begin() //nolint:staticcheck // the only way such a driver has
		}
		begun = err == nil
		return err
	})
	if err != nil {
		if begun {
			_ = tx.Rollback()
		}
		return nil, err
	}
	c.tx = ctx
	return &tapTx{c, tx}, nil
}

type tapTx struct {
	c  *tapConn
	tx driver.Tx
}

// Commit implements [driver.Tx].
func (t *tapTx) Commit() error {
	defer func() { t.c.tx = nil }()
	return t.c.step(statement{ctx: t.c.tx, kind: "commit"}, t.tx.Commit)
}

// Rollback implements [driver.Tx].
func (t *tapTx) Rollback() error {
	defer func() { t.c.tx = nil }()
	return t.c.step(statement{ctx: t.c.tx, kind: "rollback"}, t.tx.Rollback)
}

// Prepare implements [driver.Conn].
func (c *tapConn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

// PrepareContext implements [driver.ConnPrepareContext].
func (c *tapConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	var stmt driver.Stmt
	var err error
	if p, ok := c.conn.(driver.ConnPrepareContext); ok {
		stmt, err = p.PrepareContext(ctx, query)
	} else {
		stmt, err = c.conn.Prepare(query)
	}
	if err != nil {
		return nil, err
	}
	return &tapStmt{stmt, c}, nil
}

// tapStmt is a prepared statement: with some drivers every one that has arguments.
type tapStmt struct {
	driver.Stmt
	c *tapConn
}

// ExecContext implements [driver.StmtExecContext].
func (s *tapStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (res driver.Result, err error) {
	err = s.c.step(statement{ctx: ctx, kind: "exec", args: args}, func() (err error) {
		if e, ok := s.Stmt.(driver.StmtExecContext); ok {
			res, err = e.ExecContext(ctx, args)
		} else {
			res, err = s.Exec(values(args))
		}
		return err
	})
	return res, err
}

// QueryContext implements [driver.StmtQueryContext].
func (s *tapStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (rows driver.Rows, err error) {
	err = s.c.step(statement{ctx: ctx, kind: "query", args: args}, func() (err error) {
		if q, ok := s.Stmt.(driver.StmtQueryContext); ok {
			rows, err = q.QueryContext(ctx, args)
		} else {
			rows, err = s.Query(values(args))
		}
		return err
	})
	if err != nil && rows != nil {
		_ = rows.Close()
		rows = nil
	}
	return rows, err
}

// CheckNamedValue implements [driver.NamedValueChecker].
func (s *tapStmt) CheckNamedValue(v *driver.NamedValue) error {
	if n, ok := s.Stmt.(driver.NamedValueChecker); ok {
		return n.CheckNamedValue(v)
	}
	return s.c.CheckNamedValue(v)
}

func values(args []driver.NamedValue) []driver.Value {
	list := make([]driver.Value, len(args))
	for i, a := range args {
		list[i] = a.Value
	}
	return list
}

// ExecContext implements [driver.ExecerContext].
func (c *tapConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (res driver.Result, err error) {
	e, ok := c.conn.(driver.ExecerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	err = c.step(statement{ctx: ctx, kind: "exec", args: args}, func() (err error) {
		res, err = e.ExecContext(ctx, query, args)
		return err
	})
	return res, err
}

// QueryContext implements [driver.QueryerContext].
func (c *tapConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (rows driver.Rows, err error) {
	q, ok := c.conn.(driver.QueryerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	err = c.step(statement{ctx: ctx, kind: "query", args: args}, func() (err error) {
		rows, err = q.QueryContext(ctx, query, args)
		return err
	})
	if err != nil && rows != nil {
		_ = rows.Close()
		rows = nil
	}
	return rows, err
}

// CheckNamedValue implements [driver.NamedValueChecker].
func (c *tapConn) CheckNamedValue(v *driver.NamedValue) error {
	if n, ok := c.conn.(driver.NamedValueChecker); ok {
		return n.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

// Ping implements [driver.Pinger].
func (c *tapConn) Ping(ctx context.Context) error {
	if p, ok := c.conn.(driver.Pinger); ok {
		return p.Ping(ctx)
	}
	return nil
}

// ResetSession implements [driver.SessionResetter].
func (c *tapConn) ResetSession(ctx context.Context) error {
	if r, ok := c.conn.(driver.SessionResetter); ok {
		return r.ResetSession(ctx)
	}
	return nil
}

// IsValid implements [driver.Validator].
func (c *tapConn) IsValid() bool {
	if c.lost {
		return false
	}
	if v, ok := c.conn.(driver.Validator); ok {
		return v.IsValid()
	}
	return true
}
