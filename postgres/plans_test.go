package postgres_test

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/outbox-suite/outbox/postgres"
)

// TestPlans looks at the plans of the statements of a turn: on large tables that
// were never analyzed and on analyzed ones, planned for the arguments and for
// any arguments, as the server does after the fifth time. None may read a table
// from end to end.
func TestPlans(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		const rows = 20000
		for _, table := range []string{"{ready}", "{parked}", "{done}", "{inbox}"} {
			f.exec(`ALTER TABLE ` + table + ` SET (autovacuum_enabled = false)`)
		}
		// All in lane 1, one blocked key with everything held behind it, and
		// many blocked keys beside it.
		f.exec(`INSERT INTO {ready} (lane, id, topic, key, key_hash, type)
			SELECT 1, gen_random_uuid(), 't', n::text, n / 8 * 4 + 1, 'y' FROM generate_series(1, $1::int) AS n`, rows)
		f.exec(`INSERT INTO {parked} (lane, seq, id, topic, key, key_hash, type, state)
			SELECT 1, n, gen_random_uuid(), 't', 'k', 1, 'y', 'held' FROM generate_series(1, $1::int) AS n`, rows)
		f.exec(`INSERT INTO {parked} (lane, seq, id, topic, key, key_hash, type, state, blocking, available_at)
			SELECT 1, 0, gen_random_uuid(), 't', n::text, n * 4 + 1, 'y', 'retry', true, clock_timestamp() + n * interval '1 second' FROM generate_series(0, $1::int) AS n`, rows/4)
		f.exec(`INSERT INTO {done} (lane, seq, id, topic, type, content_type, headers, created_at, replay, attempts, outcome)
			SELECT 1, n, gen_random_uuid(), 't', 'y', '', '', now(), 0, 1, 'published' FROM generate_series(1, $1::int) AS n`, rows)
		f.exec(`INSERT INTO {inbox} SELECT 'me', n::text FROM generate_series(1, $1::int) AS n`, rows)

		statements := map[string]string{
			"poll":                 `'me', 8, 0`,
			"horizon":              `0`,
			"pending":              `'me'`,
			"surfaceDue":           `1, 'me', 1`,
			"surface":              `1, 'me', 1, 100, '', ''`,
			"ready":                `1, 0, 1000, 1000000000`,
			"due":                  `1, 1000, 1000000000`,
			"settle":               `1, 'me', 1, 1000, ` + many("1") + `, ` + many(anID) + `, 1, 1000`,
			"settleArchive":        `1, 'me', 1, 1000, ` + many("1") + `, ` + many(anID) + `, 1, 1000`,
			"publishParked":        `1, ` + many("1") + `, ` + many(anID),
			"publishParkedArchive": `1, ` + many("1") + `, ` + many(anID),
			"fail":                 `1, ` + many("1") + `, ` + many(anID) + `, ` + many("1") + `, ` + many("f") + `, ` + many("1") + `, ` + many("t") + `, ` + many("x"),
			"failParked":           `1, ` + many("1") + `, ` + many(anID) + `, ` + many("1") + `, ` + many("f") + `, ` + many("1") + `, ` + many("t") + `, ` + many("x"),
			"hold":                 `1, ` + many("1") + `, ` + many(anID),
			"promote":              `1, ` + many("1"),
			"purge":                `0, 500`,
			"recorded":             `'me', '7'`,
			"purgeInbox":           `0, 500`,
		}
		for _, analyzed := range []bool{false, true} {
			if analyzed {
				f.exec(`ANALYZE {ready}, {parked}, {done}, {inbox}`)
			}
			for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
				db := f.open(with(f.dsn, "plan_cache_mode", mode))
				db.SetMaxOpenConns(1)
				for _, name := range slices.Sorted(maps.Keys(statements)) {
					if _, err := db.ExecContext(t.Context(), `PREPARE s AS `+postgres.Statement(f.store, name)); err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					g := *f
					g.db = db
					plan := strings.Join(g.list(`EXPLAIN (COSTS off) EXECUTE s`+arguments(statements[name])), "\n")
					if _, err := db.ExecContext(t.Context(), `DEALLOCATE s`); err != nil {
						t.Fatal(err)
					}
					if endToEnd.MatchString(plan) {
						t.Errorf("%s, %s, analyzed %t:\n%s", name, mode, analyzed, plan)
					}
				}
			}
		}
	})
}

// endToEnd finds a scan of a whole table of messages or of the inbox, but not
// of the lanes.
var endToEnd = regexp.MustCompile(`Seq Scan on outbox(_parked|_done|_inbox)?( |\n|$)`)

// arguments are those of EXECUTE; none without parentheses.
func arguments(list string) string {
	if list == "" {
		return ""
	}
	return " (" + list + ")"
}

const anID = "00000000000000000000000000000000"

// many is an array of as many elements as a settle may name rows.
func many(element string) string {
	return "'{" + strings.Repeat(element+",", 999) + element + "}'"
}
