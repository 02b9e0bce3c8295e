// Package demo is the main job from end to end, as `outbox demo` runs it: a shop
// whose writers change orders and enqueue messages in one transaction, relay
// processes that deliver them to a file they share or to a broker, a consumer that
// applies each one once, and a relay that is killed on the way. At the end everything
// is read back from the databases and the file, and compared. What comes out of a
// broker is written to the same file, in the order in which the broker has it.
package demo

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
)

// Config says what the demo runs on. Program, Embedded, Open and Progress are required.
type Config struct {
	// Program is the outbox command, whose relay subcommand the relays are.
	Program string
	// DSN is the database; empty is an embedded one in a temporary folder.
	DSN string
	// Embedded is the DSN of an embedded database at a path.
	Embedded func(path string) string
	// Open opens the database of a DSN.
	Open func(dsn string) (*sql.DB, dialect.Dialect, error)
	// Broker is where the relays publish to; nil is a file that they share.
	Broker Broker
	// Environ are settings for the relays, as in NAME=value.
	Environ []string
	// Orders is how many orders there are, and Writers how many sessions change
	// them at the same time. Both are at least 1.
	Orders, Writers int
	// Seed is what all random choices come from.
	Seed uint64
	// Keep leaves tables and files where they are.
	Keep bool
	// Progress is told what happens, a line at a time. It must be safe for
	// concurrent use.
	Progress io.Writer
}

// Broker is what the demo needs of a broker. Its methods are called one at a time.
type Broker interface {
	// Make makes what the demo's messages go to, under a name that is nobody
	// else's, and returns the URL for the relays.
	Make(ctx context.Context, name string) (url string, err error)
	// Read returns all that the broker has taken since the last Read, in its order,
	// an event in JSON a line.
	Read(ctx context.Context) (lines []byte, err error)
	// Remove removes what Make has made.
	Remove(ctx context.Context) error
}

// demo is one run.
type demo struct {
	Config
	folder  string // holds the file, the logs and embedded databases
	publish string // the URL for the relays
	topic   string // what Broker made
	prefix  string
	shop    *outbox.Outbox // the producing side
	far     *outbox.Outbox // the consuming side's database
	dsn     string         // of the producing side
	started time.Time
}

var errStopped = errors.New("stopped before its end")

// The time without any progress after which the demo gives up.
const patience = 30 * time.Second

// Run runs the demo. The report tells what was found, whether or not the promises
// held; an error is what kept the demo from running to its end. Its tables, files
// and processes are gone when it returns, also when ctx ends.
func Run(ctx context.Context, cfg Config) (_ Report, err error) {
	d := &demo{Config: cfg, started: time.Now()}
	if d.folder, err = os.MkdirTemp("", "outbox-demo-"); err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, d.removeFolder()) }()
	if err := d.open(); err != nil {
		return Report{}, err
	}
	defer d.close()
	defer func() { err = errors.Join(err, d.dropTables(context.WithoutCancel(ctx))) }()
	if err := d.migrate(ctx); err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, d.removeTopic(context.WithoutCancel(ctx))) }()
	if err := d.makeTopic(ctx); err != nil {
		return Report{}, err
	}
	plan := d.plan()
	if err := d.fill(ctx, plan); err != nil {
		return Report{}, err
	}
	killed, err := d.work(ctx, plan)
	switch {
	case ctx.Err() != nil:
		return Report{}, errStopped // whatever broke first because of it
	case err != nil:
		return Report{}, err
	}
	d.say("everything has stopped: reading it back")
	e, err := d.collect(ctx)
	if err != nil {
		return Report{}, err
	}
	r := check(e)
	r.RelaysKilled = killed
	if killed != 1 {
		r.broken("%d relays were killed, not 1", killed)
	}
	r.Engine, r.Seed, r.Orders, r.Writers = d.shop.Dialect().Name(), d.Seed, d.Orders, d.Writers
	r.Seconds = time.Since(d.started).Seconds()
	if d.Keep {
		r.Folder, r.Prefix, r.Topic = d.folder, d.prefix, d.topic
	}
	return r, nil
}

