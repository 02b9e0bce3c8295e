package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// enqueueKeys enqueues n messages of each key.
func (s *shell) enqueueKeys(topic string, n int, keys ...string) {
	s.t.Helper()
	var in strings.Builder
	for i := range n {
		for _, key := range keys {
			quoted, err := json.Marshal(key)
			if err != nil {
				s.t.Fatal(err)
			}
			fmt.Fprintf(&in, `{"topic":%q,"key":%s,"type":"order.changed","revision":%d,"data":{"card":"hunter2"}}`+"\n", topic, quoted, i+1)
		}
	}
	s.ok(in.String(), "enqueue")
}

// A broker that is away is waited for, but not for ever.
func TestUntilEmptyTimeout(t *testing.T) {
	s := migrated(t)
	s.enqueueKeys("orders", 1, "a")
	away, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed at once
	if err != nil {
		t.Fatal(err)
	}
	address := away.Addr().String()
	if err := away.Close(); err != nil {
		t.Fatal(err)
	}
	run := []string{"relay", "--publish", "http://" + address + "/#allow=127.0.0.1", "--until-empty", "--timeout"}
	ends, cancel := context.WithTimeout(t.Context(), time.Minute) // or it would wait with the relay
	defer cancel()
	r := s.runUntil(ends, nil, append(run, "300ms")...)
	if r.code != exitFailed || !strings.Contains(r.err, "the outbox is not empty after 300ms") || !strings.Contains(r.err, "relay stopped") {
		t.Errorf("a broker that is away: %v", r)
	}
	if out := s.ok("", "status", "--json"); !strings.Contains(out, `"lanes_held": 0`) {
		t.Errorf("a lane is held still: %s", out)
	}
	if r := s.deliver(); r == nil {
		t.Error("nothing was delivered afterwards")
	}
	s.ok("", append(run, "1m")...) // nothing is left
	// Nor is a database waited for that takes connections and says nothing.
	silent, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a listener
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	s.env["OUTBOX_DSN"] = "postgres://app:hunter2@" + silent.Addr().String() + "/shop?sslmode=disable"
	s.fails(exitFailed, "", []string{"relay", "--publish", "discard:", "--until-empty", "--timeout", "300ms"}, "no answer from the database within 300ms")
	s.fails(exitUsage, "", []string{"relay", "--publish", "discard:", "--timeout", "1s"}, "--until-empty")
}

// refuse makes the heads of all keys dead by an endpoint that refuses them.
func (s *shell) refuse(args ...string) result {
	s.t.Helper()
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnprocessableEntity)
	}))
	defer endpoint.Close()
	r := s.run(nil, append([]string{"relay", "--publish", endpoint.URL + "/?token=hunter2#allow=127.0.0.1", "--until-empty"}, args...)...)
	if r.code != exitOK {
		s.t.Fatalf("relay: %v", r)
	}
	return r
}

// listed is the JSON of parked.
type listed struct {
	Messages []struct {
		Pos, Seq                       int64
		ID, State, Topic, Type, Reason string
		Key                            *string
		Attempts                       int
		Blocking                       bool
		DueInSeconds                   *float64  `json:"due_in_seconds"`
		ParkedAt                       time.Time `json:"parked_at"`
	}
	NextAfter *int64 `json:"next_after"`
}

func (s *shell) parked(args ...string) listed {
	s.t.Helper()
	var l listed
	if err := json.Unmarshal([]byte(s.ok("", append([]string{"parked", "--json"}, args...)...)), &l); err != nil {
		s.t.Fatal(err)
	}
	return l
}

// A pipe gets the key, the topic and the reason, which names the topic, as they are.
func TestParkedIsWholeInPipe(t *testing.T) {
	s := migrated(t)
	long := strings.Repeat("long", 50)
	s.enqueueKeys(long, 1, long)
	s.refuse()
	if out := s.ok("", "parked"); strings.Count(out, long) != 3 || strings.Contains(out, "…") {
		t.Errorf("parked prints:\n%s", out)
	}
}

