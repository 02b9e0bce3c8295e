package sqlserver_test

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/sqlserver"
)

// comments are what stands in lines of their own.
var comments = regexp.MustCompile(`(?m)^\s*--.*$`)

// statements are all statements but the schema's, without comments.
func statements(t *testing.T) map[string]string {
	t.Helper()
	store, err := sqlserver.New().Bind(dialect.Tables{Schema: "s", Prefix: "x", Lanes: 3})
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for name, text := range sqlserver.Statements(store) {
		all[name] = comments.ReplaceAllString(text, "")
	}
	return all
}

// TestRules checks what no server has: the rules that queries.go names.
func TestRules(t *testing.T) {
	hints := regexp.MustCompile(`WITH \(((?:[A-Z]+(?: \([^)]*\))?(?:, )?)+)\)`)
	parameter := regexp.MustCompile(`@p(\d+)`)
	table := regexp.MustCompile(`(?:FROM|JOIN) (\[s\]\.\[x(?:_parked|_done|_inbox|_revision|_progress|_audit)?\] AS \w+)( WITH \(FORCESEEK)?`)
	clock := regexp.MustCompile(`.{0,5}SYSUTCDATETIME\(\).{0,17}`)
	skips := []string{"choosePurge", "choosePurgeInbox", "claim", "dueScheduled", "poll", "recorded", "stats", "viewDone", "viewReasons"}
	locks := []string{"choosePurge", "choosePurgeInbox", "claim", "fence", "lastProgress", "lastRevision", "lockLane", "purgeDue"}
	// The filter chooses the index of the rows themselves.
	filters := []string{"chooseDiscard", "chooseReplay", "chooseRequeue", "discardLanes", "parked", "requeueLanes"}
	var skip, lock []string
	for name, text := range statements(t) {
		t.Run(name, func(t *testing.T) {
			bad := func(what string) { t.Errorf("%s:\n%s", what, text) }
			if strings.Contains(text, "READPAST") {
				skip = append(skip, name)
			}
			if strings.Contains(text, "READUNCOMMITTED") && name != "dueScheduled" {
				bad("sees what is not committed")
			}
			if strings.Contains(text, "UPDLOCK") {
				lock = append(lock, name)
				if n := strings.Count(text, "SELECT"); n != 1 || regexp.MustCompile(`JOIN|APPLY|DISTINCT|GROUP|UNION`).MatchString(text) {
					bad("locks more than the rows of one table, or before they are chosen")
				}
				if strings.Contains(text, "TOP") != strings.Contains(text, "ORDER BY") {
					bad("locks rows in no order")
				}
			}
			for _, h := range hints.FindAllStringSubmatch(text, -1) {
				list := strings.Split(h[1], ", ")
				for _, hint := range []string{"READPAST", "UPDLOCK"} {
					if slices.Contains(list, hint) && (!slices.Contains(list, "READCOMMITTEDLOCK") || !slices.Contains(list, "ROWLOCK")) {
						bad(hint + " without READCOMMITTEDLOCK or ROWLOCK")
					}
				}
				if !slices.Contains(list, "FORCESEEK") && !slices.Contains(list, "READPAST") {
					bad("a hint that nothing here explains: " + h[1])
				}
			}
			if n := strings.Count(text, "WITH (") - strings.Count(text, "OPENJSON("); n != len(hints.FindAllString(text, -1)) {
				bad("hints of another form")
			}
			for _, word := range []string{
				"OUTPUT", "NOLOCK", "MERGE", "SELECT *", "GETDATE", "HOLDLOCK", "TABLOCK", "PAGLOCK", "@@ROWCOUNT", "IDENTITY_INSERT", "TRUNCATE",
			} {
				if strings.Contains(text, word) {
					bad("has " + word)
				}
			}
			if regexp.MustCompile(`TOP [^(]`).MatchString(text) {
				bad("TOP without parentheses")
			}
			if regexp.MustCompile(`\b(?:MAX|MIN|SUM|AVG)\([^)]*SELECT`).MatchString(text) {
				bad("aggregates a subquery, which is error 130")
			}
			if strings.Count(text, "JOIN") != strings.Count(text, "INNER LOOP JOIN ") {
				bad("a join that is not INNER LOOP JOIN")
			}
			for _, c := range clock.FindAllString(text, -1) {
				if !strings.HasPrefix(c, "CAST(") || !strings.HasSuffix(c, " AS datetime2(6))") {
					bad("a time of seven digits: " + c)
				}
			}
			catalog := []string{"tables", "indexes", "identity"}
			if strings.Contains(text, " N'") && !slices.Contains(catalog, name) {
				bad("nvarchar where columns are varchar")
			}
			if slices.Contains(filters, name) {
				// What looks a row up beside the filter has its hint all the same.
				if name == "chooseReplay" && strings.Count(text, "FORCESEEK") != 3 {
					bad("a look-up without FORCESEEK")
				}
			} else {
				for _, m := range table.FindAllStringSubmatch(text, -1) {
					if m[2] == "" {
						bad("without FORCESEEK: " + m[1])
					}
				}
			}
			most := 0
			for _, m := range parameter.FindAllStringSubmatch(text, -1) {
				n, _ := strconv.Atoi(m[1])
				most = max(most, n)
			}
			for n := 1; n <= most; n++ {
				if !regexp.MustCompile(`@p` + strconv.Itoa(n) + `\b`).MatchString(text) {
					bad("does not use parameter " + strconv.Itoa(n))
				}
			}
			if most > 20 {
				bad("more parameters than any statement needs")
			}
			if strings.Count(text, "(") != strings.Count(text, ")") {
				bad("parentheses do not match")
			}
		})
	}
	slices.Sort(skip)
	slices.Sort(lock)
	if !slices.Equal(skip, skips) {
		t.Errorf("READPAST is in %q, want %q", skip, skips)
	}
	if !slices.Equal(lock, locks) {
		t.Errorf("UPDLOCK is in %q, want %q", lock, locks)
	}
}

