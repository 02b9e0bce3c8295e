package bench

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
)

// Target is an engine, a server, and what one would write by hand there. All fields
// but Process are required.
type Target struct {
	Dialect dialect.Dialect
	// Open returns a new pool to the server. Each call's pool is closed by the run.
	Open     func(ctx context.Context) (*sql.DB, error)
	Baseline *Baseline
	// Process starts a relay in a process of its own, with batch 1000, retention 0 and
	// pauses of at most [PollMax], that throws away what is in the tables with that prefix
	// and number of lanes.
	// nil: relays are measured within this process only.
	Process func(ctx context.Context, prefix string, lanes int) (Process, error)
}

// PollMax is the longest pause between polls where relays wait for all of them to run.
// It is as long as the shortest pause is by default.
const PollMax = 25 * time.Millisecond

// Process is a relay in a process of its own.
type Process struct {
	// Polled is closed when the relay has polled for the first time.
	Polled <-chan struct{}
	// Ended gets an error when the process ends before it is stopped, and is closed
	// when it has ended.
	Ended <-chan error
	// Stop ends it and waits until it has ended.
	Stop func()
}

func (t Target) check() error {
	if t.Dialect == nil || t.Open == nil || t.Baseline == nil {
		return errors.New("bench: target: Dialect, Open and Baseline are required")
	}
	return t.Baseline.check()
}

// Baseline is what a good engineer writes by hand on an engine, in the plainest SQL.
// In its statements {loop} stands for the table of the hand-written outbox, which
// the loop reads, and {business} for the table of the business change. Their names
// are lower case letters, digits and underscores, different in every run.
type Baseline struct {
	// Name names the engine in reports, in lower case letters.
	Name string
	// OneWriter tells that the engine lets one session write at a time, so that
	// tables are filled by one.
	OneWriter bool
	// Within tells that the engine runs within this process, so that there is no server
	// whose processor time is another's.
	Within bool
	// Create makes both tables. The loop's has id, which the database counts up,
	// the columns that Insert fills, created_at and published_at.
	Create []string
	// Business is the business change: an INSERT of two numbers.
	Business string
	// Insert adds n messages in one statement, each with these arguments: message
	// id, topic, key, type, content type, headers, payload.
	Insert func(n int) string
	// MessageID is a message id as an argument of Insert.
	MessageID func(id [16]byte) any
	// Select reads at most limit messages that are not published, oldest first,
	// and locks them: id, message id, topic, key, type, content type, headers,
	// payload, created_at.
	Select func(limit int) string
	// Update marks messages as published, and Delete removes them instead.
	Update func(ids []int64) (string, []any)
	Delete func(ids []int64) (string, []any)

	// Settings are said in the report.
	Settings []Setting
	// Tidy is called before each timed part: what housekeeping would have done in
	// the meantime is done for both sides.
	Tidy func(ctx context.Context, db *sql.DB, tables []string) error
	// LogBytes returns how many bytes the server has written to its log (WAL,
	// redo) so far. nil: the engine cannot tell.
	LogBytes func(ctx context.Context, db *sql.DB) (int64, error)
	// Locked returns how many rows of these tables the other sessions' open
	// transactions have locked, changed ones among them. nil: the engine locks no rows.
	Locked func(ctx context.Context, db *sql.DB, tables []string) (int64, error)
	// ServerTime returns how long the server alone needs for a query. nil: the
	// engine cannot tell.
	ServerTime func(ctx context.Context, db *sql.DB, query string, args []any) (time.Duration, error)
	// WithCommit runs the business change, a query with its arguments, and sends what
	// enqueue writes together with the commit, in one round trip. nil: there is no such
	// way on this engine.
	WithCommit func(ctx context.Context, db *sql.DB, query string, args []any, enqueue func(tx outbox.Tx) error) error
	// Snapshot are statements that open a transaction whose snapshot of {business}
	// stays as it is until ROLLBACK.
	Snapshot []string

	// Goals are this engine's targets where they differ from those of [Measures]
	// or there is none, by the name of the goal.
	Goals map[string]Goal
}

func (b *Baseline) check() error {
	if b.Name == "" || len(b.Create) == 0 || b.Business == "" || b.Insert == nil || b.MessageID == nil || b.Select == nil ||
		b.Update == nil || b.Delete == nil || b.Tidy == nil || len(b.Snapshot) == 0 {
		return errors.New("bench: baseline: only LogBytes, Locked, ServerTime, WithCommit, Settings and Goals may be left out")
	}
	return nil
}

// Setting is a setting of the server that figures depend on.
type Setting struct {
	Name string
	// Query returns its value. One that fails is said as unknown.
	Query string
	// Durable are the values with which a commit survives a crash; none for a
	// setting that has nothing to do with it.
	Durable []string
}

// Goal is a target: bounds on the ratio to the baseline or on our own figure.
// Bounds of 0 do not count.
type Goal struct {
	// Text says it for people.
	Text string
	// RatioLeast and RatioMost bound ours divided by the baseline's.
	RatioLeast, RatioMost float64
	// Least and Most bound our figure, in its unit.
	Least, Most float64
}

// met tells whether the goal is reached: "yes", "no", or "" without a goal.
func (g Goal) met(ours float64, ratio *Figure) string {
	if g == (Goal{}) {
		return ""
	}
	ok := (g.Least == 0 || ours >= g.Least) && (g.Most == 0 || ours <= g.Most)
	if g.RatioLeast > 0 {
		ok = ok && ratio != nil && ratio.Median >= g.RatioLeast
	}
	if g.RatioMost > 0 {
		ok = ok && ratio != nil && ratio.Median <= g.RatioMost
	}
	if ok {
		return "yes"
	}
	return "no"
}

// tables are the baseline's own.
type tables struct{ loop, business string }

func (t tables) expand(query string) string {
	return strings.NewReplacer("{loop}", t.loop, "{business}", t.business).Replace(query)
}
