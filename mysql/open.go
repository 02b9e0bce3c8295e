package mysql

import (
	"database/sql"
	"errors"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Open returns a pool for a DSN in the driver's own form,
// user:password@tcp(host:port)/database?option=value, or as a URL,
// mysql://user:password@host:port/database?option=value, with the driver's options
// either way. mariadb:// is the same. Like [sql.Open] it does not connect.
//
// What the DSN leaves open gets a value fit for a relay: bounds on the time to
// connect, to send and to wait for an answer (Commit has no other), a shorter wait for
// locks, so that the server gives up first, the server's own max_allowed_packet
// instead of the driver's guess, one round trip a statement (interpolateParams), and
// idle connections enough for a relay's workers. The server ends a session that is
// silent for half a minute (wait_timeout), and with it what a client that the network
// has cut off left locked in the middle of a transaction, which would last for the
// server's eight hours: a transaction that pauses for longer needs a wait_timeout in
// its DSN. An error never shows the DSN, which may hold a password.
func Open(dsn string) (*sql.DB, error) {
	config, options, err := parse(dsn)
	if err != nil {
		return nil, err
	}
	// Errors are returned; the driver would write some of them to stderr as well.
	config.Logger = &mysql.NopLogger{}
	if config.Timeout == 0 {
		config.Timeout = 10 * time.Second
	}
	if config.ReadTimeout == 0 {
		config.ReadTimeout = 30 * time.Second
	}
	if config.WriteTimeout == 0 {
		config.WriteTimeout = 30 * time.Second
	}
	if !options.Has("maxAllowedPacket") {
		config.MaxAllowedPacket = 0
	}
	if !options.Has("interpolateParams") {
		config.InterpolateParams = true
	}
	for option, seconds := range map[string]string{"innodb_lock_wait_timeout": "10", "wait_timeout": "30"} {
		if !options.Has(option) {
			if config.Params == nil {
				config.Params = make(map[string]string)
			}
			config.Params[option] = seconds
		}
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, errDSN
	}
	db := sql.OpenDB(connector)
	db.SetMaxIdleConns(16)
	db.SetConnMaxIdleTime(20 * time.Second) // before the server ends them
	return db, nil
}

// errDSN stands for all the driver's errors about a DSN, some of which quote it.
var errDSN = errors.New("dsn cannot be parsed: write it as mysql://user:password@host:port/database?option=value, " +
	"with special characters percent-encoded, or as user:password@tcp(host:port)/database?option=value, " +
	"with the options of go-sql-driver/mysql")

// parse reads a DSN and the options that it names.
func parse(dsn string) (*mysql.Config, url.Values, error) {
	scheme, _, isURL := strings.Cut(dsn, "://")
	if !isURL || !strings.EqualFold(scheme, "mysql") && !strings.EqualFold(scheme, "mariadb") {
		config, err := mysql.ParseDSN(dsn)
		if err != nil {
			return nil, nil, errDSN
		}
		_, query, _ := strings.Cut(dsn[strings.LastIndexByte(dsn, '/')+1:], "?")
		options, err := url.ParseQuery(query)
		if err != nil {
			return nil, nil, errDSN
		}
		return config, options, nil
	}
	u, err := url.Parse(dsn)
	if err != nil || u.Opaque != "" || u.Fragment != "" {
		return nil, nil, errDSN
	}
	options, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, nil, errDSN
	}
	// The driver reads the options, and nothing else: user, password and database may
	// hold what its own form cannot.
	config, err := mysql.ParseDSN("/?" + u.RawQuery)
	if err != nil {
		return nil, nil, errDSN
	}
	config.User = u.User.Username()
	config.Passwd, _ = u.User.Password()
	config.Net = "tcp"
	host, port := u.Hostname(), u.Port()
	if host == "" {
		host = "127.0.0.1"
	}
	if port == "" {
		port = "3306"
	}
	config.Addr = net.JoinHostPort(host, port)
	config.DBName = strings.TrimPrefix(u.Path, "/")
	return config, options, nil
}
