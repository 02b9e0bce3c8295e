package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// TestAudit: each command that changes messages leaves who, what, how many and why; a dry
// run leaves nothing.
func TestAudit(t *testing.T) {
	s := migrated(t)
	if out := s.ok("", "audit"); out != "nothing is in the audit\n" {
		t.Errorf("an empty audit is %q", out)
	}
	s.enqueueKeys("orders", 2, "a", "b")
	s.refuse()
	s.ok("", "requeue", "--all", "--dry-run")
	s.ok("", "discard", "--key", "b", "--by", "jo", "--reason", "test\x1b orders")
	s.ok("", "requeue", "--topic", "orders", "--limit", "5")
	s.ok("", "replay", "--key", "b", "--dry-run")
	s.ok("", "replay", "--key", "b", "--reason", "they were none")
	s.ok("", "purge", "--older-than", "0s")
	s.fails(exitUsage, "", []string{"discard", "--all", "--by", strings.Repeat("x", 300)}, "limit is 255")

	var list struct {
		Actions []struct {
			Who, Action, Selection, Reason, Failure string
			Changed                                 *int
			EndedAt                                 *time.Time `json:"ended_at"`
		}
		NextBefore *int64 `json:"next_before"`
	}
	if err := json.Unmarshal([]byte(s.ok("", "audit", "--json")), &list); err != nil {
		t.Fatal(err)
	}
	want := []struct {
		action, selection, reason string
		changed                   int
	}{
		{"purge", "--older-than 0s", "", 0},
		{"replay", "--key b", "they were none", 1},
		{"requeue", "--topic orders --state dead --limit 5", "", 1},
		{"discard", "--key b --state dead", "test\x1b orders", 1},
	}
	if len(list.Actions) != len(want) || list.NextBefore != nil {
		t.Fatalf("the audit has %+v", list)
	}
	for i, a := range list.Actions {
		w := want[i]
		if a.Action != w.action || a.Selection != w.selection || a.Reason != w.reason || a.Failure != "" || a.EndedAt == nil ||
			a.Changed == nil || a.Action != "purge" && *a.Changed != w.changed {
			t.Errorf("action %d is %+v, want %+v", i, a, w)
		}
		if (a.Who == "jo") != (a.Action == "discard") || a.Who == "" {
			t.Errorf("%s was done by %q", a.Action, a.Who)
		}
	}
	out := s.ok("", "audit", "--limit", "1")
	if !strings.Contains(out, "--before ") || strings.Count(out, "purge") != 1 {
		t.Errorf("a page of one is\n%s", out)
	}
	if out := s.ok("", "audit"); strings.Contains(out, "\x1b") || !strings.Contains(out, `"test\x1b orders"`) {
		t.Errorf("a reason moves the cursor:\n%q", out)
	}
}
