package sqlserver_test

import (
	"context"
	"crypto/tls"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/sqlserver"
)

// raised is an error as the driver makes it of what the server sends: its own number is
// the last one's.
func raised(numbers ...int32) mssql.Error {
	var err mssql.Error
	var all []mssql.Error
	for _, n := range numbers {
		err = mssql.Error{Number: n, Class: 14, Message: fmt.Sprint("message of ", n)}
		all = append(all, err)
	}
	err.All = all
	return err
}

// severed is an mssql.ServerError as close as it can be made outside the driver: its
// cause has no exported way in.
func severed() error { return mssql.ServerError{} }

// TestClassify covers the driver's errors and what the server reports.
func TestClassify(t *testing.T) {
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	reset := &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	for name, c := range map[string]struct {
		err  error
		want dialect.Class
	}{
		"Nil":            {nil, dialect.Other},
		"Unknown":        {errors.New("unknown"), dialect.Other},
		"Duplicate":      {raised(2627), dialect.Duplicate},
		"DuplicateIndex": {raised(2601), dialect.Duplicate},
		"Wrapped":        {fmt.Errorf("enqueue: %w", raised(2627)), dialect.Duplicate},
		"Joined":         {errors.Join(errors.New("x"), raised(1205)), dialect.Conflict},
		"First":          {raised(2627, 3621), dialect.Duplicate},
		"Doomed":         {raised(1205, 3998), dialect.Conflict},
		"DoomedByOther":  {raised(547, 3998), dialect.Conflict},
		"Last":           {raised(8134, 208), dialect.Missing},
		"NoList":         {mssql.Error{Number: 1222}, dialect.Conflict},
		"Snapshot":       {raised(3960), dialect.Conflict},
		"Aborted": {
			mssql.Error{Message: "server does not have an active transaction: the transaction was aborted by the server"}, dialect.Conflict,
		},
		"NoReason":      {mssql.Error{Message: "Request failed but didn't provide reason"}, dialect.Other},
		"Login":         {mssql.Error{Number: 18456, Message: "login error: Login failed for user"}, dialect.Other},
		"LoginPaused":   {mssql.Error{Number: 40613, Message: "login error: Database is not currently available"}, dialect.Transient},
		"ReadOnly":      {raised(3906), dialect.ReadOnly},
		"Secondary":     {raised(978), dialect.ReadOnly},
		"Syntax":        {raised(102), dialect.Other},
		"Permission":    {raised(229), dialect.Other},
		"TooLong":       {raised(2628), dialect.Other},
		"Check":         {raised(547), dialect.Other},
		"Plan":          {raised(8622), dialect.Other},
		"Column":        {raised(207), dialect.Missing},
		"HintedIndex":   {raised(308), dialect.Missing},
		"HintedKey":     {raised(307), dialect.Missing},
		"VersionsGone":  {raised(3966), dialect.Conflict},
		"Gone":          {raised(3971), dialect.Conflict},
		"LogFull":       {raised(9002), dialect.Transient},
		"AzureBusy":     {raised(40501), dialect.Transient},
		"AzureTooMany":  {raised(49918), dialect.Transient},
		"AzureFailed":   {raised(40197), dialect.OutcomeUnknown},
		"Killed":        {raised(596), dialect.OutcomeUnknown},
		"Network":       {raised(10054), dialect.OutcomeUnknown},
		"Severed":       {severed(), dialect.OutcomeUnknown},
		"SeveredCommit": {fmt.Errorf("commit: %w", severed()), dialect.OutcomeUnknown},
		"Stream":        {mssql.StreamError{InnerError: errors.New("did not get cancellation confirmation from the server")}, dialect.OutcomeUnknown},
		"NotSent":       {mssql.RetryableError{}, dialect.Transient},
		"NotSentAgain":  {fmt.Errorf("begin: %w", mssql.RetryableError{}), dialect.Transient},
		"BadConn":       {driver.ErrBadConn, dialect.Transient},
		"ConnDone":      {sql.ErrConnDone, dialect.Transient},
		"TxDone":        {sql.ErrTxDone, dialect.Other},
		"Refused":       {fmt.Errorf("unable to open tcp connection with host 'h:1433': %w", dial), dialect.Transient},
		"Reset":         {reset, dialect.OutcomeUnknown},
		"EOF":           {io.EOF, dialect.OutcomeUnknown},
		"Cut":           {io.ErrUnexpectedEOF, dialect.OutcomeUnknown},
		"Closed":        {net.ErrClosed, dialect.OutcomeUnknown},
		"TLS":           {fmt.Errorf("TLS Handshake failed: %w", &tls.CertificateVerificationError{Err: errors.New("no")}), dialect.Other},
		"Cancelled":     {context.Canceled, dialect.OutcomeUnknown},
		"Deadline":      {fmt.Errorf("%w: %w", context.DeadlineExceeded, sql.ErrTxDone), dialect.OutcomeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			if got := sqlserver.New().Classify(c.err); got != c.want {
				t.Errorf("%v (%T) is %v, want %v", c.err, c.err, got, c.want)
			}
		})
	}
}

