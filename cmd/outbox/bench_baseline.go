package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/bench"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/postgres"
)

// baselineOf is what one writes by hand on an engine.
func baselineOf(ctx context.Context, engine string, db *sql.DB) (*bench.Baseline, error) {
	switch engine {
	case "postgres":
		return postgresBaseline(), nil
	case "mysql":
		var version string
		if err := db.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version); err != nil {
			return nil, err
		}
		return mysqlBaseline(strings.Contains(version, "MariaDB")), nil
	case "sqlite":
		return sqliteBaseline(), nil
	default:
		return nil, usagef("there is no baseline for %s here: bench measures against SQL written by hand, which nobody has tried on that engine", engine)
	}
}

// placeholders are n groups of seven, each written by one of a statement's arguments,
// which count from 1.
func placeholders(n int, one func(i int) string) string {
	const columns = 7
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteByte('(')
		for j := range columns {
			if j > 0 {
				b.WriteString(", ")
			}
			b.WriteString(one(i*columns + j + 1))
		}
		b.WriteByte(')')
	}
	return b.String()
}

func question(int) string { return "?" }

// amongIDs writes ids into a statement, as a list.
func amongIDs(before string) func(ids []int64) (string, []any) {
	return func(ids []int64) (string, []any) {
		b := make([]byte, 0, len(before)+20*len(ids))
		b = append(b, before...)
		for i, id := range ids {
			if i > 0 {
				b = append(b, ", "...)
			}
			b = strconv.AppendInt(b, id, 10)
		}
		return string(append(b, ')')), nil
	}
}

// pgxWithCommit is a business transaction of pgx itself.
func pgxWithCommit(ctx context.Context, db *sql.DB, query string, args []any, enqueue func(tx outbox.Tx) error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // it goes back to the pool
	return conn.Raw(func(driven any) error {
		c, ok := driven.(*stdlib.Conn)
		if !ok {
			return fmt.Errorf("connection is a %T, not one of pgx", driven)
		}
		return postgres.InTx(ctx, c.Conn(), func(tx pgx.Tx, last dialect.Tx) error {
			if _, err := tx.Exec(ctx, query, args...); err != nil {
				return err
			}
			return enqueue(last)
		})
	})
}