// TestSchemaRules checks those of the schema: nothing that asks for SET options, no
// locks but those of rows, and no statement that needs a batch of its own.
func TestSchemaRules(t *testing.T) {
	store, err := sqlserver.New().Bind(dialect.Tables{Prefix: "x", Lanes: 16})
	if err != nil {
		t.Fatal(err)
	}
	tables, escalation := 0, 0
	for _, text := range slices.Concat(sqlserver.StatementsOf(store, 1), sqlserver.StatementsOf(store, 2), sqlserver.StatementsOf(store, 3)) {
		text = strings.TrimSpace(comments.ReplaceAllString(text, ""))
		first, _, _ := strings.Cut(text, " (")
		switch {
		case strings.HasPrefix(text, "CREATE TABLE"):
			tables++
			if strings.Count(text, "PRIMARY KEY CLUSTERED") != 1 || strings.Count(text, "ALLOW_PAGE_LOCKS = OFF") != 1+strings.Count(text, "UNIQUE NONCLUSTERED") {
				t.Errorf("%s: primary key is not clustered, or takes page locks", first)
			}
			if regexp.MustCompile(`(?m)^\s+\S+ +AS `).MatchString(text) {
				t.Errorf("%s: has a computed column", first)
			}
			if regexp.MustCompile(`datetime2(?:[^(]|\([^6])|[^_]datetime |nvarchar|uniqueidentifier|\bbit\b`).MatchString(text) {
				t.Errorf("%s: a type that nothing here explains:\n%s", first, text)
			}
		case strings.HasPrefix(text, "CREATE NONCLUSTERED INDEX"), strings.HasPrefix(text, "CREATE UNIQUE NONCLUSTERED INDEX"):
			if !strings.HasSuffix(text, "WITH (ALLOW_PAGE_LOCKS = OFF)") || strings.Contains(text, "WHERE") {
				t.Errorf("filtered, or takes page locks: %s", text)
			}
		case strings.HasSuffix(text, "SET (LOCK_ESCALATION = DISABLE)"):
			escalation++
		case strings.HasPrefix(text, "INSERT INTO"), strings.HasPrefix(text, "WITH digit"), strings.HasPrefix(text, "UPDATE"):
		default:
			t.Errorf("not foreseen: %s", text)
		}
	}
	if tables != 9 || escalation != 8 {
		t.Errorf("%d tables, %d without lock escalation", tables, escalation)
	}
}
