package oracle_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/sijms/go-ora/v2/network"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/oracle"
)

// TestClassifyValues covers the driver's errors as it makes them.
func TestClassifyValues(t *testing.T) {
	refused := func() error {
		listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := listener.Addr().String()
		_ = listener.Close()
		db, err := oracle.Open("oracle://me:secret@" + address + "/service")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		return db.PingContext(t.Context())
	}
	for name, c := range map[string]struct {
		err  error
		want dialect.Class
	}{
		"Nil":         {nil, dialect.Other},
		"Unknown":     {errors.New("unknown"), dialect.Other},
		"Duplicate":   {network.NewOracleError(1), dialect.Duplicate},
		"Wrapped":     {fmt.Errorf("enqueue: %w", network.NewOracleError(1)), dialect.Duplicate},
		"BadConn":     {driver.ErrBadConn, dialect.OutcomeUnknown},
		"ConnDone":    {sql.ErrConnDone, dialect.Transient},
		"TxDone":      {sql.ErrTxDone, dialect.Other},
		"Ended":       {fmt.Errorf("%w: %w", context.Canceled, sql.ErrTxDone), dialect.OutcomeUnknown},
		"Reset":       {network.ErrConnReset, dialect.OutcomeUnknown},
		"EOF":         {io.EOF, dialect.OutcomeUnknown},
		"Unexpected":  {io.ErrUnexpectedEOF, dialect.OutcomeUnknown},
		"Read":        {&net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}, dialect.OutcomeUnknown},
		"Write":       {&net.OpError{Op: "write", Net: "tcp", Err: net.ErrClosed}, dialect.OutcomeUnknown},
		"Dial":        {&net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}, dialect.Transient},
		"Refused":     {refused(), dialect.Transient},
		"Deadline":    {context.DeadlineExceeded, dialect.OutcomeUnknown},
		"SurfaceWait": {fmt.Errorf("%w: %w", oracle.ErrSurfaceWaits, network.NewOracleError(1013)), dialect.Conflict},
	} {
		if got := oracle.New().Classify(c.err); got != c.want {
			t.Errorf("%s: %v (%T) is %v, want %v", name, c.err, c.err, got, c.want)
		}
	}
}

// TestClassifyNumbers covers what the server says.
func TestClassifyNumbers(t *testing.T) {
	for want, numbers := range map[dialect.Class][]int{
		dialect.Duplicate:      {1},
		dialect.Conflict:       {54, 60, 1453, 1466, 1555, 4068, 8177, 30006, 63300, 63302},
		dialect.ReadOnly:       {1456, 16000, 28194},
		dialect.Missing:        {904, 942, 14400},
		dialect.Transient:      {18, 20, 257, 1033, 1034, 1109, 1591, 1653, 1658, 2391, 2396, 12514, 12516, 12528, 12541, 30036},
		dialect.OutcomeUnknown: {28, 603, 1012, 1013, 1089, 1092, 3113, 3114, 3135, 12537, 12571, 25408},
		dialect.Other:          {0, 900, 911, 933, 955, 1017, 1031, 1400, 1438, 1745, 1795, 2014, 2290, 12899, 28000},
	} {
		for _, n := range numbers {
			if got := oracle.New().Classify(network.NewOracleError(n)); got != want {
				t.Errorf("ORA-%05d is %v, want %v", n, got, want)
			}
		}
	}
}

// TestRecordDuplicate tells that the id is there, and passes other errors on.
func TestRecordDuplicate(t *testing.T) {
	r, db, store := recording(t)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	for _, c := range []struct {
		err   error
		fresh bool
		fails bool
	}{
		{nil, true, false},
		{network.NewOracleError(1), false, false},
		{network.NewOracleError(60), false, true},
	} {
		r.fail = func(string) error { return c.err }
		fresh, err := store.Record(t.Context(), tx, "c", "m")
		if fresh != c.fresh || (err != nil) != c.fails {
			t.Errorf("%v: %t, %v", c.err, fresh, err)
		}
	}
}

// TestMigrateIsOneOfMany goes on where another process has been faster, and tries again
// where it is in the way.
func TestMigrateIsOneOfMany(t *testing.T) {
	r, db, store := recording(t)
	r.answer = answer(t, store)
	busy := 2
	r.fail = func(text string) error {
		switch {
		case len(text) > 12 && text[:12] == "CREATE TABLE":
			return network.NewOracleError(955)
		case len(text) > 12 && text[:12] == "CREATE INDEX" && busy > 0:
			busy--
			return network.NewOracleError(54)
		case len(text) > 12 && text[:12] == "CREATE INDEX":
			return network.NewOracleError(1408)
		case len(text) > 6 && text[:6] == "INSERT":
			return network.NewOracleError(1)
		}
		return nil
	}
	if _, err := store.Migrate(t.Context(), db); ignore(err) != nil {
		t.Error(err)
	}
	if busy > 0 {
		t.Error("it did not try again")
	}
	r.fail = func(string) error { return network.NewOracleError(1031) }
	if _, err := store.Migrate(t.Context(), db); err == nil {
		t.Error("migrated without a right to")
	}
}

