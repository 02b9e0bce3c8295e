package sqlserver

import (
	"database/sql"
	"errors"
	"strings"
	"time"

	mssql "github.com/microsoft/go-mssqldb"
	"github.com/microsoft/go-mssqldb/msdsn"

	"github.com/outbox-suite/outbox/internal/redact"
)

// sessionSQL is what Open's sessions are set to, before each use of a connection. What
// waits for a lock gives up before a lease ends. An error, and the end of a context,
// undo the whole transaction on the server at once, so that its locks are gone even if
// the client is, too.
const sessionSQL = `SET LOCK_TIMEOUT 10000; SET XACT_ABORT ON`

// Open returns a pool for a DSN in any form of the driver: a URL,
// sqlserver://user:password@host:port?database=name&option=value, with special
// characters percent-encoded, or key=value pairs separated by semicolons. Like
// [sql.Open] it does not connect.
//
// What the DSN leaves open gets a value fit for a relay. The driver encrypts nothing but
// the login, and checks no certificate, when encrypt is not given; here encrypt=true is
// the default, which wants a certificate that the client trusts and that names the host.
// A server with a certificate of its own making takes trustservercertificate=true beside
// it, which anybody between could abuse. Sessions wait for a lock for 10 seconds and have
// XACT_ABORT ON, and the pool keeps idle connections enough for a relay's workers. An
// error never shows the DSN, which may hold a password.
func Open(dsn string) (*sql.DB, error) {
	config, err := parse(dsn)
	if err != nil {
		return nil, err
	}
	connector := mssql.NewConnectorConfig(config)
	connector.SessionInitSQL = sessionSQL
	db := sql.OpenDB(connector)
	db.SetMaxIdleConns(16)
	db.SetConnMaxIdleTime(5 * time.Minute)
	return db, nil
}

// errDSN stands for all the driver's errors about a DSN, some of which quote it.
var errDSN = errors.New("dsn cannot be parsed: write it as sqlserver://user:password@host:port?database=name&option=value, " +
	"with special characters percent-encoded, with the options of go-mssqldb")

// parse reads a DSN and adds encrypt=true where it says nothing of that. Settings in
// another case are the same to the driver, and twice the same an error.
func parse(dsn string) (msdsn.Config, error) {
	config, err := msdsn.Parse(dsn)
	if err != nil || redact.Torn(dsn) {
		return config, errDSN
	}
	if config.Host == "" {
		return config, errDSN
	}
	if _, given := config.Parameters[msdsn.Encrypt]; given {
		return config, nil
	}
	config, err = msdsn.Parse(encrypted(dsn))
	if _, given := config.Parameters[msdsn.Encrypt]; err != nil || !given {
		return config, errDSN
	}
	return config, nil
}

// encrypted is the DSN with encrypt=true.
func encrypted(dsn string) string {
	if !strings.HasPrefix(dsn, "sqlserver://") {
		return strings.TrimRight(dsn, "; ") + ";encrypt=true"
	}
	if strings.Contains(dsn, "?") {
		return dsn + "&encrypt=true"
	}
	return dsn + "?encrypt=true"
}
