package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/conformance/containers"
)

// resumeAt finds the place to go on in what a replay has told.
var resumeAt = regexp.MustCompile(`--resume (\S+?)(?:\)|\n)`)

func TestReplayInterrupted(t *testing.T) {
	s := migrated(t)
	s.enqueueKeys("orders", 15, "a", "b", "c", "d")
	s.deliver()
	for _, args := range []string{"replay --all --dry-run --json", "replay --all --rate 1 --dry-run --json"} {
		if out := s.ok("", strings.Fields(args)...); !sameJSON(t, out, `{"would_be_replayed":60}`) {
			t.Errorf("%s says %s", args, out)
		}
	}
	if out := s.ok("", "replay", "--type", "order.changed", "--limit", "7", "--dry-run"); out != "7 messages would be replayed\n" {
		t.Errorf("replay says %q", out)
	}
	if n := s.status("ready"); n != 0 {
		t.Fatalf("%d messages are ready behind a dry run", n)
	}

	ctx, interrupt := context.WithCancelCause(t.Context())
	ended := make(chan result)
	go func() { ended <- s.runUntil(ctx, nil, "replay", "--all", "--rate", "2") }() // half a minute, if it is not interrupted
	for s.status("ready") < 3 {
		time.Sleep(time.Millisecond) // between looks
	}
	interrupt(interrupted{syscall.SIGINT})
	r := <-ended
	ready := s.status("ready")
	places := resumeAt.FindAllStringSubmatch(r.err, -1)
	if r.code != exitSignal+int(syscall.SIGINT) || ready == 60 || len(places) != 2 ||
		!strings.Contains(r.err, fmt.Sprintf("\n%d messages replayed before; go on with", ready)) {
		t.Fatalf("interrupted with %d messages ready: %v", ready, r)
	}
	s.deliver() // what is done again meanwhile
	s.fails(exitUsage, "", []string{"replay", "--topic", "orders", "--resume", places[0][1]}, "resume is of a replay of other messages")
	s.fails(exitUsage, "", []string{"replay", "--all", "--resume", "x"}, "resume is no place of a replay")
	if out := s.ok("", "audit", "--json"); strings.Count(out, `"action"`) != 1 {
		t.Errorf("the audit has more than the replay that was interrupted: %s", out)
	}
	// From the first place, told before the interruption, and from the last.
	if out := s.ok("", "replay", "--all", "--resume", places[0][1]); out != fmt.Sprintf("%d messages replayed\n", 60-ready) {
		t.Errorf("behind %d messages a replay that goes on says %q", ready, out)
	}
	if out := s.ok("", "replay", "--all", "--resume", places[1][1]); out != "0 messages replayed\n" {
		t.Errorf("a replay that was complete says %q", out)
	}
	for _, e := range s.deliver() {
		if e.Replay != 1 {
			t.Errorf("%s was marked %d times", e.ID, e.Replay)
		}
	}
}

func TestBar(t *testing.T) {
	for want, got := range map[string]string{
		"5 messages …": bar(5, 0),
		"[..............................] 0 of 60 messages":  bar(0, 60),
		"[###############...............] 30 of 60 messages": bar(30, 60),
		"[##############################] 61 of 60 messages": bar(61, 60),
	} {
		if got != want {
			t.Errorf("a bar is %q, want %q", got, want)
		}
	}
}

func TestPurgeDryRun(t *testing.T) {
	s := migrated(t)
	s.enqueueKeys("orders", 3, "a")
	s.deliver()
	for _, test := range []struct{ args, want string }{
		{"--older-than 0", "3 messages would be purged\n"},
		{"--older-than 0 --limit 2", "2 messages would be purged\n"},
		{"--older-than 1h", "0 messages would be purged\n"},
	} {
		if out := s.ok("", append([]string{"purge", "--dry-run"}, strings.Fields(test.args)...)...); out != test.want {
			t.Errorf("purge --dry-run %s says %q, want %q", test.args, out, test.want)
		}
	}
	if out := s.ok("", "purge", "--older-than", "0", "--dry-run", "--json"); !sameJSON(t, out, `{"would_be_purged":3}`) {
		t.Errorf("purge --dry-run --json says %s", out)
	}
	if out := s.ok("", "purge", "--older-than", "0"); out != "3 messages purged\n" {
		t.Errorf("purge says %q", out)
	}
}

func TestPartitionsRefused(t *testing.T) {
	s := newShell(t)
	s.fails(exitUsage, "", []string{"migrate", "--partition-done", "day"}, "done is one table on sqlite")
	if _, err := os.Stat(sqlitePath(s.env["OUTBOX_DSN"])); err == nil {
		t.Error("what was refused has made a database")
	}
	s.fails(exitUsage, "", []string{"migrate", "--partition-done", "hour"}, "use day")
	for _, e := range []string{"sqlite", "oracle", "sqlserver"} {
		s.fails(exitUsage, "", []string{"schema", "--engine", e, "--partition-done", "day"}, "done is one table on "+e)
	}
	for _, e := range []string{"postgres", "mysql"} {
		if out := s.ok("", "schema", "--engine", e, "--partition-done", "day"); !strings.Contains(out, ": done in partitions\n") || !strings.Contains(out, "PARTITION BY RANGE") {
			t.Errorf("schema of %s:\n%s", e, out)
		}
		if out := s.ok("", "schema", "--engine", e); strings.Contains(out, "PARTITION BY") {
			t.Errorf("schema of %s without being asked:\n%s", e, out)
		}
	}
}

// TestPartitions makes them on each server that has them, and has relays and purges keep
// them.
func TestPartitions(t *testing.T) {
	for _, e := range []string{"postgres", "mysql", "mariadb"} {
		t.Run(e, func(t *testing.T) {
			s := onServer(t, containers.Servers(t, e)[0])
			s.enqueueKeys("orders", 2, "a")
			s.deliver()
			if out := s.ok("", "migrate", "--partition-done", "day"); !strings.Contains(out, "up to date already; done is in partitions now, one a day") {
				t.Errorf("migrate says %q", out)
			}
			if out := s.ok("", "migrate", "--partition-done", "day"); !strings.Contains(out, "; done was in partitions") {
				t.Errorf("migrate says %q", out)
			}
			s.enqueueKeys("orders", 1, "b")
			s.deliver()
			if out := s.ok("", "replay", "--all", "--dry-run"); out != "3 messages would be replayed\n" {
				t.Errorf("replay says %q", out)
			}
			if out := s.ok("", "purge", "--older-than", "1h", "--json"); !sameJSON(t, out, `{"purged":0,"partitions_dropped":0,"partitions_made":0,"partitions_denied":false}`) {
				t.Errorf("purge says %s", out)
			}
			if out := s.ok("", "purge", "--older-than", "0"); !strings.HasPrefix(out, "3 messages purged, ") {
				t.Errorf("purge says %q", out)
			}
		})
	}
}
