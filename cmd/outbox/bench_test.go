package main

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/outbox-suite/outbox/bench"
	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/sqlite"
)

// What outbox bench measures, for benchstat to compare between commits.
func BenchmarkMeasures(b *testing.B) {
	scale := scaleNamed(b, "quick")
	on := func(name, dsn string) {
		b.Run(name, func(b *testing.B) {
			e, err := engineOf(dsn)
			if err != nil {
				b.Fatal(err)
			}
			target, err := benchTarget(b.Context(), e, dsn)
			if err != nil {
				b.Fatal(err)
			}
			bench.Benchmark(b, target, scale)
		})
	}
	on("sqlite", "sqlite:"+filepath.Join(b.TempDir(), "o.db"))
	for _, engine := range []string{"postgres", "mysql", "mariadb"} {
		b.Run(engine, func(b *testing.B) {
			for _, server := range containers.Servers(b, engine) {
				on(server.Version, server.DSN)
			}
		})
	}
}

// Every measure end to end, at a size at which figures mean nothing.
func TestBenchMeasuresEverything(t *testing.T) {
	t.Setenv(mainVariable, "1") // for relays that are processes
	s := newShell(t)
	dir := t.TempDir()
	document, chart := filepath.Join(dir, "performance.md"), filepath.Join(dir, "performance.svg")
	if err := os.WriteFile(document, []byte("# Speed\n\nBefore.\n\n<!-- bench sqlite -->\nold\n<!-- /bench sqlite -->\n\nAfter.\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := s.ok("", "bench", "--scale", "tiny", "--rounds", "1", "--json", "--report", document, "--chart", chart)

	var report bench.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Failed {
		t.Errorf("%s failed: %s", f.Measure, f.Reason)
	}
	rows := make(map[string]int)
	for _, row := range report.Rows {
		rows[row.Measure]++
		if row.Ours.Rounds == 0 || row.Ours.Median < 0 || row.Ours.Low > row.Ours.Median || row.Ours.High < row.Ours.Median {
			t.Errorf("%s, %s: ours is %+v", row.Measure, row.Case, row.Ours)
		}
		if strings.HasSuffix(row.Unit, "/s") && row.Ours.Median == 0 {
			t.Errorf("%s, %s: nothing happened", row.Measure, row.Case)
		}
		if (row.Baseline == nil) != (row.Against == "") || (row.Target == "") != (row.Met == "") {
			t.Errorf("%s, %s: half a row: %+v", row.Measure, row.Case, row)
		}
	}
	for _, m := range bench.Measures() {
		if m.Name == "cpu" && runtime.GOOS != "linux" {
			continue
		}
		if rows[m.Name] == 0 && m.Name != "log-bytes" && m.Name != "rows-locked" { // SQLite does not tell, and locks none
			t.Errorf("%s gave no figures", m.Name)
		}
	}
	processorRows(t, report)
	if report.Machine.Cores == 0 || len(report.Settings) == 0 || len(report.NotDurable) > 0 || !strings.Contains(report.Server, "SQLite") {
		t.Errorf("the report says of the machine and the server: %+v", report)
	}

	text := readFile(t, document)
	for _, want := range []string{"# Speed\n\nBefore.\n\n", "\n\nAfter.\n", "](performance.svg)", "| drain | batch 1000, 200 B, retention 0 |", "synchronous = 2"} {
		if !strings.Contains(text, want) {
			t.Errorf("the document lacks %q", want)
		}
	}
	if strings.Contains(text, "\nold\n") || strings.Contains(text, s.env["OUTBOX_DSN"]) {
		t.Errorf("the document is\n%s", text)
	}
	for d := xml.NewDecoder(strings.NewReader(readFile(t, chart))); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the chart is no XML: %v", err)
		}
	}
	noTables(t, s)
}

// What this process has used is a part of what the machine has, and where the engine
// runs within it there is no server to take apart.
func processorRows(t *testing.T, report bench.Report) {
	t.Helper()
	of := make(map[string]float64)
	for _, row := range report.Rows {
		if row.Measure == "cpu" {
			of[row.Case] = row.Ours.Median
		}
		if strings.Contains(row.Case, "the server and the kernel") {
			t.Errorf("%s: %s is told of SQLite", row.Measure, row.Case)
		}
		if row.Unit == "%" && (row.Ours.High > 100 || row.Baseline.High > 100) {
			t.Errorf("%s, %s: %v of %v", row.Measure, row.Case, row.Ours, row.Baseline)
		}
	}
	for _, keep := range []string{"0", "24h"} {
		what := "batch 1000, retention " + keep + ": "
		if machine, own := of[what+"processor time of the machine"], of[what+"of this process"]; machine < own || own == 0 && runtime.GOOS == "linux" {
			t.Errorf("retention %s: the machine used %v ms, this process %v", keep, machine, own)
		}
	}
}

// A relay that is a process has polled when its log says so.
func TestBenchRelayLog(t *testing.T) {
	polled := make(chan struct{})
	l := relayLog{polled: polled}
	say := func(text string) {
		t.Helper()
		if n, err := l.Write([]byte(text)); n != len(text) || err != nil {
			t.Fatalf("Write = %d, %v", n, err)
		}
	}
	say("time=1 level=INFO msg=\"relay started\" engine=x\ntime=2 level=DEBUG msg=pol")
	select {
	case <-polled:
		t.Fatal("it has polled before it said so")
	default:
	}
	say("led lanes=0\n")
	<-polled
	for range 1000 {
		say("time=3 level=DEBUG msg=polled lanes=0\n")
	}
	say("the end")
	if n := len(l.last); n > 4<<10 || !strings.HasSuffix(string(l.last), "the end") {
		t.Errorf("%d bytes are kept: …%s", n, l.last[max(0, n-20):])
	}
}

