//go:build unix

package main

import (
	"context"
	"database/sql"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/conformance/containers"
	"github.com/outbox-suite/outbox/postgres"
	"github.com/outbox-suite/outbox/postgres/tail"
)

// TestRelayTail runs a relay that polls once an hour, kills it, and stops the next one
// in order: neither leaves its slot behind.
func TestRelayTail(t *testing.T) {
	server := containers.Servers(t, "postgres")[0]
	s := onServer(t, server)
	db, err := postgres.Open(server.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := db.ExecContext(context.Background(), "DROP PUBLICATION "+s.env["OUTBOX_PREFIX"]+"_tail"); err != nil {
			t.Error(err)
		}
		_ = db.Close()
	})
	s.env["OUTBOX_TAIL_DSN"] = server.DSN // as if the other went through a pooler
	for _, end := range []func(p *program){
		func(p *program) { p.signal(os.Kill) },
		func(p *program) {
			p.signal(os.Interrupt)
			if code := p.exit(); code != 0 {
				t.Errorf("exit code %d, want 0:\n%s", code, p.err.String())
			}
		},
	} {
		url, arrived, release := endpoint(t)
		close(release)
		p := s.start(nil, nil, "relay", "--tail", "--publish", url, "--poll-min", "1h", "--poll-max", "1h", "--lease", "1s", "--http", "127.0.0.1:0")
		p.logs("log is read")
		slot := regexp.MustCompile(`outbox_tail_[0-9a-f]+`).FindString(p.err.String())
		awaitArrival(t, s, arrived)
		_, metrics := get(t, "http://"+regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(p.err.String())+"/metrics")
		for _, want := range []string{"\noutbox_tail_streaming 1\n", "\noutbox_tail_behind_bytes ", "\noutbox_tail_retained_bytes "} {
			if !strings.Contains(metrics, want) {
				t.Errorf("the metrics lack %q:\n%s", want, metrics)
			}
		}
		end(p)
		awaitNoSlot(t, db, slot)
	}
}

// awaitArrival enqueues until something is published: on a busy machine others may see a
// commit later than a relay looks that it has woken, and the next one wakes it again.
func awaitArrival(t *testing.T, s *shell, arrived <-chan struct{}) {
	t.Helper()
	for range 60 {
		s.enqueueKeys("orders", 1, "a")
		select {
		case <-arrived:
			return
		case <-time.After(time.Second):
		}
	}
	t.Fatal("nothing was published")
}

// awaitNoSlot waits for the end of a slot.
func awaitNoSlot(t *testing.T, db *sql.DB, slot string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		var there bool
		if err := db.QueryRowContext(t.Context(), "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)", slot).Scan(&there); err != nil {
			t.Fatal(err)
		}
		if !there {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("slot %s is left", slot)
		}
	}
}

// TestRelayTailMistakes looks at what the command says where there is no log to read.
func TestRelayTailMistakes(t *testing.T) {
	s := migrated(t)
	s.fails(exitUsage, "", []string{"relay", "--tail", "--publish", "discard:", "--until-empty"}, "tail is set, but sqlite has no log")

	server := containers.Servers(t, "postgres")[0]
	s = onServer(t, server)
	s.env["OUTBOX_TAIL_DSN"] = "postgres://app:secret@localhost:nowhere/"
	text := s.fails(exitUsage, "", []string{"relay", "--tail", "--publish", "discard:", "--until-empty"}, "OUTBOX_TAIL_DSN: dsn cannot be parsed")
	if strings.Contains(text, "secret") {
		t.Errorf("the password is shown: %s", text)
	}
}

func TestTailGauges(t *testing.T) {
	var g tailGauges
	for _, step := range []struct {
		event tail.Event
		want  [3]int64
	}{
		{tail.Streaming{Slot: "s"}, [3]int64{1, 0, 0}},
		{tail.Watched{Slot: "s", Behind: 7, Retained: 9}, [3]int64{1, 7, 9}},
		{tail.Unwatched{Err: context.Canceled}, [3]int64{1, 7, 9}},
		{tail.Lost{Err: context.Canceled}, [3]int64{0, 0, 0}},
		{tail.Streaming{Slot: "t"}, [3]int64{1, 0, 0}},
	} {
		g.observe(step.event)
		if got := [3]int64{g.streaming.Load(), g.behind.Load(), g.retained.Load()}; got != step.want {
			t.Errorf("after %T %v, want %v", step.event, got, step.want)
		}
	}
}