func TestParkedAndWhatToDo(t *testing.T) {
	s := migrated(t)
	s.enqueueKeys("orders", 3, "a", "b")
	s.enqueueKeys("bills", 1, "", "c\x1b[31m")
	s.refuse()
	if dead, held, blocked := s.status("dead"), s.status("held"), s.status("blocked_keys"); dead != 4 || held != 4 || blocked != 4 {
		t.Fatalf("%d dead, %d held, %d blocked keys, want 4 each", dead, held, blocked)
	}

	all := s.parked()
	if len(all.Messages) != 8 || all.NextAfter != nil {
		t.Fatalf("parked lists %d messages, next after %v", len(all.Messages), all.NextAfter)
	}
	for _, m := range all.Messages {
		if m.Key == nil || m.ParkedAt.IsZero() || m.Topic == "" || m.Type != "order.changed" {
			t.Errorf("parked lists %+v", m)
		}
		if dead := m.State == "dead"; dead != strings.Contains(m.Reason, "422") || dead != m.Blocking || dead != (m.Attempts == 1) {
			t.Errorf("parked lists %+v", m)
		}
	}
	for _, test := range []struct {
		args []string
		want int
	}{
		{[]string{"--state", "dead"}, 4},
		{[]string{"--state", "dead", "--state", "held", "--topic", "orders"}, 6},
		{[]string{"--key", "a"}, 3},
		{[]string{"--key", ""}, 1},
		{[]string{"--topic", "bills"}, 2},
		{[]string{"--type", "order.changed", "--key", "b", "--state", "dead"}, 1},
		{[]string{"--type", "nothing"}, 0},
		{[]string{"--id", all.Messages[0].ID, "--id", all.Messages[1].ID}, 2},
		{[]string{"--all"}, 8},
	} {
		if got := len(s.parked(test.args...).Messages); got != test.want {
			t.Errorf("parked %v lists %d, want %d", test.args, got, test.want)
		}
	}

	// Pages.
	var paged []int64
	after := int64(0)
	for {
		l := s.parked("--limit", "3", "--after", fmt.Sprint(after))
		for _, m := range l.Messages {
			paged = append(paged, m.Pos)
		}
		if l.NextAfter == nil {
			break
		}
		after = *l.NextAfter
	}
	if len(paged) != 8 {
		t.Errorf("the pages list %v", paged)
	}

	// For people: aligned, escaped, no payload.
	out := s.ok("", "parked", "--limit", "7")
	if !strings.HasPrefix(out, "POS") || !strings.Contains(out, "--after ") || strings.Contains(out, "hunter2") {
		t.Errorf("parked prints:\n%s", out)
	}
	if out := s.ok("", "parked"); strings.Contains(out, "\x1b") || !strings.Contains(out, `"c\x1b[31m"`) {
		t.Errorf("parked lets a key move the cursor:\n%q", out)
	}
	if out := s.ok("", "parked", "--type", "nothing"); !strings.Contains(out, "nothing is parked") {
		t.Errorf("parked prints %q", out)
	}

	// Without a state only dead messages are meant.
	if out := s.ok("", "discard", "--key", "b", "--dry-run"); out != "1 message would be discarded\n" {
		t.Errorf("discard --dry-run says %q", out)
	}
	// Dry runs change nothing and tell what the command then does.
	for _, test := range []struct {
		command string
		args    []string
		want    int
	}{
		{"requeue", []string{"--key", "a"}, 1},
		{"requeue", []string{"--all", "--state", "held"}, 0},
		{"discard", []string{"--key", "b", "--state", "held"}, 2},
		{"discard", []string{"--topic", "bills", "--limit", "1"}, 1},
	} {
		done := map[string]string{"requeue": "requeued", "discard": "discarded"}[test.command]
		args := append([]string{test.command, "--json"}, test.args...)
		before := len(s.parked().Messages)
		if out := s.ok("", append(args, "--dry-run")...); !sameJSON(t, out, fmt.Sprintf(`{"would_be_%s":%d}`, done, test.want)) {
			t.Errorf("%v --dry-run says %s", args, out)
		}
		if n := len(s.parked().Messages); n != before {
			t.Errorf("%v --dry-run changed something", args)
		}
		if out := s.ok("", args...); !sameJSON(t, out, fmt.Sprintf(`{%q:%d}`, done, test.want)) {
			t.Errorf("%v says %s", args, out)
		}
	}
	// a is requeued with what is held; b has its dead head; one bill is left.
	if out := s.ok("", "discard", "--key", "b"); out != "1 message discarded\n" {
		t.Errorf("discard says %q", out)
	}
	got := s.deliver()
	if len(got) != 3 || got[0].Subject != "a" || got[0].Revision != "1" || got[2].Revision != "3" {
		t.Errorf("delivered %+v, want the three of key a", got)
	}
	if dead, held := s.status("dead"), s.status("held"); dead != 1 || held != 0 {
		t.Errorf("%d dead and %d held are left", dead, held)
	}
	if out := s.ok("", "requeue", "--all"); out != "1 message requeued\n" {
		t.Errorf("requeue says %q", out)
	}
	if n := len(s.deliver()); n != 1 {
		t.Errorf("%d delivered, want the last bill", n)
	}
}

