package oracle_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/oracle"
)

var update = flag.Bool("update", false, "write the golden files anew")

// usual and odd are names that need no quotes and names that do.
var (
	usual = dialect.Tables{Prefix: "outbox", Lanes: 16}
	odd   = dialect.Tables{Schema: `Odd x`, Prefix: "order", Lanes: 3}
)

// TestStatements compares every statement with the golden files, once with
// the usual names and once with names that need quoting.
func TestStatements(t *testing.T) {
	for file, tables := range map[string]dialect.Tables{"default.sql": usual, "odd.sql": odd} {
		t.Run(file, func(t *testing.T) {
			got := oracle.Rendered(bound(t, tables))
			path := filepath.Join("testdata", file)
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("%s differs: look at the change and run go test ./oracle -update", path)
			}
		})
	}
}

func bound(tb testing.TB, tables dialect.Tables) dialect.Store {
	tb.Helper()
	store, err := oracle.New().Bind(tables)
	if err != nil {
		tb.Fatal(err)
	}
	return store
}

// everyStatement are all statements that are sent.
func everyStatement(store dialect.Store) []oracle.Text {
	list := oracle.Statements(store)
	for i, text := range slices.Concat(oracle.StatementsOf(store, 1), oracle.StatementsOf(store, 2), oracle.StatementsOf(store, 3)) {
		list = append(list, oracle.Text{Name: "schema " + strconv.Itoa(i+1), Text: text})
	}
	return list
}

var (
	quotes  = regexp.MustCompile(`'[^']*'`)
	names   = regexp.MustCompile(`"[^"]*"`)
	hints   = regexp.MustCompile(`/\*\+[^*]*\*/`)
	bind    = regexp.MustCompile(`:(\d+)`)
	lists   = regexp.MustCompile(`IN \(([^()]*|(?:\([^()]*\)(?:, )?)*)\)`)
	bare    = regexp.MustCompile(`(^|[^(])SYSTIMESTAMP|\(SYSTIMESTAMP`)
	clocks  = regexp.MustCompile(`\b(SYSDATE|CURRENT_TIMESTAMP|LOCALTIMESTAMP|CURRENT_DATE)\b`)
	atLock  = regexp.MustCompile(`\b(ROWNUM|FETCH|DISTINCT|GROUP|ORDER|UNION|JOIN)\b|\(\s*SELECT`)
	newer   = regexp.MustCompile(`\b(FETCH FIRST|LIMIT|BOOLEAN|TRUE|FALSE|IF NOT EXISTS)\b`)
	returns = regexp.MustCompile(`\b(RETURNING|RETURN)\b`)
	asAlias = regexp.MustCompile(`(FROM|JOIN) "[^"]*" AS `)
	isEmpty = regexp.MustCompile(`(=|<>) ''`)
)

// TestRules checks what statements must and must not have, without a server; the
// reasons are in queries.go.
func TestRules(t *testing.T) {
	for name, tables := range map[string]dialect.Tables{"usual": usual, "odd": odd} {
		store := bound(t, tables)
		for _, st := range everyStatement(store) {
			refuse := func(rule string, broken bool) {
				t.Helper()
				if broken {
					t.Errorf("%s, %s: %s:\n%.2000s", name, st.Name, rule, st.Text)
				}
			}
			text := st.Text
			refuse("an empty text equals nothing", isEmpty.MatchString(text))
			if tables == usual {
				for _, quoted := range names.FindAllString(text, -1) {
					refuse("a quoted name in lower case", quoted != strings.ToUpper(quoted))
				}
			}
			text = quotes.ReplaceAllString(names.ReplaceAllString(hints.ReplaceAllString(text, ""), `"x"`), "''")
			refuse("a comment", strings.Contains(text, "--") || strings.Contains(text, "/*"))
			refuse("a ; at the end, or within", strings.Contains(text, ";"))
			refuse("a bind without number", strings.Contains(text, "?"))
			refuse("a placeholder left", strings.ContainsAny(text, "{}"))
			refuse("white space around it", text != strings.TrimSpace(text))
			refuse("AS before an alias of a table", asAlias.MatchString(names.ReplaceAllString(text, `"x"`)))
			refuse("a clause of version 23, or one that the grammar does not know", newer.MatchString(text))
			refuse("RETURNING", returns.MatchString(text))
			refuse("a clock of the session's time zone", clocks.MatchString(text))
			refuse("SYSTIMESTAMP with a time zone", bare.MatchString(strings.ReplaceAll(text, "SYS_EXTRACT_UTC(SYSTIMESTAMP)", "NOW")))
			for i, b := range bind.FindAllStringSubmatch(text, -1) {
				refuse("binds that are not each the next", b[1] != strconv.Itoa(i+1))
			}
			locks := strings.Contains(text, "FOR UPDATE")
			refuse("a locking level that is not plain", locks && atLock.MatchString(text))
			refuse("SKIP LOCKED outside claim and purge", strings.Contains(text, "SKIP LOCKED") &&
				st.Name != "claim" && st.Name != "lockPurge" && st.Name != "lockPurgeInbox")
			refuse("a lock that is waited for without end", locks && !strings.Contains(text, "SKIP LOCKED") && !strings.Contains(text, "FOR UPDATE WAIT 10"))
			for line := range strings.SplitSeq(st.Text, "\n") {
				refuse("an empty line, which ends a statement in SQL*Plus", strings.TrimSpace(line) == "")
			}
		}
	}
}

