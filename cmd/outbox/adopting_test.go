package main

import (
	"crypto/rand"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/outbox-suite/outbox/conformance/containers"
)

// importSection is that of docs/adopting.md for an engine.
func importSection(t *testing.T, heading string) string {
	t.Helper()
	_, rest, found := strings.Cut(readFile(t, filepath.Join("..", "..", "docs", "adopting.md")), "\n### "+heading+"\n")
	if !found {
		t.Fatalf("there is no section %s", heading)
	}
	return regexp.MustCompile(`(?m)^##`).Split(rest, 2)[0]
}

// importQueries are those of the section.
func importQueries(t *testing.T, heading string) []string {
	t.Helper()
	var all []string
	for _, m := range regexp.MustCompile("(?s)\n```sql\n(.*?);\n```").FindAllStringSubmatch(importSection(t, heading), -1) {
		all = append(all, m[1])
	}
	if len(all) != 2 {
		t.Fatalf("%d queries for %s", len(all), heading)
	}
	return all
}

// everyDatabase runs a test on a new database of each server that is there.
func everyDatabase(t *testing.T, test func(t *testing.T, engine string, s *shell, db *sql.DB)) {
	t.Helper()
	open := func(t *testing.T, engine, dsn string) (*shell, *sql.DB) {
		t.Helper()
		e, err := engineNamed(engine)
		if err != nil {
			t.Fatal(err)
		}
		db, err := e.open(dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		return &shell{t, map[string]string{"OUTBOX_DSN": dsn}}, db
	}
	t.Run("sqlite", func(t *testing.T) {
		s, db := open(t, "sqlite", "sqlite:"+filepath.Join(t.TempDir(), "shop.db"))
		test(t, "SQLite", s, db)
	})
	for _, engine := range []string{"postgres", "mysql", "mariadb"} {
		t.Run(engine, func(t *testing.T) {
			for _, server := range containers.Servers(t, engine) {
				t.Run(server.Version, func(t *testing.T) {
					name := "shop_" + strings.ToLower(rand.Text()[:10])
					query(t, engine, server.DSN, "CREATE DATABASE "+name)
					t.Cleanup(func() { query(t, engine, server.DSN, "DROP DATABASE "+name) })
					u, err := url.Parse(server.DSN)
					if err != nil {
						t.Fatal("the server's DSN is no URL") // which may hold a password
					}
					u.Path = "/" + name
					s, db := open(t, engine, u.String())
					heading := "MySQL and MariaDB"
					if engine == "postgres" {
						heading = "PostgreSQL"
					}
					test(t, heading, s, db)
				})
			}
		})
	}
}

// linesOf are the lines that a query returns.
func linesOf(t *testing.T, db *sql.DB, statement string) (lines []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), statement)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return lines
}

// TestImport imports both layouts as docs/adopting.md says, with an interruption and a
// relay in between.
func TestImport(t *testing.T) {
	everyDatabase(t, func(t *testing.T, engine string, s *shell, db *sql.DB) {
		s.ok("", "migrate")
		const rows = 25
		queries := importQueries(t, engine)
		exec := func(statement string) {
			t.Helper()
			if _, err := db.ExecContext(t.Context(), statement); err != nil {
				t.Fatalf("%v\n%s", err, statement)
			}
		}
		exec(`CREATE TABLE outboxevent (id CHAR(36) PRIMARY KEY, aggregatetype VARCHAR(255) NOT NULL, aggregateid VARCHAR(255) NOT NULL,
			type VARCHAR(255) NOT NULL, payload JSON NOT NULL, created_at INTEGER NOT NULL)`)
		if engine == "PostgreSQL" {
			exec(`ALTER TABLE outboxevent ALTER id TYPE uuid USING id::uuid, ALTER payload TYPE jsonb`)
		}
		exec(`CREATE TABLE messages (id INTEGER PRIMARY KEY, topic VARCHAR(255) NOT NULL, entity VARCHAR(255) NOT NULL,
			event VARCHAR(255) NOT NULL, body VARCHAR(2000) NOT NULL, status VARCHAR(255) NOT NULL)`)
		for i := range rows {
			// Ids whose order is not that of the rows, and a payload longer than a line of base64.
			body := fmt.Sprintf(`{"n": %d, "text": "it''s é %s"}`, i, strings.Repeat("long ", 40))
			exec(fmt.Sprintf(`INSERT INTO outboxevent VALUES ('%08x-0000-4000-8000-000000000000', 'orders', 'order-%d', 'order.changed', '%s', %d)`,
				(i*7)%rows, i%3, body, i))
			exec(fmt.Sprintf(`INSERT INTO messages VALUES (%d, 'orders', 'order-%d', 'order.changed', '%s', 'pending')`, i+1, i%3, body))
		}
		exec(`INSERT INTO messages VALUES (1000, 'orders', 'order-1', 'order.changed', '{}', 'sent')`)
		for n, statement := range queries {
			lines := func() []string { t.Helper(); return linesOf(t, db, statement) }
			all := lines()
			if len(all) != rows {
				t.Fatalf("query %d finds %d rows", n, len(all))
			}
			// The first run breaks off: two transactions of five lines are there, and go
			// out. The second is whole.
			s.fails(exitFailed, strings.Join(all[:12], "\n")+"\n{", []string{"enqueue", "--tx-size", "5"}, "lines 1-10 are committed")
			got := s.deliver()
			s.ok(strings.Join(lines(), "\n"), "enqueue", "--tx-size", "5")
			if left := lines(); len(left) > 0 {
				t.Errorf("query %d still finds %q", n, left)
			}
			got = append(got, s.deliver()...)
			if len(got) != rows {
				t.Errorf("query %d: %d messages", n, len(got))
			}
			ids := map[string]bool{}
			byKey := map[string][]int{}
			for _, e := range got {
				var data struct {
					N    int
					Text string
				}
				if err := json.Unmarshal(e.Data, &data); err != nil {
					t.Fatal(err)
				}
				ids[e.ID] = true
				byKey[e.Subject] = append(byKey[e.Subject], data.N)
				if e.Topic != "orders" || e.Type != "order.changed" || !strings.HasPrefix(data.Text, "it's é long") {
					t.Errorf("%+v", e)
				}
				if want := fmt.Sprintf("%08x-0000-4000-8000-000000000000", (data.N*7)%rows); n == 0 && e.ID != want {
					t.Errorf("row %d has the id %s", data.N, e.ID)
				}
			}
			if len(ids) != rows || len(byKey) != 3 {
				t.Errorf("query %d: %d ids, %d keys", n, len(ids), len(byKey))
			}
			for key, numbers := range byKey {
				if !slices.IsSorted(numbers) {
					t.Errorf("query %d: %s has the order %v", n, key, numbers)
				}
			}
		}
	})
}

