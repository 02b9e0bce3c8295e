package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/sqlite"
)

func TestStatusNamesOwners(t *testing.T) {
	s := migrated(t)
	db, err := sqlite.Open(sqlitePath(s.env["OUTBOX_DSN"]))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	o, err := outbox.New(db, sqlite.New(), outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		lane  int
		owner string
		ttl   time.Duration
	}{{3, "relay b", time.Hour}, {0, "relay b", time.Hour}, {1, "relay\x1b a", time.Hour}, {2, "relay gone", -time.Hour}} {
		if _, ok, err := o.Store().Claim(t.Context(), db, c.lane, c.owner, c.ttl); err != nil || !ok {
			t.Fatal(ok, err)
		}
	}
	out := s.ok("", "status")
	var tail []string
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "lanes") {
			tail = append(tail, strings.Join(strings.Fields(line), " "))
		}
	}
	if want := []string{"lanes held 3", "lanes expired 1", `lanes of "relay\x1b a" 1`, "lanes of relay b 0 3"}; !slices.Equal(tail, want) {
		t.Errorf("status says %q, want %q", tail, want)
	}
	var report struct {
		Owners []laneOwner
	}
	if err := json.Unmarshal([]byte(s.ok("", "status", "--json")), &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Owners) != 2 || report.Owners[1].Owner != "relay b" || !slices.Equal(report.Owners[1].Lanes, []int{0, 3}) {
		t.Errorf("status says %+v", report.Owners)
	}
}