// TestLongest keeps the seconds that NUMTODSINTERVAL is given below 2^31.
func TestLongest(t *testing.T) {
	const longest = (1<<31 - 1) * 1000000
	for d, want := range map[time.Duration]int64{
		0: 0, 1: 1, -1: 0, time.Microsecond: 1, time.Hour + 1: 3600000001, 1<<63 - 1: longest, -1 << 63: -longest,
	} {
		if got := oracle.Micros(d); got != want {
			t.Errorf("%v is %d, want %d", d, got, want)
		}
	}
	at := regexp.MustCompile(`TIMESTAMP '([-0-9 :]+)' \+ NUMTODSINTERVAL\(\(:\d+ - (\d+)\)`)
	n := 0
	for _, st := range oracle.Statements(bound(t, usual)) {
		for _, found := range at.FindAllStringSubmatch(st.Text, -1) {
			n++
			if from, err := time.Parse(time.DateTime, found[1]); err != nil || strconv.FormatInt(from.UnixMicro(), 10) != found[2] {
				t.Errorf("%s: %s is not %s", st.Name, found[1], found[2])
			}
		}
	}
	if n != 7 {
		t.Errorf("%d times are counted, not 7", n)
	}
}

// TestLists writes no list of more than 1,000, and binds in order, however many ids a
// filter has and rows are named.
func TestLists(t *testing.T) {
	for _, n := range []int{1, 2, 10, 11, 999, 1000, 1001, 2500} {
		for _, st := range oracle.StatementsFor(bound(t, usual), n, min(n, oracle.MostInList)) {
			longest := 0
			for _, list := range lists.FindAllStringSubmatch(st.Text, -1) {
				longest = max(longest, strings.Count(list[1], ",")+1)
			}
			if longest > 1000 {
				t.Errorf("%s has a list of %d for %d", st.Name, longest, n)
			}
			if len(st.Text) < 5000 {
				continue // TestRules
			}
			for i, b := range bind.FindAllStringSubmatch(quotes.ReplaceAllString(st.Text, ""), -1) {
				if b[1] != strconv.Itoa(i+1) {
					t.Fatalf("%s: bind %s is the %d. for %d", st.Name, b[1], i+1, n)
				}
			}
		}
	}
}

// TestNamesAreFolded shows what names become.
func TestNamesAreFolded(t *testing.T) {
	for prefix, want := range map[string][2]string{
		"outbox":      {`"OUTBOX"`, `"OUTBOX_LANE"`},
		"MyOut$1#":    {`"MYOUT$1#"`, `"MYOUT$1#_LANE"`},
		"order":       {`"ORDER"`, `"ORDER_LANE"`},
		"out box":     {`"out box"`, `"out box_LANE"`},
		"1st":         {`"1st"`, `"1st_LANE"`},
		"größe":       {`"größe"`, `"größe_LANE"`},
		"{lane} ? :1": {`"{lane} ? :1"`, `"{lane} ? :1_LANE"`},
	} {
		store := bound(t, dialect.Tables{Prefix: prefix, Lanes: 1})
		if prefix != strings.TrimFunc(prefix, func(r rune) bool { return r == ' ' }) {
			t.Fatal(prefix)
		}
		quoted := want[1]
		if !strings.HasPrefix(want[0], strings.ToUpper(want[0])) {
			quoted = strings.TrimSuffix(want[0], `"`) + `_lane"`
		}
		if text := oracle.Statement(store, "deleteReady"); !strings.Contains(text, "FROM "+want[0]+" WHERE") {
			t.Errorf("%s: %s", prefix, text)
		}
		if text := oracle.Statement(store, "claim"); !strings.Contains(text, "FROM "+quoted+" l") {
			t.Errorf("%s: %s, want %s", prefix, text, quoted)
		}
	}
	store := bound(t, dialect.Tables{Schema: "app", Prefix: "outbox", Lanes: 1})
	if text := oracle.Statement(store, "claim"); !strings.Contains(text, `FROM "APP"."OUTBOX_LANE" l`) {
		t.Error(text)
	}
}

