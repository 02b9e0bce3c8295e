package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	driverpkg "github.com/go-sql-driver/mysql"

	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/mysql"
)

// onOwnServers runs test on the servers that were started for the tests, whose global
// settings may be changed.
func onOwnServers(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Helper()
	onEachServer(t, func(t *testing.T, server *containers.Server) {
		if !server.CanRestart() {
			t.Skip("the server's settings are its owner's: the test needs a server in a container")
		}
		f := unmigrated(t, server.DSN)
		f.migrate()
		test(t, f)
	})
}

// set changes a global setting for the test.
func (f *fixture) set(name, value string) {
	f.Helper()
	var before string
	f.ok(f.plain.QueryRowContext(f.Context(), "SELECT @@GLOBAL."+name).Scan(&before))
	f.exec("SET GLOBAL " + name + " = " + value)
	f.Cleanup(func() {
		if _, err := f.plain.ExecContext(context.WithoutCancel(f.Context()), "SET GLOBAL "+name+" = "+before); err != nil {
			f.Error(err)
		}
	})
}

// TestReadOnlyServer is a primary that has become a replica, for a user who has no
// right to write there all the same.
func TestReadOnlyServer(t *testing.T) {
	onOwnServers(t, func(t *testing.T, f *fixture) {
		user := "u" + random()
		f.exec("CREATE USER " + user + " IDENTIFIED BY 'secret'")
		f.Cleanup(func() {
			_, _ = f.plain.ExecContext(context.WithoutCancel(f.Context()), "DROP USER "+user)
		})
		f.exec("GRANT ALL ON {schema}.* TO " + user)
		g := *f
		g.db = f.open(withUser(f.dsn, user, "secret", f.tables.Schema))
		g.insert(message("before", ""))
		t.Run("ReadOnly", func(t *testing.T) {
			g, f := g.in(t), f.in(t)
			f.set("read_only", "1")
			err := g.tryInsert(message("x", ""))
			f.is(fmt.Sprint("class of ", err), mysql.New().Classify(err), dialect.ReadOnly)
			_, _, err = g.store.Claim(t.Context(), g.db, 1, "me", 1)
			f.is(fmt.Sprint("class of ", err), mysql.New().Classify(err), dialect.ReadOnly)
			found, err := g.store.Inspect(t.Context(), g.db)
			f.ok(err)
			if len(found.Problems) != 1 || !strings.Contains(found.Problems[0], "accepts no writes (read_only=") {
				t.Errorf("problems: %q", found.Problems)
			}
		})
		f.is("ready", f.readyTopics(), []string{"before"})
	})
}

// TestSmallPackets cuts inserts and refuses messages by what the server takes, not by
// what it would take by default.
func TestSmallPackets(t *testing.T) {
	onOwnServers(t, func(t *testing.T, f *fixture) {
		f.set("max_allowed_packet", "1048576")
		f.db = f.open(f.dsn) // sessions keep what they began with
		var messages []dialect.Message
		for i := range 12 {
			m := message(fmt.Sprint(i), "")
			m.Payload = make([]byte, 200<<10)
			messages = append(messages, m)
		}
		f.insert(messages...)
		f.is("ready", len(f.readyTopics()), len(messages))
		over, nearly := message("over", ""), message("nearly", "")
		over.Payload, nearly.Payload = make([]byte, 1<<20), make([]byte, 1<<20-17<<10)
		tx := f.begin()
		err := f.store.Insert(t.Context(), tx, []dialect.Message{nearly, over})
		if !errors.Is(err, driverpkg.ErrPktTooLarge) || !strings.Contains(err.Error(), "max_allowed_packet is 1048576: raise it") {
			t.Errorf("error: %v", err)
		}
		f.ok(f.store.Insert(t.Context(), tx, []dialect.Message{nearly}))
		f.ok(tx.Commit())
		f.is("ready", len(f.readyTopics()), len(messages)+1)
	})
}

// TestStatementBinlog tells of a binary log that does not take what the outbox writes.
func TestStatementBinlog(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		db := f.open(with(f.dsn, "binlog_format", "'STATEMENT'"))
		found, err := f.store.Inspect(t.Context(), db)
		f.ok(err)
		logged := f.count(`SELECT @@GLOBAL.log_bin`) == 1
		if told := strings.Contains(fmt.Sprint(found.Problems), "binlog_format is STATEMENT"); told != logged {
			t.Errorf("log_bin is %t, problems: %q", logged, found.Problems)
		}
		_, err = f.store.Settle(t.Context(), db, f.claim(1, "me"), time.Hour, dialect.Settlement{})
		if failed := err != nil; failed != logged {
			t.Errorf("log_bin is %t, settle: %v", logged, err)
		}
	})
}

// TestSnapshotTooOld writes in a transaction whose snapshot does not show what is
// written over, which MariaDB refuses since 11.6.
func TestSnapshotTooOld(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		tx, err := f.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		f.ok(err)
		defer func() { _ = tx.Rollback() }()
		f.ok(tx.QueryRowContext(t.Context(), f.sql(`SELECT epoch FROM {lane} WHERE lane = 1`)).Scan(new(int)))
		f.claim(1, "other")
		_, err = tx.ExecContext(t.Context(), f.sql(`UPDATE {lane} SET epoch = 9 WHERE lane = 1`))
		if err == nil {
			t.Skip("the server lets it")
		}
		f.is(fmt.Sprint("class of ", err), mysql.New().Classify(err), dialect.Conflict)
	})
}

// TestSafeUpdates works in a session that refuses updates without a key, or tells why
// it does not.
func TestSafeUpdates(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.db = f.open(with(f.dsn, "sql_safe_updates", "1"))
		if !f.isMariaDB() {
			f.everything()
			return
		}
		found, err := f.store.Inspect(t.Context(), f.db)
		f.ok(err)
		if len(found.Problems) != 1 || !strings.Contains(found.Problems[0], "sql_safe_updates is ON") {
			t.Errorf("problems: %q", found.Problems)
		}
	})
}
