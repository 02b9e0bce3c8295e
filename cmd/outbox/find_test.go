package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestFind looks for messages that are ready, dead, replayed, and nowhere.
func TestFind(t *testing.T) {
	s := migrated(t)
	const (
		dead    = "01890a5d-ac96-774b-bcce-b302099a8057"
		done    = "01890a5d-ac96-774b-bcce-b302099a8058"
		nowhere = "01890a5d-ac96-774b-bcce-b302099a8059"
	)
	s.ok(`{"id":"`+dead+`","topic":"orders","key":"a","type":"t"}`, "enqueue")
	s.refuse()
	s.ok(`{"id":"`+done+`","topic":"orders","key":"","type":"t"}`, "enqueue")
	s.deliver()
	s.ok("", "replay", "--id", done)

	out := s.ok("", "find", "--id", done, "--id", nowhere, "--id", dead)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 5 || !strings.HasPrefix(lines[0], "ID") || !strings.HasPrefix(lines[4], nowhere+" is nowhere") {
		t.Fatalf("find says\n%s", out)
	}
	for i, want := range [][]string{{done, "ready", `""`, "orders"}, {done, "published", `""`, "orders"}, {dead, "dead", "a", "orders", "422"}} {
		for _, word := range want {
			if !strings.Contains(lines[i+1], word) {
				t.Errorf("line %d lacks %q: %s", i+1, word, lines[i+1])
			}
		}
	}
	var found struct {
		Messages []struct {
			ID, State    string
			Replay       int
			Key          *string
			SinceSeconds *float64 `json:"since_seconds"`
		}
	}
	if err := json.Unmarshal([]byte(s.ok("", "find", "--json", "--id", nowhere, "--id", done)), &found); err != nil {
		t.Fatal(err)
	}
	if m := found.Messages; len(m) != 2 || m[0].State != "ready" || m[0].Replay != 1 || m[1].State != "published" || m[1].ID != done ||
		m[1].Key == nil || *m[1].Key != "" || m[1].SinceSeconds == nil {
		t.Errorf("as JSON it is %+v", m)
	}
	if out := s.ok("", "find", "--json", "--id", nowhere); !strings.Contains(out, `"messages": []`) {
		t.Errorf("nothing found is as JSON %s", out)
	}
	s.fails(exitUsage, "", []string{"find"}, "--id")
	s.fails(exitUsage, "", []string{"find", "--id", "7"}, "id")
}