// TestUnreachable classifies what the driver really says where nothing listens, and
// where what listens breaks off.
func TestUnreachable(t *testing.T) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	db, err := sqlserver.Open("sqlserver://me:s3cret@" + addr + "?database=x")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	store := bind(t)
	_, err = store.Poll(t.Context(), db, "me", 1)
	if got := sqlserver.New().Classify(err); err == nil || got != dialect.OutcomeUnknown && got != dialect.Transient {
		t.Errorf("broken off: %v (%T) is %v", err, err, got)
	}
	_ = listener.Close()
	_, err = store.Poll(t.Context(), db, "me", 1)
	if got := sqlserver.New().Classify(err); got != dialect.Transient {
		t.Errorf("refused: %v (%T) is %v", err, err, got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = store.Claim(ctx, db, 1, "me", time.Second)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestDuplicates yields a duplicate error for an id that waits, ready or scheduled,
// and leaves the caller a transaction to roll back.
func TestDuplicates(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		ready, scheduled := message("ready", ""), message("scheduled", "")
		scheduled.Delay = time.Hour
		f.insert(ready, scheduled)
		for _, batch := range [][]dialect.Message{{ready}, {scheduled}, {message("x", ""), ready}, {message("x", ""), message("y", ""), scheduled}} {
			tx := f.begin()
			err := f.store.Insert(t.Context(), tx, batch)
			if got := sqlserver.New().Classify(err); got != dialect.Duplicate {
				t.Errorf("%v is %v", err, got)
			}
			f.ok(tx.Rollback())
		}
		f.is("ready", f.readyTopics(), []string{"ready"})

		// Parked otherwise, the id may stand there any number of times.
		lease := f.claim(1, "me")
		for range 3 {
			f.settle(lease, dialect.Settlement{Failed: []dialect.Failure{{Ref: f.ref("ready"), Attempts: 1, Dead: true}}})
			f.insert(ready)
		}
		f.is("parked", f.parked(), []string{"ready:dead", "ready:dead", "ready:dead", "scheduled:scheduled"})
	})
}

// TestServerErrors makes errors happen on a server.
func TestServerErrors(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.exec(`CREATE TABLE {schema}.[thing] (id int NOT NULL PRIMARY KEY, n int NOT NULL CHECK (n > 0))`)
		f.exec(`INSERT INTO {schema}.[thing] (id, n) VALUES (1, 1), (2, 2)`)
		run := func(text string) error {
			_, err := f.db.ExecContext(t.Context(), f.sql(text))
			return err
		}
		for text, want := range map[string]dialect.Class{
			`INSERT INTO {schema}.[thing] (id, n) VALUES (1, 1)`: dialect.Duplicate,
			`INSERT INTO {schema}.[thing] (id, n) VALUES (3, 0)`: dialect.Other,
			`SELECT 1 FROM {schema}.[nothing]`:                   dialect.Missing,
			`SELECT nothing FROM {schema}.[thing]`:               dialect.Missing,
			`SELECT id FROM {schema}.[thing] WITH (INDEX (x))`:   dialect.Missing,
			`SELEC`: dialect.Other,
		} {
			if got := sqlserver.New().Classify(run(text)); got != want {
				t.Errorf("%s: %v, want %v", text, got, want)
			}
		}
		// A lock that is not to be had, and a deadlock.
		a, b := f.begin(), f.begin()
		update := func(tx *sql.Tx, id int) error {
			_, err := tx.ExecContext(context.WithoutCancel(t.Context()), f.sql(`UPDATE {schema}.[thing] SET n = n + 1 WHERE id = @p1`), id)
			return err
		}
		f.ok(update(a, 1))
		f.ok(update(b, 2))
		done := make(chan error, 1)
		go func() {
			err := update(b, 1)
			_ = b.Rollback()
			done <- err
		}()
		f.blocked(1)
		err := update(a, 2)
		_ = a.Rollback()
		f.is("deadlock", sqlserver.New().Classify(errors.Join(err, <-done)), dialect.Conflict)
		f.ok(update(f.begin(), 1))
		f.is("lock timeout", sqlserver.New().Classify(update(f.begin(), 1)), dialect.Conflict)
		// The time is for the statement, not for connecting.
		conn, err := f.db.Conn(t.Context())
		f.ok(err)
		defer func() { _ = conn.Close() }()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err = conn.ExecContext(ctx, `WAITFOR DELAY '00:01:00'`)
		f.is("deadline", sqlserver.New().Classify(err), dialect.OutcomeUnknown)
	})
}

// TestCancelledChangesNothingLater cancels each write while it waits for the lane, and
// finds no lock left behind.
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
				_, err := holder.ExecContext(f.Context(), f.sql(`UPDATE {lane} SET epoch = epoch WHERE lane = 1`))
				f.ok(err)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- write(ctx) }()
				f.blocked(1)
				cancel()
				f.is("class", sqlserver.New().Classify(<-done), dialect.OutcomeUnknown)
				f.ok(holder.Rollback())
				f.await("no locks left", func() bool {
					return f.count(`SELECT COUNT(*) FROM sys.dm_tran_locks AS k WHERE k.resource_database_id = DB_ID() AND k.resource_type = 'KEY'`) == 0
				})
				f.is("state", f.state(), before)
			})
		}
	})
}
