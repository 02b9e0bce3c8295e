package conformance

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// Target is an engine and a server, and what may be done to it. Dialect and
// Open are required.
type Target struct {
	// Dialect is the engine under test.
	Dialect dialect.Dialect
	// Open returns a new pool to the server under test. Each call's pool is
	// closed by the suite.
	Open func(ctx context.Context) (*sql.DB, error)

	// As opens a pool as a user who has the least privileges that the roles need
	// on tables, which are there by then. What a scenario does in a role goes
	// through such a pool, but for child processes and what goes through a proxy.
	// Each call's pool is closed by the suite. nil: everything is done as the user
	// that Open gives.
	As func(ctx context.Context, tables dialect.Tables, roles ...Role) (*sql.DB, error)

	// Schema holds the tables. Default: the session's.
	Schema string
	// Prefix begins the names of the tables; every scenario adds a random
	// suffix. Default: conformance.
	Prefix string
	// Place, when set, makes room for one scenario: it is given a copy of the
	// target of the scenario's own, and may change where that leads, for example
	// to a schema or a file of its own named after suffix. The Prefix it leaves
	// is used as it is. It returns what removes the room again.
	Place func(ctx context.Context, own *Target, suffix string) (remove func(context.Context) error, err error)

	// Source is what the [Reopen] function of a child process is given to reach
	// the same server with the same dialect, for example a DSN. It travels
	// through a pipe, never through arguments or the environment. Empty: child
	// processes are not available. The program must call [Child] first thing.
	Source string

	// Network is how to reach the server through another address; nil for an
	// engine without a network.
	Network *Network

	// Stop and Start shut the server down in good order and start it again, Kill
	// ends it at once. Each returns when it is done. nil: not available.
	Stop, Start, Kill func(ctx context.Context) error

	// Demote makes the session of a connection read-only for good, as a failover
	// leaves those that stay with the old primary. nil: not available.
	Demote func(ctx context.Context, conn *sql.Conn) error

	// Restore makes a copy of the tables the way backups are made on the engine,
	// in an empty database, on another server where there is one, under the same
	// names. It returns how to open the copy and how to remove it. nil: not
	// available.
	Restore func(ctx context.Context, tables dialect.Tables) (*Copy, error)

	// Zones open pools whose sessions are in different time zones, at least
	// three, one of them in a zone whose clocks are set back about now. nil: not
	// available.
	Zones []func(ctx context.Context) (*sql.DB, error)

	// Beside runs beside every relay of this process until ctx ends, to wake it in a
	// way of its own, and with little else to go by: such a relay gets no wake-ups of
	// producers and polls as seldom as relays do by default. db is the relay's pool.
	// nil: nothing does.
	Beside func(ctx context.Context, db *sql.DB, tables dialect.Tables, wake func())

	// Known maps a scenario to the issue that explains why it fails here. It is
	// run all the same, and passing is a failure, so that the entry goes away.
	Known map[string]string

	// Seed is what every random choice flows from. Default: OUTBOX_SEED of the
	// environment, or a random one.
	Seed uint64
	// Short makes loads small.
	Short bool
	// Soak is how long a soak goes on. Default: [ShortSoak].
	Soak time.Duration
	// Patience is how long a scenario waits for something that must happen.
	// Default: 1m. Under the race detector it is three times as long.
	Patience time.Duration

	// progress is Options.OnProgress.
	progress func(scenario, how string)
}

// Role is what a connection is used for; [dialect.Granter] says what each needs.
type Role string

// The roles.
const (
	Producer Role = "producer"
	Relay    Role = "relay"
	Operator Role = "operator"
	Consumer Role = "consumer"
)

// Network is the way to a server.
type Network struct {
	// Address is the server's, host:port.
	Address string
	// Open returns a new pool that reaches the server through addr.
	Open func(ctx context.Context, addr string) (*sql.DB, error)
	// Source is the Target.Source for a child process that goes through addr.
	// nil: child processes cannot.
	Source func(addr string) string
}

// Copy is what Target.Restore has made.
type Copy struct {
	// Open returns a new pool to the copy. Each call's pool is closed by the
	// suite.
	Open func(ctx context.Context) (*sql.DB, error)
	// Remove removes the copy, when all pools to it are closed.
	Remove func(ctx context.Context) error
}

// Need is something beyond the core that a scenario cannot do without.
type Need string

