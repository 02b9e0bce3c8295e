package sqlite_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/sqlite"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares text with a file in testdata.
func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("%s differs; go test ./sqlite -update and look at the difference", path)
	}
}

func TestStatements(t *testing.T) {
	for name, tables := range map[string]dialect.Tables{
		"default": {Prefix: "outbox", Lanes: 16},
		"odd":     {Prefix: `order "x"`, Lanes: 3},
	} {
		store := bind(t, tables)
		var text strings.Builder
		for _, step := range store.Steps() {
			fmt.Fprintf(&text, "-- schema version %d: %s\n\n%s\n", step.Version, step.Name, step.SQL)
		}
		for _, s := range sqlite.Statements(store) {
			fmt.Fprintf(&text, "-- %s\n%s;\n\n", s.Name, strings.TrimSpace(s.Text))
		}
		if left := regexp.MustCompile(`\{[a-z_:]+\}`).FindString(text.String()); left != "" {
			t.Errorf("%s: %s is not rendered", name, left)
		}
		golden(t, name+".sql", text.String())
	}
}

// plans are the statements whose plans matter, as they are run.
func plans(store dialect.Store) []sqlite.Statement {
	byName := make(map[string]string)
	var all []sqlite.Statement
	for _, s := range sqlite.Statements(store) {
		byName[s.Name] = s.Text
	}
	complete := map[string]string{
		"insertReady":     byName["readyValues"],
		"insertScheduled": byName["scheduledValues"],
		"parked":          byName["parkedOrder"],
		"selectParked":    byName["selectOrder"],
		"selectDone":      byName["selectDoneOrder"],
		"lanesOf":         ")",
	}
	for _, s := range sqlite.Statements(store) {
		switch s.Name {
		case "lockSchema", "unlockSchema", "findObjects": // about the schema, once
			continue
		case "lanesOfIDs", "selectParkedOfIDs", "selectDoneOfIDs": // only by id, see below
			continue
		case "revisedValues": // see below
			continue
		case "readyValues":
			return append(
				all,
				sqlite.Statement{Name: "insertReady revised", Text: byName["insertReady"] + byName["revisedValues"]},
				sqlite.Statement{Name: "parked by id", Text: byName["parked"] + byName["hasID"] + byName["parkedOrder"]},
				sqlite.Statement{Name: "parked by key", Text: byName["parked"] + byName["hasKey"] + byName["parkedOrder"]},
				sqlite.Statement{Name: "lanesOfIDs by id", Text: byName["lanesOfIDs"] + byName["hasID"]},
				sqlite.Statement{Name: "lanesOf by key", Text: byName["lanesOf"] + byName["hasKey"] + ")"},
				sqlite.Statement{Name: "lanesOf dead", Text: byName["lanesOf"] + byName["hasState"] + byName["requeueable"] + ")"},
				sqlite.Statement{Name: "selectParkedOfIDs by id", Text: byName["selectParkedOfIDs"] + byName["hasID"] + byName["selectOrder"]},
				sqlite.Statement{Name: "selectParked by key", Text: byName["selectParked"] + byName["hasKey"] + byName["selectOrder"]},
				sqlite.Statement{Name: "selectDoneOfIDs by id", Text: byName["selectDoneOfIDs"] + byName["hasID"] + byName["selectDoneOrder"]},
			)
		}
		all = append(all, sqlite.Statement{Name: s.Name, Text: s.Text + complete[s.Name]})
	}
	return all
}

func TestPlansReadNoTable(t *testing.T) {
	for _, filled := range []bool{false, true} {
		t.Run(fmt.Sprintf("analyzed=%t", filled), func(t *testing.T) {
			e := fresh(t, 16)
			if filled {
				// What the optimizer must not be led astray by: everything is in one
				// lane, one key and one state, and it knows.
				e.exec(`INSERT INTO {ready} (lane, id, topic, key, key_hash, type)
					WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
					SELECT 1, randomblob(16), 'orders', 'k', 1, 'order.placed' FROM n`)
				e.exec(`INSERT INTO {parked} (lane, seq, id, topic, key, key_hash, type, state)
					SELECT lane, seq, id, topic, key, key_hash, type, 'held' FROM {ready}`)
				e.exec(`INSERT INTO {done} (lane, seq, id, topic, type, content_type, headers, created_at, replay, attempts, outcome)
					SELECT lane, seq, id, topic, type, content_type, headers, created_at, replay, 1, 'published' FROM {ready}`)
				e.exec(`INSERT INTO {inbox} (consumer, message_id) SELECT 'c', hex(id) FROM {ready}`)
				e.exec(`ANALYZE`)
				e.db.SetMaxIdleConns(0) // connections that read the statistics
			}
			var text strings.Builder
			for _, s := range plans(e.store) {
				plan, err := read(e.ctx, e.db, `EXPLAIN QUERY PLAN `+s.Text, make([]any, 40)...)
				if err != nil {
					t.Fatalf("%s: %v", s.Name, err)
				}
				fmt.Fprintf(&text, "%s\n", s.Name)
				for _, line := range plan {
					detail := strings.SplitN(line, " ", 4)[3]
					fmt.Fprintf(&text, "\t%s\n", strings.ReplaceAll(detail, odd, "outbox"))
					if !bounded(strings.ReplaceAll(detail, odd, "outbox"), s.Name) {
						t.Errorf("%s: %s", s.Name, detail)
					}
				}
			}
			golden(t, fmt.Sprintf("plans-analyzed-%t.txt", filled), text.String())
		})
	}
}

// bounded tells whether a line of a plan reads no more than the statement is about.
func bounded(detail, name string) bool {
	if operators := map[string]bool{"selectParked": true, "lanesOf": true}; operators[name] {
		return !strings.HasPrefix(detail, "SCAN outbox") // by topic or type they read a lane
	}
	// The index of due rows is for rows in a state, that of ready rows for a place in
	// the order or the first one.
	if strings.Contains(detail, "outbox_parked_due (lane=?)") || strings.Contains(detail, "outbox_parked_key (lane=?)") {
		return false
	}
	if strings.HasSuffix(name, " by id") && strings.HasPrefix(detail, "SEARCH") {
		return strings.Contains(detail, "_id (id=?")
	}
	if !strings.HasPrefix(detail, "SCAN") {
		return true
	}
	switch strings.Fields(detail)[1] {
	case "l", "k", "json_each": // the lanes, and lists of the caller
		return true
	case "m": // the rows of a range, read before
		return true
	case "CONSTANT", "outbox_meta": // one row
		return true
	}
	// The newest of a table, and all lanes, for people to look at.
	if views := map[string]string{
		"viewLanes": "SCAN outbox_lane", "viewDone": "SCAN outbox_done USING INDEX outbox_done_at", "viewReasons": "SCAN outbox_parked",
	}; views[name] == detail {
		return true
	}
	// Counts that end at their limit.
	return name == "purgeable" && strings.HasPrefix(detail, "SCAN (subquery-") || name == "stats" && (strings.HasPrefix(detail, "SCAN (subquery-") ||
		detail == "SCAN outbox USING COVERING INDEX outbox_ready_lane" ||
		detail == "SCAN outbox_parked USING COVERING INDEX outbox_parked_blocked")
}