// TestIndexesAreQualified makes an index in the schema of its table.
func TestIndexesAreQualified(t *testing.T) {
	n := 0
	for _, text := range oracle.StatementsOf(bound(t, odd), 1) {
		if strings.HasPrefix(text, "CREATE INDEX") || strings.HasPrefix(text, "CREATE UNIQUE INDEX") {
			n++
			if !strings.Contains(text, `INDEX "Odd x"."ORDER_`) || !strings.Contains(text, ` ON "Odd x"."ORDER_`) {
				t.Error(text)
			}
		}
	}
	if n != 8 {
		t.Errorf("%d indexes", n)
	}
}

// TestNames runs everything under names that need quoting, that look like
// placeholders, and that are as long as they may be.
func TestNames(t *testing.T) {
	onEachServer(t, func(t *testing.T, server *containers.Server) {
		for name, tables := range map[string]dialect.Tables{
			"Quoted":       {Schema: `Odd x `, Prefix: "order"},
			"Placeholders": {Schema: "{ready} $1 ? :1", Prefix: "{filter} {list} %d ? :2 --"},
			"Apostrophe":   {Schema: `o'ne \ `, Prefix: `'; DROP`},
			"Longest":      {Schema: "S" + strings.Repeat("ß", 50), Prefix: strings.Repeat("ü", 54)},
		} {
			t.Run(name, func(t *testing.T) {
				f := unmade(t, server.DSN)
				tables.Lanes = lanes
				tables.Schema += random()
				f.tables = tables
				f.bind()
				f.make()
				f.migrate()
				f.everything()
			})
		}
	})
}

// TestSessionSchema runs everything without a schema, which then is the session's.
func TestSessionSchema(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		g := f.as("s" + random())
		g.tables = dialect.Tables{Prefix: "other", Lanes: lanes}
		g.bind()
		g.migrate()
		g.everything()
	})
}

// TestBindRefuses names that the server cannot hold.
func TestBindRefuses(t *testing.T) {
	for name, tables := range map[string]dialect.Tables{
		"Empty":       {Lanes: 1},
		"Long":        {Prefix: strings.Repeat("x", 109), Lanes: 1},
		"LongBytes":   {Prefix: strings.Repeat("ü", 55), Lanes: 1},
		"Schema":      {Schema: strings.Repeat("x", 129), Prefix: "x", Lanes: 1},
		"QuoteSchema": {Schema: `Odd "x"`, Prefix: "x", Lanes: 1},
		"QuotePrefix": {Prefix: `"`, Lanes: 1},
		"NotUTF8":     {Schema: "\xff", Prefix: "x", Lanes: 1},
		"NUL":         {Schema: "a\x00b", Prefix: "x", Lanes: 1},
		"NoLanes":     {Prefix: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := oracle.New().Bind(tables)
			if err == nil {
				t.Fatalf("%+v were bound", tables)
			}
			t.Log(err)
		})
	}
}

// TestLongestSuffix checks that no name of the schema is longer than what Bind
// reckons with.
func TestLongestSuffix(t *testing.T) {
	store := bound(t, dialect.Tables{Prefix: strings.Repeat("x", 108), Lanes: 1})
	longest := 0
	for _, step := range store.Steps() {
		for i, name := range strings.Split(step.SQL, `"`) {
			if i%2 == 1 && strings.HasPrefix(name, "XXX") {
				longest = max(longest, len(name))
			}
		}
	}
	if longest != 128 {
		t.Errorf("the longest name has %d bytes, not 128", longest)
	}
}