// TestRequeueRetries shows that a retry is requeued once: it is due then.
func TestRequeueRetries(t *testing.T) {
	s := migrated(t)
	s.enqueueKeys("orders", 1, "a", "b")
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer endpoint.Close()
	s.ok("", "relay", "--publish", endpoint.URL+"#allow=127.0.0.1", "--until-empty", "--retry-min", "10000h", "--retry-max", "10000h")
	for _, want := range []string{"2 messages", "0 messages"} {
		if out := s.ok("", "requeue", "--all", "--state", "retry", "--dry-run"); out != want+" would be requeued\n" {
			t.Errorf("requeue --dry-run says %q, want %s", out, want)
		}
		if out := s.ok("", "requeue", "--all", "--state", "retry"); out != want+" requeued\n" {
			t.Errorf("requeue says %q, want %s", out, want)
		}
	}
	if n := len(s.deliver()); n != 2 {
		t.Errorf("%d delivered, want 2", n)
	}
}

func TestReplayAndPurge(t *testing.T) {
	s := migrated(t)
	s.enqueueKeys("orders", 2, "a", "b")
	s.enqueueKeys("bills", 1, "c")
	first := s.deliver()
	if out := s.ok("", "replay", "--topic", "orders", "--since", "1h", "--json"); !sameJSON(t, out, `{"replayed":4}`) {
		t.Errorf("replay says %s", out)
	}
	ids := make(map[string]bool)
	for _, e := range first {
		ids[e.ID] = true
	}
	again := s.deliver()
	for _, e := range again {
		if !ids[e.ID] || e.Replay != 1 || e.Topic != "orders" {
			t.Errorf("replayed as %+v", e)
		}
	}
	if len(again) != 4 {
		t.Errorf("%d delivered, want 4", len(again))
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--since", time.Now().Add(-time.Hour).Format(time.RFC3339), "--topic", "bills"}, "1 message replayed\n"},
		{[]string{"--until", "1h", "--all"}, "0 messages replayed\n"},
		{[]string{"--all", "--until", time.Now().Add(-time.Hour).Format(time.RFC3339)}, "0 messages replayed\n"},
		{[]string{"--id", first[0].ID, "--limit", "5"}, "1 message replayed\n"},
	} {
		if out := s.ok("", append([]string{"replay"}, test.args...)...); out != test.want {
			t.Errorf("replay %v says %q, want %q", test.args, out, test.want)
		}
		s.deliver()
	}

	if out := s.ok("", "purge", "--older-than", "1h"); out != "0 messages purged\n" {
		t.Errorf("purge says %q", out)
	}
	s.enqueueKeys("orders", 1, "d")
	if out := s.ok("", "purge", "--older-than", "0", "--limit", "2", "--json"); !sameJSON(t, out, `{"purged":2}`) {
		t.Errorf("purge says %s", out)
	}
	s.ok("", "purge", "--older-than", "0s")
	if out := s.ok("", "replay", "--all"); out != "0 messages replayed\n" {
		t.Errorf("replay after the purge says %q", out)
	}
	if n := s.status("ready"); n != 1 {
		t.Errorf("%d ready after the purge, want the new one", n)
	}
}

func TestOperatorsMistakes(t *testing.T) {
	s := migrated(t)
	for _, test := range []struct{ args, want string }{
		{"requeue", "nothing is selected"},
		{"requeue --limit 5", "nothing is selected"},
		{"discard", "nothing is selected"},
		{"replay", "nothing is selected"},
		{"replay --state dead", "flag is not known: --state"},
		{"purge", "older-than is missing"},
		{"purge --older-than -1h", "give a duration of 0 or more"},
		{"purge --older-than soon", "give a duration of 0 or more"},
		{"purge --older-than 1h --limit -1", "limit is -1"},
		{"discard --all --limit -1", "limit is -1"},
		{"replay --all --limit -1", "limit is -1"},
		{"requeue --id 7", "give a UUID"},
		{"requeue --topic=", "is empty"},
		{"discard --type=", "is empty"},
		{"requeue --state done", "use scheduled, retry, held or dead"},
		{"parked --limit 0", "limit is 0"},
		{"parked --limit 1000000", "limit is 1000000"},
		{"replay --since tomorrow", "give an age such as"},
		{"replay --since -1h", "is not in the past"},
		{"replay --since 2999-01-01T00:00:00Z", "is not in the past"},
		{"replay --since 1h --until 2h", "nothing could match"},
		{"health --max-age 0", "above 0"},
		{"health --max-age -1s", "above 0"},
		{"health --timeout x", "invalid value"},
	} {
		s.fails(exitUsage, "", strings.Fields(test.args), test.want)
	}
}