// open binds both sides. A server holds them in the same tables; embedded, the
// consumer has a database of its own.
func (d *demo) open() error {
	farDSN := d.DSN
	d.dsn, d.prefix = d.DSN, "demo_"+strings.ToLower(rand.Text()[:8])
	if d.DSN == "" {
		d.dsn, d.prefix = d.Embedded(filepath.Join(d.folder, "shop.db")), "outbox"
		farDSN = d.Embedded(filepath.Join(d.folder, "billing.db"))
	}
	bind := func(dsn string) (*outbox.Outbox, error) {
		db, engine, err := d.Open(dsn)
		if err != nil {
			return nil, err
		}
		o, err := outbox.New(db, engine, outbox.Config{Prefix: d.prefix})
		if err != nil {
			return nil, errors.Join(err, db.Close())
		}
		return o, nil
	}
	var err error
	if d.shop, err = bind(d.dsn); err != nil {
		return err
	}
	if d.far, err = bind(farDSN); err != nil {
		return errors.Join(err, d.shop.DB().Close())
	}
	return nil
}

// close closes the databases, when nothing is pending on them.
func (d *demo) close() {
	_ = d.shop.DB().Close()
	_ = d.far.DB().Close()
}

func (d *demo) migrate(ctx context.Context) error {
	for _, o := range []*outbox.Outbox{d.shop, d.far} {
		if _, err := o.Migrate(ctx); err != nil {
			return err
		}
	}
	for _, t := range d.tables() {
		if _, err := t.db.ExecContext(ctx, "CREATE TABLE "+t.name+" ("+t.columns+")"); err != nil {
			return fmt.Errorf("make table %s: %w", t.name, err)
		}
	}
	return nil
}