// A batch locks its rows and its lane's, and the loop its rows; InnoDB also counts what
// it locks in indexes.
func TestBenchRowsLocked(t *testing.T) {
	for _, engine := range []string{"postgres", "mysql", "mariadb"} {
		t.Run(engine, func(t *testing.T) {
			server := containers.Servers(t, engine)[0]
			e, err := engineOf(server.DSN)
			if err != nil {
				t.Fatal(err)
			}
			target, err := benchTarget(t.Context(), e, server.DSN)
			if err != nil {
				t.Fatal(err)
			}
			report, err := bench.Run(t.Context(), target, bench.Options{
				Rounds: 1, Scale: scaleNamed(t, "tiny"), Match: regexp.MustCompile("^rows-locked$"), NotDurable: true,
			})
			if err != nil || len(report.Rows) != 4 {
				t.Fatalf("Run = %+v, %v, want four rows", report, err)
			}
			most := 1001.0
			if engine != "postgres" {
				most = 5000
			}
			for _, row := range report.Rows {
				if ours := row.Ours.Median; ours <= 1000 || ours > most {
					t.Errorf("%s: %v rows are locked", row.Case, ours)
				}
				if base := row.Baseline.Median; base < 1000 || base > most {
					t.Errorf("%s: the %s locks %v rows", row.Case, row.Against, base)
				}
			}
		})
	}
}

// Tables are removed when a run is interrupted.
func TestBenchInterrupted(t *testing.T) {
	s := newShell(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	target := benchTargetOf(t, s)
	_, err := bench.Run(ctx, target, bench.Options{
		Rounds: 1, Scale: scaleNamed(t, "tiny"),
		OnRow: func(bench.Row) { cancel(errors.New("enough")) },
	})
	if err == nil || !strings.Contains(err.Error(), "enough") {
		t.Errorf("Run = %v, want the cause of the interruption", err)
	}
	noTables(t, s)
}

func TestBenchRefusesWhatIsNotDurable(t *testing.T) {
	s := newShell(t)
	target := benchTargetOf(t, s)
	target.Baseline.Settings = []bench.Setting{{Name: "synchronous", Query: "PRAGMA synchronous", Durable: []string{"9"}}}
	opts := bench.Options{Rounds: 1, Scale: scaleNamed(t, "tiny"), Match: onlyRoundTrips}
	if _, err := bench.Run(t.Context(), target, opts); !errors.Is(err, bench.ErrNotDurable) || !strings.Contains(err.Error(), "synchronous is 2, not 9") {
		t.Errorf("Run = %v, want ErrNotDurable with the setting", err)
	}
	opts.NotDurable = true
	report, err := bench.Run(t.Context(), target, opts)
	if err != nil || len(report.NotDurable) != 1 || len(report.Rows) == 0 {
		t.Errorf("Run = %+v, %v, want rows and the finding", report, err)
	}
}

func TestBenchMistakes(t *testing.T) {
	s := newShell(t)
	dir := t.TempDir()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--only", "("}, "not a regular expression"},
		{[]string{"--only", "^nothing$"}, "no measure matches"},
		{[]string{"--scale", "huge"}, "use quick, full or tiny"},
		{[]string{"--rounds", "0"}, "above 0"},
		{[]string{"--report", "x.txt"}, "must end in .md"},
		{[]string{"--chart", "x.png"}, "must end in .svg"},
		{[]string{"--report", filepath.Join(dir, "no", "such.md")}, "no such file"},
		{[]string{"--dsn", "oracle://x/y"}, "no baseline for oracle"},
		{[]string{"--dsn", "sqlite::memory:"}, "name a file"},
	} {
		s.fails(2, "", append([]string{"bench"}, c.args...), c.want)
	}
	if out := s.ok("", "bench", "--list"); !strings.Contains(out, "old-snapshot") {
		t.Errorf("--list says:\n%s", out)
	}
}

func benchTargetOf(t *testing.T, s *shell) bench.Target {
	t.Helper()
	e, err := engineOf(s.env["OUTBOX_DSN"])
	if err != nil {
		t.Fatal(err)
	}
	target, err := benchTarget(t.Context(), e, s.env["OUTBOX_DSN"])
	if err != nil {
		t.Fatal(err)
	}
	return target
}

func scaleNamed(tb testing.TB, name string) bench.Scale {
	tb.Helper()
	scale, err := bench.ScaleNamed(name)
	if err != nil {
		tb.Fatal(err)
	}
	return scale
}

// noTables fails when the database has any.
func noTables(t *testing.T, s *shell) {
	t.Helper()
	db, err := sqlite.Open(sqlitePath(s.env["OUTBOX_DSN"]))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var left int
	if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM sqlite_schema WHERE name NOT LIKE 'sqlite%'").Scan(&left); err != nil {
		t.Fatal(err)
	}
	if left > 0 {
		t.Errorf("%d tables and indexes were left", left)
	}
}

var onlyRoundTrips = regexp.MustCompile("^round-trips$")