func TestHealth(t *testing.T) {
	s := migrated(t)
	if out := s.ok("", "health"); !strings.HasPrefix(out, "healthy: ") {
		t.Errorf("health says %q", out)
	}
	s.enqueueKeys("orders", 2, "a")
	s.ok("", "health", "--max-age", "1h")
	for s.run(nil, "health", "--max-age", "1ms").code != exitFinding {
		time.Sleep(time.Millisecond) // until it is old enough
	}
	r := s.run(nil, "health", "--max-age", "1ms")
	if !strings.Contains(r.out, "unhealthy: the message that has waited longest, ready or overdue, has waited") || r.err != "" {
		t.Errorf("health says %v", r)
	}
	s.refuse()
	s.ok("", "health", "--max-dead", "1")
	r = s.run(nil, "health", "--max-dead", "0", "--json")
	var report struct {
		Healthy  bool
		Dead     int
		Findings []string
	}
	if err := json.Unmarshal([]byte(r.out), &report); err != nil || r.code != exitFinding || report.Healthy || report.Dead != 1 || len(report.Findings) != 1 {
		t.Errorf("%v: health says %v", err, r)
	}
	s.ok("", "health") // any number by default
	s.env["OUTBOX_DSN"] = "postgres://app:secret@127.0.0.1:1/shop"
	s.fails(exitFailed, "", []string{"health"})
}

func TestRelayPublishers(t *testing.T) {
	s := migrated(t)
	s.enqueueKeys("orders", 2, "a", "b")
	path := t.TempDir() + "/out.ndjson"
	s.ok("", "relay", "--publish", "file:"+path, "--until-empty", "--source", "/shop")
	s.enqueueKeys("orders", 2, "a")
	s.env["OUTBOX_PUBLISH"] = "file://" + path
	s.ok("", "relay", "--until-empty", "--source", "/shop")
	delete(s.env, "OUTBOX_PUBLISH")
	text := readFile(t, path)
	if n := len(events(t, text)); n != 6 || strings.Count(text, `"source":"/shop"`) != 6 {
		t.Errorf("the file has %d events:\n%s", n, text)
	}

	var posts atomic.Int64
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer hunter2" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		posts.Add(1)
	}))
	defer endpoint.Close()
	s.env["OUTBOX_WEBHOOK_AUTHORIZATION"] = "Bearer hunter2"
	s.enqueueKeys("orders", 3, "a", "b", "c")
	s.ok("", "relay", "--publish", endpoint.URL+"#allow=127.0.0.1", "--until-empty")
	if n := posts.Load(); n != 9 || s.status("dead") != 0 {
		t.Errorf("%d posts, want 9", n)
	}

	s.enqueueKeys("orders", 1, "a")
	s.ok("", "purge", "--older-than", "0")
	s.ok("", "relay", "--publish", "discard:", "--until-empty", "--retention", "0")
	if out := s.ok("", "replay", "--all"); out != "0 messages replayed\n" {
		t.Errorf("retention 0 kept messages: %s", out)
	}
	if n := s.status("ready"); n != 0 {
		t.Errorf("%d ready, want 0", n)
	}
}

func TestRelayOnDead(t *testing.T) {
	s := migrated(t)
	s.enqueueKeys("orders", 3, "a")
	s.refuse("--on-dead", "pass")
	if dead, held := s.status("dead"), s.status("held"); dead != 3 || held != 0 {
		t.Errorf("%d dead and %d held, want 3 and 0", dead, held)
	}
}

func TestRelayMaxAttempts(t *testing.T) {
	s := migrated(t)
	s.enqueueKeys("orders", 1, "a")
	var posts atomic.Int64
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		posts.Add(1)
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer endpoint.Close()
	for s.status("dead") == 0 { // what is not due does not keep it
		s.ok("", "relay", "--publish", endpoint.URL+"#allow=127.0.0.1", "--until-empty", "--max-attempts", "3", "--retry-min", "1ms", "--retry-max", "1ms")
	}
	if n := posts.Load(); n != 3 {
		t.Errorf("%d attempts, want 3", n)
	}
}

