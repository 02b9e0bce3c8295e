package oracle

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
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
// for a relay's workers. A connection that has waited for an answer too long is closed,
// unless the DSN has USE_OOB. An error never shows the DSN, which may hold a password.
func Open(dsn string) (*sql.DB, error) {
	full, err := complete(dsn)
	if err != nil {
		return nil, err
	}
	connector := driver.NewConnector(full)
	if dials, ok := connector.(*driver.OracleConnector); ok {
		config, err := driver.ParseConfig(full)
		if err != nil {
			return nil, errDSN
		}
		// Out of band, go-ora interrupts statements on a plain TCP connection only.
		if !config.EnableOOB {
			dials.Dialer(dialer{net.Dialer{Timeout: config.ConnectTimeout}})
		}
	}
	db := sql.OpenDB(connector)
	db.SetMaxIdleConns(16)
	db.SetConnMaxIdleTime(5 * time.Minute)
	return db, nil
}

// A dialer makes connections that end with the first read that fails.
type dialer struct{ net.Dialer }

// DialContext is what go-ora asks of a dialer.
func (d dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := d.Dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return connection{c}, nil
}

// A connection closes itself when a read fails, and says that it has ended. go-ora would
// leave one that has waited for TIMEOUT in the pool: the answer comes after all, and the
// next statement takes it for its own.
type connection struct{ net.Conn }

// Read implements [net.Conn].
func (c connection) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		_ = c.Close()
		if !errors.Is(err, io.EOF) {
			err = fmt.Errorf("%w: %w", io.EOF, err)
		}
	}
	return n, err
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
