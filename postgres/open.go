package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/internal/redact"
)

// Open returns a pool for a DSN in either of libpq's forms, a URL or
// key=value pairs, with all that pgx reads from it and from the environment.
// Like [sql.Open] it does not connect.
//
// What the DSN leaves open gets a value fit for a relay: an application name
// (the one setting poolers always let through), a bound on the time to connect,
// and idle connections enough for a relay's workers. No other session setting
// is sent, because a pooler may refuse it. An error never shows the DSN, which
// may hold a password.
func Open(dsn string) (*sql.DB, error) {
	if redact.Torn(dsn) {
		return nil, errDSN
	}
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, parseError(err)
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "outbox"
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = 10 * time.Second
	}
	db := stdlib.OpenDB(*config)
	db.SetMaxIdleConns(16)
	db.SetConnMaxIdleTime(5 * time.Minute)
	return db, nil
}

// parseError reduces pgx's error to what cannot hold a part of the DSN. pgx
// masks passwords as well as the text allows, and says itself that a malformed
// one may not; its error value keeps the DSN as it was.
func parseError(err error) error {
	if parse := new(pgconn.ParseConfigError); errors.As(err, &parse) {
		if _, tls, ok := strings.Cut(err.Error(), "failed to configure TLS"); ok {
			return fmt.Errorf("dsn: TLS cannot be configured%s", tls)
		}
	}
	return errDSN
}

// errDSN stands for all errors about a DSN that might quote it.
var errDSN = errors.New("dsn cannot be parsed: write it as postgres://user:password@host:port/database?option=value, " +
	"with special characters percent-encoded")

// Tx makes a transaction of pgx itself usable for what takes the caller's
// transaction: enqueueing, and recording in the inbox. It commits and rolls
// back nothing.
func Tx(tx pgx.Tx) dialect.Tx { return nativeTx{tx} }

type nativeTx struct{ tx pgx.Tx }

// ExecContext runs the statement in the transaction.
func (t nativeTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tag, err := t.tx.Exec(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return driver.RowsAffected(tag.RowsAffected()), nil
}

var errCallersTx = errors.New("the transaction is the caller's: end it on the pgx.Tx itself")

// Commit refuses: the transaction is the caller's.
func (nativeTx) Commit() error { return errCallersTx }

// Rollback refuses: the transaction is the caller's.
func (nativeTx) Rollback() error { return errCallersTx }

// InTx runs a business transaction on a connection of pgx and sends what is enqueued
// together with the COMMIT, so that it costs no round trip of its own:
//
//	err := postgres.InTx(ctx, conn, func(tx pgx.Tx, last dialect.Tx) error {
//		if _, err := tx.Exec(ctx, "INSERT INTO orders ..."); err != nil {
//			return err
//		}
//		_, err := box.Enqueue(ctx, last, message)
//		return err
//	})
//
// What is enqueued in last is written behind all that do did in tx, whatever their
// order was, and its errors come from InTx: [Dialect.Classify] says of that of a
// duplicate id that it is one. Last takes statements whose outcome nobody asks for:
// the inbox, which has to know, refuses it. When do returns an error or panics, or
// anything fails, all is rolled back; do ends the transaction on its own as little as
// any other does. When the context or the connection ends while the COMMIT is under
// way, the outcome is unknown. InTx is as safe for concurrent use as the connection is:
// one at a time. Afterwards call Wake on the outbox, as after any commit.
func InTx(ctx context.Context, conn *pgx.Conn, do func(tx pgx.Tx, last dialect.Tx) error) (err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if conn.IsClosed() || conn.PgConn().TxStatus() == 'I' {
			return
		}
		ended, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if undone := tx.Rollback(ended); err == nil && undone != nil {
			err = undone
		}
	}()
	var last deferred
	if err := do(tx, &last); err != nil {
		return err
	}
	last.batch.Queue("COMMIT")
	sent := conn.SendBatch(ctx, &last.batch)
	var tag pgconn.CommandTag
	for range last.batch.Len() {
		if tag, err = sent.Exec(); err != nil {
			_ = sent.Close() // what went wrong is known
			return hint(err)
		}
	}
	if err := sent.Close(); err != nil {
		return hint(err)
	}
	if tag.String() != "COMMIT" {
		return pgx.ErrTxCommitRollback // do went on behind an error
	}
	return nil
}

// deferred is a transaction whose statements run with the commit.
type deferred struct{ batch pgx.Batch }

// ExecContext puts the statement off.
func (d *deferred) ExecContext(_ context.Context, query string, args ...any) (sql.Result, error) {
	d.batch.Queue(query, args...)
	return later{}, nil
}

// Commit refuses: the transaction is InTx's.
func (*deferred) Commit() error { return errCallersTx }

// Rollback refuses: the transaction is InTx's.
func (*deferred) Rollback() error { return errCallersTx }

// later is the result of a statement that has not run yet.
type later struct{}

var errLater = errors.New("the statement runs with the commit, and its outcome is asked for before: use the transaction itself")

func (later) LastInsertId() (int64, error) { return 0, errLater }
func (later) RowsAffected() (int64, error) { return 0, errLater }

// native is pgx's connection beneath a driver connection.
func native(driverConn any) (*pgx.Conn, error) {
	for {
		switch c := driverConn.(type) {
		case *stdlib.Conn:
			return c.Conn(), nil
		case interface{ Raw() driver.Conn }: // a tracing wrapper
			driverConn = c.Raw()
		default:
			return nil, fmt.Errorf("connection is a %T: open the pool through pgx's stdlib to listen", driverConn)
		}
	}
}