func TestRelayMistakes(t *testing.T) {
	s := migrated(t)
	for _, test := range []struct{ args, want string }{
		{"", "no publisher"},
		{"--publish pigeon://u:secret@host", "publisher is unknown"},
		{"--publish secret", "publisher has no colon"},
		{"--publish stdout", "publisher has no colon"},
		{"--publish stdout:secret", "stdout: takes nothing behind its colon"},
		{"--publish discard:secret", "discard: takes nothing behind its colon"},
		{"--publish file:", "needs a path"},
		{"--publish file:/no/such/folder/x", "no such file"},
		{"--publish http://", "write it as https://"},
		{"--publish discard: --source ", "source"},
		{"--publish stdout: --source a|b", "source is not a URI reference"},
		{"--publish discard: --workers 0", "give a number above 0"},
		{"--publish discard: --batch -1", "give a number above 0"},
		{"--publish discard: --batch-bytes 1MB", "give a number of bytes"},
		{"--publish discard: --lease 0", "give a duration above 0"},
		{"--publish discard: --lease 10ms", "lease is 10ms: give at least 1s"},
		{"--publish discard: --lease 15", "give a duration above 0, for example 500ms or 15s"},
		{"--publish discard: --poll-min 2s --poll-max 1s", "poll max is 1s"},
		{"--publish discard: --on-dead drop", "use hold or pass"},
		{"--publish discard: --retention -1s", "or 0 to keep nothing"},
		{"--publish discard: --retention forever", "give a duration"},
		{"--publish discard: --owner " + strings.Repeat("x", 200), "owner has 200 bytes"},
		{"--publish discard: --log-level loud", "use debug, info, warn or error"},
		{"--publish discard: --log-format xml", "use text or json"},
		{"--publish discard: --listen", "listen is set"},
		{"--publish discard: --prefix " + strings.Repeat("x", 2000), "prefix"},
	} {
		args := append([]string{"relay", "--until-empty"}, strings.Split(test.args, " ")...)
		if test.args == "" {
			args = args[:2]
		}
		text := s.fails(exitUsage, "", args, test.want)
		if strings.Contains(text, "secret") {
			t.Errorf("%q shows a secret: %s", test.args, text)
		}
	}
}

// TestRelayLog looks at what a log tells, and at what it must not tell.
func TestRelayLog(t *testing.T) {
	s := migrated(t)
	s.enqueueKeys("orders", 2, "key-of-ann")
	r := s.refuse("--log-format", "json", "--log-level", "debug")
	messages := make(map[string]int)
	for line := range strings.Lines(r.err) {
		var entry struct{ Level, Msg string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		messages[entry.Level+" "+entry.Msg]++
	}
	for _, want := range []string{"INFO relay started", "DEBUG lane claimed", "ERROR message is dead", "DEBUG settled", "INFO relay stopped"} {
		if messages[want] == 0 {
			t.Errorf("the log lacks %q: %v", want, messages)
		}
	}
	for _, secret := range []string{"hunter2", "key-of-ann"} {
		if strings.Contains(r.err, secret) {
			t.Errorf("the log shows %q:\n%s", secret, r.err)
		}
	}
	// Where a line is about one message, it says which.
	s.ok(`{"topic":"orders","key":"key-of-bob","type":"order.changed","headers":{"traceparent":"00-trace","Correlation-ID":"c1","cookie":"c00kie"}}`, "enqueue")
	r = s.refuse("--log-format", "json")
	var dead map[string]any
	for line := range strings.Lines(r.err) {
		if strings.Contains(line, "message is dead") {
			if err := json.Unmarshal([]byte(line), &dead); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, want := range map[string]any{
		"traceparent": "00-trace", "correlation-id": "c1", "kind": "permanent", "attempt": 1.0,
		"key_hash": float64(dialect.KeyHash("key-of-bob")),
	} {
		if dead[name] != want {
			t.Errorf("%s is %v, want %v, in %v", name, dead[name], want, dead)
		}
	}
	for _, name := range []string{"id", "topic", "lane", "epoch", "seq"} {
		if dead[name] == nil {
			t.Errorf("the line lacks %s: %v", name, dead)
		}
	}
	for _, secret := range []string{"key-of-bob", "c00kie"} {
		if strings.Contains(r.err, secret) {
			t.Errorf("the log shows %q:\n%s", secret, r.err)
		}
	}
	s.ok("", "requeue", "--all")
	r = s.refuse("--log-keys")
	if !strings.Contains(r.err, "key=key-of-ann") || strings.Contains(r.err, "hunter2") {
		t.Errorf("with --log-keys:\n%s", r.err)
	}
	s.ok("", "requeue", "--all")
	if r = s.refuse("--log-level", "error"); strings.Contains(r.err, "INFO") || !strings.Contains(r.err, "message is dead") {
		t.Errorf("with --log-level error:\n%s", r.err)
	}
}
