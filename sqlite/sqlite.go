// Package sqlite is the SQLite engine of the outbox, on modernc.org/sqlite.
//
//	db, err := sqlite.Open("app.db")
//
// # What to know
//
// A file has one writer at a time, whatever the number of processes. Everything
// here that writes is one short transaction, and what only looks for work never
// takes the writer's place. The producer decides the rest: between its first
// write and its commit nobody else writes to the file, the relay included.
//
// Who waits for the writer's place does not stand in a line: SQLite looks again after
// up to 100 ms and may find the next one there. Where writers of several processes
// never pause, a wait can outlast busy_timeout, and fails as a [dialect.Conflict]
// that may be tried again, whether transactions are immediate or deferred. With a pool of
// immediate ones, as [Open] makes it, a store looks again after 20 ms or so, so that a relay
// gets its turn beside producers that never pause.
//
// The file must be in WAL mode and on a local disk. Network file systems do not
// give the shared memory and the locks that WAL needs, and nothing can detect
// them; [dialect.Schema.Inspect] reports every other unfit setting.
//
// A [dialect.Store] lets one of its write transactions run at a time, so that the
// workers of a process queue in memory instead of in SQLite's busy handler, which
// polls. That is the only state it has, beside a hint how to read. Producers, consumers, readers and other
// processes do not pass through the queue.
//
// # Enqueue in plain SQL
//
// A program in any language may insert a message in its own transaction:
//
//	INSERT INTO outbox (lane, id, topic, key, key_hash, type, payload)
//	VALUES (?, ?, ?, ?, ?, ?, ?)
//
// The tables are STRICT: id is a BLOB of 16 bytes, payload a BLOB or NULL, times
// are INTEGER Unix microseconds. [dialect.KeyHash] says what key_hash is, and
// [dialect.LaneOfKey] and [dialect.LaneOfID] which lane a message is in; a lane
// that does not fit the key is refused. A delayed message goes to outbox_parked
// instead, with available_at set.
package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"modernc.org/sqlite"

	"github.com/outbox-suite/outbox/dialect"
)

// Dialect is SQLite. It holds nothing and is safe for concurrent use.
type Dialect struct{}

var _ dialect.Dialect = Dialect{}

// defaultLanes are as many as a relay has workers. One transaction writes at a time,
// so more would not help, and they cost: the rows of a table lie by seq, so that the
// batch of one lane of many changes pages that are mostly other lanes'. A drain with 16
// lanes is two to three times slower (docs/decisions/0010-lanes-of-sqlite.md).
const defaultLanes = 4

// New returns the SQLite dialect.
func New() Dialect { return Dialect{} }

// Name implements [dialect.Dialect].
func (Dialect) Name() string { return "sqlite" }

// Capabilities implements [dialect.Dialect]. Stored times have milliseconds, for
// SQLite's clock has; it is the clock of the machine, shared by all processes that
// can open the file.
func (Dialect) Capabilities() dialect.Capabilities {
	return dialect.Capabilities{TimeStep: time.Millisecond, Lanes: defaultLanes}
}

// Bind implements [dialect.Dialect]. It refuses a schema other than main: a schema
// of SQLite is an attached file, and in WAL mode a transaction over two files is
// not atomic if the machine fails in the middle of its commit.
func (Dialect) Bind(tables dialect.Tables) (dialect.Store, error) {
	// SQLite has no limit for a name; this is one to catch mistakes.
	const longest, suffix = 1000, len("_parked_id_has_sixteen_bytes")
	if err := tables.Validate(longest, suffix); err != nil {
		return nil, fmt.Errorf("sqlite: %w", err)
	}
	switch {
	case tables.Schema != "" && tables.Schema != "main":
		return nil, fmt.Errorf("sqlite: schema is %q: leave it empty, "+
			"because a transaction over attached files is not atomic in WAL mode", tables.Schema)
	case !utf8.ValidString(tables.Prefix):
		return nil, fmt.Errorf("sqlite: prefix is not valid UTF-8: choose another")
	case len(tables.Prefix) >= 7 && strings.EqualFold(tables.Prefix[:7], "sqlite_"):
		return nil, fmt.Errorf("sqlite: prefix %q begins with \"sqlite_\", which SQLite reserves: choose another", tables.Prefix)
	}
	// The name of a table in CREATE INDEX … ON cannot carry a schema, and main is
	// what an unqualified name means.
	tables.Schema = ""
	return newStore(tables), nil
}

