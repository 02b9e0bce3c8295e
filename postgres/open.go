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
	return errors.New("dsn cannot be parsed: write it as postgres://user:password@host:port/database?option=value, " +
		"with special characters percent-encoded, or as key=value pairs")
}

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