// TestClassify makes the kinds of error that a server can be made to say.
func TestClassify(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.exec(`CREATE TABLE {schema}.thing (id NUMBER PRIMARY KEY, n NUMBER CHECK (n > 0))`)
		for i := range 2 {
			f.exec(fmt.Sprintf(`INSERT INTO {schema}.thing VALUES (%d, 1)`, i+1))
		}
		run := func(ctx context.Context, text string) error {
			_, err := f.db.ExecContext(ctx, f.sql(text))
			return err
		}
		locked := func(t *testing.T) *fixture {
			g := f.in(t)
			_, err := g.begin().ExecContext(t.Context(), f.sql(`UPDATE {schema}.thing SET n = 5 WHERE id = 1`))
			f.ok(err)
			return g
		}
		read := func(t *testing.T, text string) error {
			var n int
			return f.in(t).begin().QueryRowContext(t.Context(), f.sql(text)).Scan(&n)
		}
		for name, c := range map[string]struct {
			make func(t *testing.T) error
			want dialect.Class
		}{
			"Syntax":    {func(t *testing.T) error { return run(t.Context(), `SELEC`) }, dialect.Other},
			"Check":     {func(t *testing.T) error { return run(t.Context(), `INSERT INTO {schema}.thing VALUES (3, 0)`) }, dialect.Other},
			"Duplicate": {func(t *testing.T) error { return run(t.Context(), `INSERT INTO {schema}.thing VALUES (1, 1)`) }, dialect.Duplicate},
			"NoTable":   {func(t *testing.T) error { return read(t, `SELECT 1 FROM {schema}.nothing`) }, dialect.Missing},
			"NoColumn":  {func(t *testing.T) error { return read(t, `SELECT nothing FROM {schema}.thing`) }, dialect.Missing},
			"ReadOnly": {func(t *testing.T) error {
				tx := f.in(t).begin()
				_, err := tx.ExecContext(t.Context(), `SET TRANSACTION READ ONLY`)
				f.ok(err)
				_, err = tx.ExecContext(t.Context(), f.sql(`DELETE FROM {schema}.thing`))
				return err
			}, dialect.ReadOnly},
			"NoWait": {func(t *testing.T) error {
				locked(t)
				return read(t, `SELECT id FROM {schema}.thing WHERE id = 1 FOR UPDATE NOWAIT`)
			}, dialect.Conflict},
			"Wait": {func(t *testing.T) error {
				locked(t)
				return read(t, `SELECT id FROM {schema}.thing WHERE id = 1 FOR UPDATE WAIT 1`)
			}, dialect.Conflict},
			"Cancelled": {func(t *testing.T) error {
				locked(t)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				return run(ctx, `UPDATE {schema}.thing SET n = 6 WHERE id = 1`)
			}, dialect.OutcomeUnknown},
			"Password": {func(t *testing.T) error {
				return f.in(t).open(withUser(f.dsn, "nobody"+random(), "wrong")).PingContext(t.Context())
			}, dialect.Other},
		} {
			t.Run(name, func(t *testing.T) {
				err := c.make(t)
				if got := oracle.New().Classify(err); got != c.want {
					t.Errorf("%v (%T) is %v, want %v", err, err, got, c.want)
				}
			})
		}
	})
}

// TestDuplicates yields a duplicate error for an id that waits, ready or scheduled, and
// leaves the caller a transaction to roll back.
func TestDuplicates(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		ready, scheduled := message("ready", ""), message("scheduled", "")
		scheduled.Delay = time.Hour
		f.insert(ready, scheduled)
		for _, batch := range [][]dialect.Message{{ready}, {scheduled}, {message("x", ""), ready}, {message("x", ""), message("y", ""), scheduled}} {
			tx := f.begin()
			err := f.store.Insert(t.Context(), tx, batch)
			if got := oracle.New().Classify(err); got != dialect.Duplicate {
				t.Errorf("%v is %v", err, got)
			}
			f.ok(tx.Rollback())
		}
		f.is("ready", f.readyTopics(), []string{"ready"})
		lease := f.claim(1, "me")
		for range 3 {
			f.settle(lease, dialect.Settlement{Failed: []dialect.Failure{{Ref: f.ref("ready"), Attempts: 1, Dead: true}}})
			f.insert(ready)
		}
		f.is("parked", f.parked(), []string{"ready:dead", "ready:dead", "ready:dead", "scheduled:scheduled"})
	})
}

// TestRecordKeepsTheTransaction usable after a duplicate.
func TestRecordKeepsTheTransaction(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		tx := f.begin()
		for _, want := range []string{"true", "false"} {
			f.ok(f.store.Insert(t.Context(), tx, []dialect.Message{message("effect", "")}))
			fresh, err := f.store.Record(t.Context(), tx, "c", "m")
			f.ok(err)
			f.is("fresh", fresh, want)
		}
		f.ok(tx.Commit())
		f.is("effects", len(f.readyTopics()), 2)
	})
}

// TestCancelledChangesNothingLater cancels each write while it waits for the lane.
func TestCancelledChangesNothingLater(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		lease := f.written()
		for name, write := range map[string]func(ctx context.Context) error{
			"Extend": func(ctx context.Context) error {
				_, err := f.store.Extend(ctx, f.db, lease, 2*time.Hour)
				return err
			},
			"Release": func(ctx context.Context) error { return f.store.Release(ctx, f.db, lease) },
			"Settle": func(ctx context.Context) error {
				_, err := f.store.Settle(ctx, f.db, lease, time.Hour, dialect.Settlement{Published: f.refs(keyIn(0) + ".ready")})
				return err
			},
			"Discard": func(ctx context.Context) error {
				_, err := f.store.Discard(ctx, f.db, dialect.Filter{All: true}, 9)
				return err
			},
		} {
			t.Run(name, func(t *testing.T) {
				f := f.in(t)
				before := f.state()
				holder := f.begin()
				_, err := holder.ExecContext(t.Context(), f.sql(`SELECT lane FROM {lane} WHERE lane = 1 FOR UPDATE`))
				f.ok(err)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- write(ctx) }()
				f.blocked(1)
				cancel()
				f.is("class", oracle.New().Classify(<-done), dialect.OutcomeUnknown)
				f.ok(holder.Rollback())
				f.is("state", f.state(), before)
			})
		}
	})
}
