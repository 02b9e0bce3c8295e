package oracle

import (
	"database/sql"
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	driver "github.com/sijms/go-ora/v2"
)

// Open returns a pool for a DSN in the driver's form,
// oracle://user:password@host:port/service?option=value. Without a port it is 1521. Like
// [sql.Open] it does not connect.
//
// What the DSN leaves open gets a value fit for a relay: bounds on the time to connect
// and to wait for an answer, rows enough in one round trip, and idle connections enough
// for a relay's workers. An error never shows the DSN, which may hold a password.
func Open(dsn string) (*sql.DB, error) {
	full, err := complete(dsn)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(driver.NewConnector(full))
	db.SetMaxIdleConns(16)
	db.SetConnMaxIdleTime(5 * time.Minute)
	return db, nil
}

// errDSN stands for all the driver's errors about a DSN, some of which quote it.
var errDSN = errors.New("dsn cannot be parsed: write it as oracle://user:password@host:port/service?option=value, " +
	"with special characters percent-encoded and the options of go-ora")

// defaults are the options that a DSN may leave open, each under its names.
var defaults = []struct {
	names []string
	value string // seconds, rows
}{
	{[]string{"TIMEOUT", "READ TIMEOUT", "SOCKET TIMEOUT"}, "30"},
	{[]string{"CONNECT TIMEOUT", "CONNECTION TIMEOUT"}, "10"},
	// The driver's 25 would make a batch many round trips.
	{[]string{"PREFETCH_ROWS"}, "1000"},
}

// complete is the DSN with what it leaves open.
func complete(dsn string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil || !strings.EqualFold(u.Scheme, "oracle") || u.Opaque != "" || u.Fragment != "" {
		return "", errDSN
	}
	options, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return "", errDSN
	}
	named := make(map[string]bool)
	for name := range options {
		named[strings.ToUpper(name)] = true
	}
	for _, d := range defaults {
		open := true
		for _, name := range d.names {
			open = open && !named[name]
		}
		if open {
			options.Set(d.names[0], d.value)
		}
	}
	u.Scheme, u.RawQuery = "oracle", options.Encode()
	if u.Port() == "" && u.Hostname() != "" {
		u.Host = net.JoinHostPort(u.Hostname(), "1521")
	}
	full := u.String()
	// The driver takes any port that is no number for its default.
	if _, err := strconv.ParseUint(u.Port(), 10, 16); u.Host != "" && err != nil {
		return "", errDSN
	}
	if _, err := driver.ParseConfig(full); err != nil {
		return "", errDSN
	}
	return full, nil
}