// quote quotes an identifier.
func quote(name string) string {
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

// Open opens the database file at path, which it creates on first use, set up for
// an outbox: WAL mode, so that readers and the writer do not wait for each other;
// synchronous FULL, so that a commit survives the loss of power; a busy_timeout
// of 10 s; transactions that begin with BEGIN IMMEDIATE, so that those that read
// before they write are never refused; and no double-quoted strings. Foreign keys
// are as SQLite has them, off.
//
// The pool is fit to be the application's own: pass
// &sql.TxOptions{ReadOnly: true} to BeginTx for a transaction that only reads, so
// that it takes no lock.
//
// Path is a path, not a DSN: any character of it may be in the name of the file. One that
// begins with "sqlite:", as the command's DSN does, is refused; "./" before it says that it
// is meant.
// ":memory:" makes a private database of one connection, for tests and examples;
// there, use of the pool inside an open transaction waits forever.
//
// Open does no I/O. The pool it returns is safe for concurrent use.
func Open(path string) (*sql.DB, error) {
	name, err := dsn(path)
	if err != nil {
		return nil, err
	}
	base, err := sqlite.NewConnector(name)
	if err != nil {
		return nil, fmt.Errorf("sqlite: open %q: %w", path, err)
	}
	db := sql.OpenDB(connector{base})
	if path == memory {
		// Each connection would be a database of its own, gone when it closes.
		db.SetMaxOpenConns(1)
	}
	return db, nil
}

const (
	memory      = ":memory:"
	scheme      = "sqlite:" // of the command's DSN
	busyTimeout = 10 * time.Second
)

// connector waits for its turn where SQLite does not: of processes that open a new
// file at once, one switches it to WAL, and others are refused as busy without
// a call of their busy handlers, lest they wait for each other.
type connector struct{ driver.Connector }

// Connect implements [driver.Connector].
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	timeout := time.After(busyTimeout)
	for {
		conn, err := c.Connector.Connect(ctx)
		if (Dialect{}).Classify(err) != dialect.Conflict {
			return conn, err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-timeout:
			return nil, err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// dsn is the driver's name for a database at path with the settings of Open.
func dsn(path string) (string, error) {
	settings := fmt.Sprintf("?_busy_timeout=%d&_journal_mode=WAL&_synchronous=FULL&_txlock=immediate&_dqs=0",
		busyTimeout.Milliseconds())
	switch {
	case path == memory:
		return "file:" + memory + settings, nil
	case path == "":
		return "", fmt.Errorf("sqlite: path is empty: name the database file")
	case strings.HasPrefix(path, scheme):
		return "", fmt.Errorf("sqlite: path %q begins as a DSN does: give the path alone, %q, or %q for a file of that name",
			path, strings.TrimPrefix(path, scheme), "./"+path)
	case strings.ContainsRune(path, 0):
		return "", fmt.Errorf("sqlite: path %q contains a NUL character: remove it", path)
	}
	path = filepath.ToSlash(path)
	switch {
	case strings.HasPrefix(path, "/"):
		path = "//" + (&url.URL{Path: path}).EscapedPath() // an empty authority
	case filepath.VolumeName(path) != "":
		path = "///" + (&url.URL{Path: path}).EscapedPath() // file:///C:/…
	default:
		path = (&url.URL{Path: path}).EscapedPath()
	}
	return "file:" + path + settings, nil
}