func postgresBaseline() *bench.Baseline {
	array := func(query string) func(ids []int64) (string, []any) {
		return func(ids []int64) (string, []any) { return query, []any{ids} }
	}
	return &bench.Baseline{
		Name: "postgres",
		Create: []string{
			`CREATE TABLE {loop} (
				id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
				message_id uuid NOT NULL UNIQUE,
				topic text NOT NULL, key text, type text NOT NULL, content_type text NOT NULL,
				headers text NOT NULL, payload bytea,
				created_at timestamptz NOT NULL DEFAULT now(), published_at timestamptz)`,
			`CREATE INDEX ON {loop} (id) WHERE published_at IS NULL`,
			`CREATE TABLE {business} (
				id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
				account bigint NOT NULL, amount bigint NOT NULL, created_at timestamptz NOT NULL DEFAULT now())`,
		},
		Business:   `INSERT INTO {business} (account, amount) VALUES ($1, $2)`,
		WithCommit: pgxWithCommit,
		Insert: func(n int) string {
			return `INSERT INTO {loop} (message_id, topic, key, type, content_type, headers, payload) VALUES ` +
				placeholders(n, func(i int) string { return "$" + strconv.Itoa(i) })
		},
		MessageID: func(id [16]byte) any { return uuid.UUID(id).String() },
		Select: func(limit int) string {
			return fmt.Sprintf(`SELECT id, message_id, topic, key, type, content_type, headers, payload, created_at
				FROM {loop} WHERE published_at IS NULL ORDER BY id LIMIT %d FOR UPDATE SKIP LOCKED`, limit)
		},
		Update: array(`UPDATE {loop} SET published_at = now() WHERE id = ANY($1)`),
		Delete: array(`DELETE FROM {loop} WHERE id = ANY($1)`),
		Settings: []bench.Setting{
			{Name: "fsync", Query: "SHOW fsync", Durable: []string{"on"}},
			{Name: "synchronous_commit", Query: "SHOW synchronous_commit", Durable: []string{"on", "local", "remote_write", "remote_apply"}},
			{Name: "full_page_writes", Query: "SHOW full_page_writes", Durable: []string{"on"}},
			{Name: "wal_sync_method", Query: "SHOW wal_sync_method"},
			{Name: "wal_level", Query: "SHOW wal_level"},
			{Name: "max_wal_size", Query: "SHOW max_wal_size"},
			{Name: "shared_buffers", Query: "SHOW shared_buffers"},
			{Name: "huge_pages", Query: "SHOW huge_pages"},
			{Name: "autovacuum", Query: "SHOW autovacuum"},
		},
		Tidy: func(ctx context.Context, db *sql.DB, tables []string) error {
			for _, t := range tables {
				if _, err := db.ExecContext(ctx, "VACUUM (ANALYZE) "+t); err != nil {
					return err
				}
			}
			_, err := db.ExecContext(ctx, "CHECKPOINT")
			return err
		},
		LogBytes: func(ctx context.Context, db *sql.DB) (n int64, err error) {
			err = db.QueryRowContext(ctx, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint").Scan(&n)
			return n, err
		},
		// A row has the number of the transaction that deletes or locks it, and keeps it
		// when that has ended: only those that are at work count.
		Locked: func(ctx context.Context, db *sql.DB, tables []string) (n int64, err error) {
			for _, t := range tables {
				var rows int64
				err := db.QueryRowContext(ctx, "SELECT count(*) FROM "+t+
					" WHERE xmax::text IN (SELECT backend_xid::text FROM pg_stat_activity WHERE backend_xid IS NOT NULL)").Scan(&rows)
				if err != nil {
					return 0, err
				}
				n += rows
			}
			return n, nil
		},
		ServerTime: func(ctx context.Context, db *sql.DB, query string, args []any) (time.Duration, error) {
			var text string
			if err := db.QueryRowContext(ctx, "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) "+query, args...).Scan(&text); err != nil {
				return 0, err
			}
			var plans []struct {
				Milliseconds float64 `json:"Execution Time"`
			}
			if err := json.Unmarshal([]byte(text), &plans); err != nil || len(plans) != 1 {
				return 0, fmt.Errorf("the plan cannot be read: %w", err)
			}
			return time.Duration(plans[0].Milliseconds * float64(time.Millisecond)), nil
		},
		Snapshot: []string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM {business}"},
		Goals: map[string]bench.Goal{
			"idle-poll/server": {Text: "≤ 100 µs", Most: 100},
		},
	}
}

func mysqlBaseline(mariaDB bool) *bench.Baseline {
	b := &bench.Baseline{
		Name: "mysql",
		Create: []string{
			"CREATE TABLE {loop} (" +
				"id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, message_id BINARY(16) NOT NULL UNIQUE, " +
				"topic VARCHAR(255) NOT NULL, `key` VARCHAR(512), type VARCHAR(255) NOT NULL, content_type VARCHAR(255) NOT NULL, " +
				"headers TEXT NOT NULL, payload LONGBLOB, " +
				"created_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), published_at DATETIME(6), " +
				"KEY (published_at, id)) ENGINE = InnoDB",
			"CREATE TABLE {business} (" +
				"id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, account BIGINT NOT NULL, amount BIGINT NOT NULL, " +
				"created_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)) ENGINE = InnoDB",
		},
		Business: "INSERT INTO {business} (account, amount) VALUES (?, ?)",
		Insert: func(n int) string {
			return "INSERT INTO {loop} (message_id, topic, `key`, type, content_type, headers, payload) VALUES " + placeholders(n, question)
		},
		MessageID: func(id [16]byte) any { return id[:] },
		Select: func(limit int) string {
			return fmt.Sprintf("SELECT id, message_id, topic, `key`, type, content_type, headers, payload, created_at "+
				"FROM {loop} WHERE published_at IS NULL ORDER BY id LIMIT %d FOR UPDATE SKIP LOCKED", limit)
		},
		Update: amongIDs("UPDATE {loop} SET published_at = NOW(6) WHERE id IN ("),
		Delete: amongIDs("DELETE FROM {loop} WHERE id IN ("),
		Settings: []bench.Setting{
			{Name: "innodb_flush_log_at_trx_commit", Query: "SELECT @@innodb_flush_log_at_trx_commit", Durable: []string{"1", "3"}},
			{Name: "log_bin", Query: "SELECT @@log_bin"},
			{Name: "sync_binlog", Query: "SELECT IF(@@log_bin, @@sync_binlog, 'off')", Durable: []string{"1", "off"}},
			{Name: "innodb_doublewrite", Query: "SELECT @@innodb_doublewrite"},
			{Name: "innodb_flush_method", Query: "SELECT @@innodb_flush_method"},
			{Name: "innodb_buffer_pool_size", Query: "SELECT @@innodb_buffer_pool_size"},
			{Name: "transaction_isolation", Query: "SELECT @@transaction_isolation"},
		},
		Tidy: func(ctx context.Context, db *sql.DB, tables []string) error {
			for _, t := range tables {
				if err := scanned(ctx, db, "ANALYZE TABLE "+t); err != nil {
					return err
				}
			}
			return mysqlPurged(ctx, db, mariaDB)
		},
		LogBytes: func(ctx context.Context, db *sql.DB) (n int64, err error) {
			var name string
			err = db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Innodb_os_log_written'").Scan(&name, &n)
			return n, err
		},
		// The server's own count, over all tables.
		Locked: func(ctx context.Context, db *sql.DB, _ []string) (n int64, err error) {
			err = db.QueryRowContext(ctx, "SELECT COALESCE(SUM(trx_rows_locked), 0) FROM information_schema.innodb_trx").Scan(&n)
			return n, err
		},
		Snapshot: []string{"START TRANSACTION WITH CONSISTENT SNAPSHOT", "SELECT COUNT(*) FROM {business}"},
		Goals: map[string]bench.Goal{
			"drain/delete/0":   {Text: "≥ 1.3 × the DELETE loop (MySQL 9.7)", RatioLeast: 1.3},
			"drain/update/24h": {},
		},
	}
	if mariaDB {
		b.Name = "mariadb"
		delete(b.Goals, "drain/delete/0")
		b.Settings[len(b.Settings)-1].Query = "SELECT @@tx_isolation"
	}
	return b
}

// scanned runs a statement that returns rows nobody needs.
func scanned(ctx context.Context, db *sql.DB, query string) error {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // read to the end
	for rows.Next() {
	}
	return rows.Err()
}

// mysqlPurged waits for a while until the server has removed what transactions
// before have deleted, which it does beside the next ones.
func mysqlPurged(ctx context.Context, db *sql.DB, mariaDB bool) error {
	const patience, few = 20 * time.Second, 500
	query := "SELECT `COUNT` FROM information_schema.INNODB_METRICS WHERE NAME = 'trx_rseg_history_len'"
	if mariaDB {
		query = "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'Innodb_history_list_length'"
	}
	for began := time.Now(); ; {
		var length int64
		if err := db.QueryRowContext(ctx, query).Scan(&length); err != nil {
			return err
		}
		if length < few || time.Since(began) > patience {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func sqliteBaseline() *bench.Baseline {
	return &bench.Baseline{
		Name: "sqlite", OneWriter: true, Within: true,
		Create: []string{
			`CREATE TABLE {loop} (
				id INTEGER PRIMARY KEY AUTOINCREMENT, message_id BLOB NOT NULL UNIQUE,
				topic TEXT NOT NULL, key TEXT, type TEXT NOT NULL, content_type TEXT NOT NULL,
				headers TEXT NOT NULL, payload BLOB,
				created_at INTEGER NOT NULL DEFAULT (unixepoch()), published_at INTEGER)`,
			`CREATE INDEX {loop}_unpublished ON {loop} (id) WHERE published_at IS NULL`,
			`CREATE TABLE {business} (
				id INTEGER PRIMARY KEY AUTOINCREMENT, account INTEGER NOT NULL, amount INTEGER NOT NULL,
				created_at INTEGER NOT NULL DEFAULT (unixepoch()))`,
		},
		Business: `INSERT INTO {business} (account, amount) VALUES (?, ?)`,
		Insert: func(n int) string {
			return `INSERT INTO {loop} (message_id, topic, key, type, content_type, headers, payload) VALUES ` + placeholders(n, question)
		},
		MessageID: func(id [16]byte) any { return id[:] },
		Select: func(limit int) string {
			return fmt.Sprintf(`SELECT id, message_id, topic, key, type, content_type, headers, payload, created_at
				FROM {loop} WHERE published_at IS NULL ORDER BY id LIMIT %d`, limit)
		},
		Update: amongIDs(`UPDATE {loop} SET published_at = unixepoch() WHERE id IN (`),
		Delete: amongIDs(`DELETE FROM {loop} WHERE id IN (`),
		Settings: []bench.Setting{
			{Name: "journal_mode", Query: "PRAGMA journal_mode", Durable: []string{"wal", "delete", "truncate", "persist"}},
			{Name: "synchronous", Query: "PRAGMA synchronous", Durable: []string{"2", "3"}},
			{Name: "cache_size", Query: "PRAGMA cache_size"},
			{Name: "page_size", Query: "PRAGMA page_size"},
			{Name: "wal_autocheckpoint", Query: "PRAGMA wal_autocheckpoint"},
		},
		Tidy: func(ctx context.Context, db *sql.DB, _ []string) error {
			return scanned(ctx, db, "PRAGMA wal_checkpoint(TRUNCATE)")
		},
		Snapshot: []string{"BEGIN DEFERRED", "SELECT count(*) FROM {business}"},
		Goals:    map[string]bench.Goal{"drain/update/24h": {}, "enqueue/insert": {}, "enqueue/bare": {}},
	}
}