// The needs. Those that are faults are offered by the target, the others are
// capabilities of the dialect.
const (
	// Children are child processes: Target.Source.
	Children Need = "child processes"
	// Pausing is a system on which a child process can be paused.
	Pausing Need = "pausing of child processes"
	// Networked is a server that is reached through a network: Target.Network.
	Networked Need = "a network to the server"
	// Restart is a server that can be stopped and started.
	Restart Need = "stop and start of the server"
	// Crash is a server that can be killed and started.
	Crash Need = "kill and start of the server"
	// Restrict is the dialect's capability of that name, and Target.Demote.
	Restrict Need = "read-only sessions"
	// Restorable is a server that can be dumped and restored: Target.Restore.
	Restorable Need = "dump and restore"
	// Zoned are sessions with time zones: Target.Zones.
	Zoned Need = "sessions in different time zones"
	// Wake is a store that is a [dialect.Waker].
	Wake Need = "wake-up across processes"
	// Revisions is a store that is a [dialect.Reviser].
	Revisions Need = "revisions"
	// Audits is a store that is a [dialect.Auditor].
	Audits Need = "an audit"
	// Views is a store that is a [dialect.Viewer].
	Views Need = "views for operators"
	// Partitions is a store that is a [dialect.Partitioner].
	Partitions Need = "done in partitions"
)

// lacks returns why a scenario cannot run on the target, or "".
func (t *Target) lacks(needs []Need) string {
	for _, n := range needs {
		switch n {
		case Children:
			if t.Source == "" {
				return "the target offers no child processes (Target.Source)"
			}
		case Pausing:
			if !canPause {
				return "this system cannot pause a process"
			}
		case Networked:
			if t.Network == nil {
				return "the target offers no network to the server (Target.Network)"
			}
		case Restart:
			if t.Stop == nil || t.Start == nil {
				return "the target offers no stop and start of the server (Target.Stop, Target.Start)"
			}
		case Crash:
			if t.Kill == nil || t.Start == nil {
				return "the target offers no kill and start of the server (Target.Kill, Target.Start)"
			}
		case Restrict:
			if !t.Dialect.Capabilities().Restrict {
				return "the engine does not claim read-only sessions (Capabilities.Restrict)"
			}
			if t.Demote == nil {
				return "the target offers no way to make sessions read-only (Target.Demote)"
			}
		case Restorable:
			if t.Restore == nil {
				return "the target offers no dump and restore (Target.Restore)"
			}
		case Zoned:
			if len(t.Zones) == 0 {
				return "the target offers no sessions in different time zones (Target.Zones)"
			}
		case Wake:
			store, err := t.Dialect.Bind(dialect.Tables{Schema: t.Schema, Prefix: "x", Lanes: 1})
			if _, ok := store.(dialect.Waker); err != nil || !ok {
				return "the engine cannot wake other processes (dialect.Waker)"
			}
		case Revisions:
			store, err := t.Dialect.Bind(dialect.Tables{Schema: t.Schema, Prefix: "x", Lanes: 1})
			if _, ok := store.(dialect.Reviser); err != nil || !ok {
				return "the engine keeps no revisions (dialect.Reviser)"
			}
		case Audits:
			store, err := t.Dialect.Bind(dialect.Tables{Schema: t.Schema, Prefix: "x", Lanes: 1})
			if _, ok := store.(dialect.Auditor); err != nil || !ok {
				return "the engine keeps no audit (dialect.Auditor)"
			}
		case Views:
			store, err := t.Dialect.Bind(dialect.Tables{Schema: t.Schema, Prefix: "x", Lanes: 1})
			if _, ok := store.(dialect.Viewer); err != nil || !ok {
				return "the engine has no views for operators (dialect.Viewer)"
			}
		case Partitions:
			store, err := t.Dialect.Bind(dialect.Tables{Schema: t.Schema, Prefix: "x", Lanes: 1})
			if _, ok := store.(dialect.Partitioner); err != nil || !ok {
				return "the engine keeps done in one table (dialect.Partitioner)"
			}
		default:
			return fmt.Sprintf("need %q is unknown", n)
		}
	}
	return ""
}

const (
	defaultPrefix   = "conformance"
	defaultPatience = 60 * time.Second
)

func (t Target) withDefaults() (Target, error) {
	if t.Dialect == nil || t.Open == nil {
		return t, errors.New("conformance: target: Dialect and Open are required")
	}
	if t.Prefix == "" {
		t.Prefix = defaultPrefix
	}
	if t.Patience == 0 {
		t.Patience = defaultPatience
	}
	if raceEnabled {
		t.Patience *= 3
	}
	for name := range t.Known {
		if !slices.ContainsFunc(scenarios(), func(s Scenario) bool { return s.Name == name }) {
			return t, fmt.Errorf("conformance: target: Known names %q, which is no scenario", name)
		}
	}
	return t, nil
}