// TestImportNumbers imports rows whose numbers take all of 64 bits, and whose bodies are
// bytes: none takes another's id, and every byte comes through.
func TestImportNumbers(t *testing.T) {
	byteLine := regexp.MustCompile("(?m)^A `\\w+` body: `(.*)`\\.$")
	everyDatabase(t, func(t *testing.T, engine string, s *shell, db *sql.DB) {
		s.ok("", "migrate")
		statement := importQueries(t, engine)[1]
		column, body := map[string]string{"PostgreSQL": "BYTEA", "SQLite": "TEXT"}[engine], any([]byte{0, 255, '\\', 'x', '\n', 0xc3})
		switch engine {
		case "SQLite":
			body = `[1]`
		case "MySQL and MariaDB":
			column = "BLOB"
		}
		if engine != "SQLite" {
			line := byteLine.FindStringSubmatch(importSection(t, engine))
			if line == nil {
				t.Fatal("there is no line for a body of bytes")
			}
			statement = regexp.MustCompile(`(?m)^    'data_base64'.*$`).ReplaceAllLiteralString(statement, line[1])
		}
		if _, err := db.ExecContext(t.Context(), `CREATE TABLE messages (id BIGINT PRIMARY KEY, topic VARCHAR(255) NOT NULL, entity VARCHAR(255) NOT NULL,
			event VARCHAR(255) NOT NULL, body `+column+` NOT NULL, status VARCHAR(255) NOT NULL)`); err != nil {
			t.Fatal(err)
		}
		numbers := []int64{math.MinInt64, -1 << 48, -2, -1, 0, 1, 0xffffffff, 1 << 32, 1 << 48, 1<<48 + 1, 7185000000000000000, 7185000000000000004, math.MaxInt64}
		insert := "INSERT INTO messages VALUES (?, 'orders', 'one', 'order.changed', ?, 'pending')"
		if engine == "PostgreSQL" {
			insert = "INSERT INTO messages VALUES ($1, 'orders', 'one', 'order.changed', $2, 'pending')"
		}
		for _, n := range numbers {
			if _, err := db.ExecContext(t.Context(), insert, n, body); err != nil {
				t.Fatal(err)
			}
		}
		s.ok(strings.Join(linesOf(t, db, statement), "\n"), "enqueue")
		got := s.deliver()
		ids := map[string]bool{}
		for _, e := range got {
			ids[e.ID] = true
			if engine == "SQLite" {
				if string(e.Data) != body {
					t.Errorf("the payload is %s", e.Data)
				}
			} else if e.DataBase64 == nil || *e.DataBase64 != base64.StdEncoding.EncodeToString(body.([]byte)) { //nolint:forcetypeassert // above
				t.Errorf("the payload is %s", e.Data)
			}
		}
		if len(got) != len(numbers) || len(ids) != len(numbers) {
			t.Errorf("of %d rows there are %d messages with %d ids", len(numbers), len(got), len(ids))
		}
	})
}