// dropTables removes what the demo made in somebody's database.
func (d *demo) dropTables(ctx context.Context) error {
	if d.DSN == "" || d.Keep {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var errs []error
	drop := func(db *sql.DB, name string) {
		_, err := db.ExecContext(ctx, "DROP TABLE "+name)
		if err != nil && d.shop.Dialect().Classify(err) != dialect.Missing {
			errs = append(errs, fmt.Errorf("table %s of the demo is left behind: %w", name, err))
		}
	}
	for _, t := range d.tables() {
		drop(t.db, t.name)
	}
	for _, suffix := range []string{"", "_parked", "_done", "_lane", "_inbox", "_revision", "_progress", "_audit", "_meta"} {
		drop(d.shop.DB(), d.prefix+suffix)
	}
	return errors.Join(errs...)
}

// makeTopic makes what the relays publish to.
func (d *demo) makeTopic(ctx context.Context) (err error) {
	d.publish = "file:" + d.file()
	if d.Broker != nil {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		d.topic = "demo_" + strings.ToLower(rand.Text()[:8])
		d.publish, err = d.Broker.Make(ctx, d.topic)
	}
	return err
}

func (d *demo) removeTopic(ctx context.Context) error {
	if d.Broker == nil || d.Keep {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return d.Broker.Remove(ctx)
}

// copyEvents writes what the broker has to the file, until all of it is there after
// finished.
func (d *demo) copyEvents(ctx context.Context, finished <-chan struct{}) error {
	f, err := os.Create(d.file())
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // a failed write has told
	for {
		last := false
		select {
		case <-finished:
			last = true // what is read now is all there is
		default:
		}
		lines, err := d.Broker.Read(ctx)
		if err != nil {
			return err
		}
		if _, err := f.Write(lines); err != nil {
			return err
		}
		if last {
			return nil
		}
		if len(lines) == 0 && !pause(ctx, 5*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

func (d *demo) removeFolder() error {
	if d.Keep {
		return nil
	}
	return os.RemoveAll(d.folder)
}

// say tells of progress.
func (d *demo) say(format string, args ...any) {
	_, _ = fmt.Fprintf(d.Progress, "%5.1fs  %s\n", time.Since(d.started).Seconds(), fmt.Sprintf(format, args...))
}

// work lets everybody work until all is done, and returns how many relays were
// killed.
func (d *demo) work(ctx context.Context, plan []planned) (killed int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	relays := relays{demo: d}
	defer relays.kill()
	for range 2 {
		if err := relays.start(ctx, cancel); err != nil {
			return 0, err
		}
	}
	d.say("2 relays, %d writers and a consumer are at work on %s", d.Writers, d.shop.Dialect().Name())

	// The consumer goes on until the last relay has stopped.
	consumer := consumer{demo: d}
	var consuming sync.WaitGroup
	defer consuming.Wait()
	defer consumer.finish()
	consumer.finished = make(chan struct{})
	consuming.Go(func() {
		if err := consumer.run(ctx); err != nil {
			cancel(fmt.Errorf("consumer: %w", err))
		}
	})
	var copying sync.WaitGroup
	defer copying.Wait()
	var copied sync.Once
	stopped := make(chan struct{}) // the relays
	copyRest := func() { copied.Do(func() { close(stopped) }) }
	defer copyRest()
	if d.Broker != nil {
		copying.Go(func() {
			if err := d.copyEvents(ctx, stopped); err != nil {
				cancel(fmt.Errorf("read from the broker: %w", err))
			}
		})
	}
	var writing sync.WaitGroup
	defer writing.Wait()
	defer cancel(nil) // after an error nobody is to go on
	items := make(chan planned)
	for range d.Writers {
		writing.Go(func() {
			if err := d.write(ctx, items); err != nil {
				cancel(fmt.Errorf("writer: %w", err))
			}
		})
	}
	writing.Go(func() {
		defer close(items)
		for _, item := range plan {
			select {
			case items <- item:
			case <-ctx.Done():
				return
			}
		}
	})

	written := make(chan struct{})
	go func() {
		writing.Wait()
		close(written)
	}()
	victim, err := d.awaitVictim(ctx, &relays, len(plan)/4, written)
	if err != nil {
		return 0, err
	}
	lanes, err := relays.killOne(ctx, victim)
	if err != nil {
		return 0, err
	}
	d.say("%s is killed and leaves %d of %d lanes behind; another one takes its place", victim, lanes, d.shop.Tables().Lanes)
	if err := relays.start(ctx, cancel); err != nil {
		return 0, err
	}

	<-written
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	d.say("the writers are done")
	if err := d.awaitEmpty(ctx); err != nil {
		return 0, err
	}
	if err := relays.stop(); err != nil {
		return 0, err
	}
	copyRest()
	copying.Wait()
	consumer.finish()
	consuming.Wait()
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	return relays.killed, nil
}

// awaitVictim waits until so many messages are published and a relay holds lanes,
// or until it is too late for that.
func (d *demo) awaitVictim(ctx context.Context, relays *relays, messages int, written <-chan struct{}) (owner string, err error) {
	var at int64
	published := 0
	err = d.await(ctx, "a relay to be at work", func() (done bool, progress int64, err error) {
		lines, err := readLines(d.file(), at)
		at += int64(len(lines))
		published += bytes.Count(lines, []byte("\n"))
		if err != nil || published < messages {
			return false, at, err
		}
		for _, name := range relays.names() {
			n, err := d.lanesOf(ctx, name)
			if err != nil {
				return false, at, err
			}
			if n > 0 {
				owner = name
				return true, at, nil
			}
		}
		select {
		case <-written: // soon nobody holds any
			owner = relays.names()[0]
			return true, at, nil
		default:
			return false, at, nil
		}
	})
	return owner, err
}

// lanesOf counts the lanes that a relay has.
func (d *demo) lanesOf(ctx context.Context, owner string) (n int, err error) {
	row := d.shop.DB().QueryRowContext(ctx, fmt.Sprintf("SELECT count(*) FROM %s_lane WHERE owner = '%s'", d.prefix, owner))
	return n, row.Scan(&n)
}

// awaitEmpty waits until the outbox holds nothing that is still to go.
func (d *demo) awaitEmpty(ctx context.Context) error {
	return d.await(ctx, "the outbox to be empty", func() (bool, int64, error) {
		s, err := d.shop.Stats(ctx)
		left := s.Ready + s.Scheduled + s.Retry + s.Held
		return err == nil && (left == 0 || s.Dead > 0), left, err
	})
}

// await asks until the answer is yes. It gives up when nothing has changed for
// long.
func (d *demo) await(ctx context.Context, what string, ask func() (done bool, progress int64, err error)) error {
	last, since := int64(-1), time.Now()
	for {
		done, progress, err := ask()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("wait for %s: %w", what, err)
		case done:
			return nil
		case progress != last:
			last, since = progress, time.Now()
		case time.Since(since) > patience:
			return fmt.Errorf("waited for %s, and nothing has moved for %v", what, patience)
		}
		if !pause(ctx, 2*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// pause waits and reports whether the context is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
