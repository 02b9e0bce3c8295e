package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/conformance/containers"
)

const order = `{"topic":"orders","key":"42","type":"order.placed","data":{"total":7}}` + "\n"

func TestEnqueueKeepsEverything(t *testing.T) {
	s := migrated(t)
	const id = "0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11"
	in := "\ufeff" + strings.Join([]string{
		`{"topic":"t","type":"all","key":"k","id":"` + id + `","data": {"b" : [1.0, "x\u00e9"], "b":2e3} ,"headers":{"tenant":"acme","X-A":"é"},"content_type":"application/vnd.x+json","revision":7}`,
		"",
		`   {"topic":"t","type":"no key, no data"}  ` + "\r",
		"\t",
		`{"topic":"t","type":"null key","key":null,"data":null}`,
		`{"topic":"t","type":"empty key","key":"","data_base64":""}`,
		`{"topic":"t","type":"bytes","data_base64":"AP8=","content_type":"application/octet-stream"}`,
		`{"data":"\ud83d\ude00","type":"any order","topic":"t","key":"\ufffd"}`,
	}, "\n") // the last line is not ended
	if out := s.ok(in, "enqueue"); out != "6 messages enqueued\n" {
		t.Errorf("enqueue says %q", out)
	}
	byType := make(map[string]event)
	for _, e := range s.deliver() {
		byType[e.Type] = e
	}
	all := byType["all"]
	if all.ID != id || all.Subject != "k" || string(all.Data) != `{"b" : [1.0, "x\u00e9"], "b":2e3}` || all.Tenant != "acme" ||
		all.Headers != `{"X-A":"é"}` || all.DataContentType != "application/vnd.x+json" || all.Revision != "7" {
		t.Errorf("all fields came as %+v", all)
	}
	if e := byType["no key, no data"]; e.Subject != "" || e.EmptyKey || e.Data != nil || e.DataBase64 != nil || e.Topic != "t" {
		t.Errorf("no key, no data came as %+v", e)
	}
	if e := byType["null key"]; e.EmptyKey || string(e.Data) != "null" {
		t.Errorf("null key came as %+v", e)
	}
	if e := byType["empty key"]; !e.EmptyKey || e.DataBase64 == nil || *e.DataBase64 != "" {
		t.Errorf("empty key came as %+v", e)
	}
	if e := byType["bytes"]; e.DataBase64 == nil || *e.DataBase64 != "AP8=" {
		t.Errorf("bytes came as %+v", e)
	}
	if e := byType["any order"]; string(e.Data) != `"\ud83d\ude00"` || e.Subject != "\ufffd" {
		t.Errorf("any order came as %+v", e)
	}
}

func TestEnqueueNothing(t *testing.T) {
	s := migrated(t)
	for _, in := range []string{"", "\n \n"} {
		if out := s.ok(in, "enqueue", "--json"); !sameJSON(t, out, `{"enqueued":0,"transactions":0}`) {
			t.Errorf("enqueue of %q says %s", in, out)
		}
	}
}

func TestEnqueueDelays(t *testing.T) {
	s := migrated(t)
	s.ok(`{"topic":"t","type":"a","available_in":"1h"}`+"\n"+`{"topic":"t","type":"b","available_in":0.5e4}`+"\n"+
		`{"topic":"t","type":"c","available_in":0}`+"\n"+`{"topic":"t","type":"d","available_in":"0s"}`, "enqueue")
	if ready, scheduled := s.status("ready"), s.status("scheduled"); ready != 2 || scheduled != 2 {
		t.Errorf("%d ready and %d scheduled, want 2 and 2", ready, scheduled)
	}
}

func TestEnqueueRefuses(t *testing.T) {
	s := migrated(t)
	s.ok(`{"topic":"t","type":"x","id":"0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11"}`, "enqueue")
	for _, test := range []struct{ line, want string }{
		{`x`, "is not a JSON object"},
		{`[]`, "is not a JSON object"},
		{`"text"`, "is not a JSON object"},
		{`null`, "is not a JSON object"},
		{`{"topic":"t"`, "ends too early"},
		{`{"topic":`, "ends too early"},
		{`{"topic":"t",}`, "is not valid JSON"},
		{`{"topic":"t" "type":"x"}`, "is not valid JSON"},
		{`{topic:"t"}`, "is not valid JSON"},
		{`{"topic":"t","type":"x"}{}`, "goes on behind"},
		{`{"topic":"t","type":"x"} x`, "goes on behind"},
		{"{\"topic\":\"t\xff\",\"type\":\"x\"}", "is not valid UTF-8"},
		{`{"topic":"t","type":"x","Key":"k"}`, `field "Key" is unknown: use topic, key`},
		{`{"topic":"t","type":"x","payload":"k"}`, `field "payload" is unknown`},
		{`{"topic":"t","type":"x","key":"a","key":"b"}`, `field "key" is given twice`},
		{`{"topic":"t","type":"x","key":1}`, "key is not a string"},
		{`{"topic":"t","type":"x","key":"\ud800"}`, "key has half of a surrogate pair"},
		{`{"topic":"t","type":"x","key":"\ufffd\udc00"}`, "key has half of a surrogate pair"},
		{`{"topic":"t","type":"x","key":"a\u0000"}`, "key contains a NUL"},
		{`{"topic":"t","type":"x","key":"` + strings.Repeat("k", 513) + `"}`, "key has 513 bytes, the limit is 512"},
		{`{"type":"x"}`, "topic is empty"},
		{`{"topic":"","type":"x"}`, "topic is empty"},
		{`{"topic":null,"type":"x"}`, "topic is not a string"},
		{`{"topic":"t"}`, "type is empty"},
		{`{"topic":"t","type":"x","data":1,"data_base64":""}`, "give one of them"},
		{`{"topic":"t","type":"x","data_base64":"a"}`, "is not base64"},
		{`{"topic":"t","type":"x","data_base64":5}`, "data_base64 is not a string"},
		{`{"topic":"t","type":"x","id":"7"}`, "id is not a UUID"},
		{`{"topic":"t","type":"x","id":"{0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11}"}`, "id is not a UUID"},
		{`{"topic":"t","type":"x","id":"00000000-0000-0000-0000-000000000000"}`, "id is all zeros"},
		{`{"topic":"t","type":"x","id":"0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11"}`, "id 0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11 is enqueued already"},
		{`{"topic":"t","type":"x","headers":[]}`, "headers is not an object of strings"},
		{`{"topic":"t","type":"x","headers":{"a":1}}`, `header "a" is not a string`},
		{`{"topic":"t","type":"x","headers":{"a":"","a":""}}`, `header "a" is given twice`},
		{`{"topic":"t","type":"x","headers":{"a b":""}}`, `headers name "a b"`},
		{`{"topic":"t","type":"x","headers":{"a":"x\ny"}}`, `headers value of "a"`},
		{`{"topic":"t","type":"x","content_type":7}`, "content_type is not a string"},
		{`{"topic":"t","type":"x","available_in":"soon"}`, "available_in is not a duration"},
		{`{"topic":"t","type":"x","available_in":-1}`, "available_in is not a duration"},
		{`{"topic":"t","type":"x","available_in":"-1s"}`, "available_in is not a duration"},
		{`{"topic":"t","type":"x","available_in":null}`, "available_in is not a duration"},
		{`{"topic":"t","type":"x","available_in":1e12}`, "too far away"},
		{`{"topic":"t","type":"x","revision":1.5}`, "revision is not a whole number"},
		{`{"topic":"t","type":"x","revision":"1"}`, "revision is not a whole number"},
		{`{"topic":"t","type":"x","revision":-1}`, "revision is -1"},
		{`{"topic":"t","type":"x","data":"` + strings.Repeat("p", 1<<20) + `"}`, "payload has 1048578 bytes, the limit is 1048576"},
		{strings.Repeat(" ", 3<<20), "has more than 2228224 bytes"},
	} {
		name := test.line
		if len(name) > 80 {
			name = name[:80]
		}
		t.Run(name, func(t *testing.T) {
			s.t = t
			text := s.fails(exitFailed, order+"\n"+order+test.line+"\n"+order, []string{"enqueue"}, "line 4: ", test.want, "nothing was enqueued")
			if len(text) > 400 {
				t.Errorf("the error has %d bytes", len(text))
			}
		})
	}
	s.t = t
	if n := s.status("ready"); n != 1 {
		t.Errorf("%d messages are ready, want the one from before", n)
	}
}

// smallChunks lets few lines make several chunks.
func smallChunks(t *testing.T) {
	t.Helper()
	before := chunkMessages
	chunkMessages = 20
	t.Cleanup(func() { chunkMessages = before })
}

func TestEnqueueTransactions(t *testing.T) {
	smallChunks(t)
	line := func(n int) string { return fmt.Sprintf(`{"topic":"t","type":"x","key":"%d"}`+"\n", n) }
	in := func(n, bad int) string {
		var b strings.Builder
		for i := 1; i <= n; i++ {
			if i == bad {
				b.WriteString("bad\n")
				continue
			}
			b.WriteString(line(i))
		}
		return b.String()
	}
	for _, test := range []struct {
		name      string
		lines     int
		bad       int
		args      []string
		want      string
		committed int
	}{
		{"one, all good", 50, 0, nil, `{"enqueued":50,"transactions":1}`, 50},
		{"one, a whole chunk", 20, 0, nil, `{"enqueued":20,"transactions":1}`, 20},
		{"many", 50, 0, []string{"--tx-size", "2"}, `{"enqueued":50,"transactions":25}`, 50},
		{"many, a rest", 21, 0, []string{"--tx-size", "2"}, `{"enqueued":21,"transactions":11}`, 21},
		{"as large as a chunk", 40, 0, []string{"--tx-size", "20"}, `{"enqueued":40,"transactions":2}`, 40},
		{"larger than a chunk", 50, 0, []string{"--tx-size", "24"}, `{"enqueued":50,"transactions":3}`, 50},
		{"one line each", 3, 0, []string{"--tx-size", "1"}, `{"enqueued":3,"transactions":3}`, 3},
		{"one, the last is bad", 50, 50, nil, "nothing was enqueued", 0},
		{"many, one is bad", 50, 47, []string{"--tx-size", "2"}, "lines 1-46 are committed (46 messages), nothing after them", 46},
		{"many, the first of one is bad", 6, 5, []string{"--tx-size", "2"}, "lines 1-4 are committed", 4},
		{"larger than a chunk, one is bad", 100, 74, []string{"--tx-size", "24"}, "lines 1-72 are committed", 72},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := migrated(t)
			args := append([]string{"enqueue"}, test.args...)
			if test.bad == 0 {
				if out := s.ok(in(test.lines, 0), append(args, "--json")...); !sameJSON(t, out, test.want) {
					t.Errorf("enqueue says %s", out)
				}
			} else {
				s.fails(exitFailed, in(test.lines, test.bad), args, fmt.Sprintf("line %d: ", test.bad), test.want)
			}
			if n := s.status("ready"); n != test.committed {
				t.Errorf("%d are ready, want %d", n, test.committed)
			}
		})
	}
}

// TestEnqueueNamesTheDuplicate repeats an id within a chunk, across the chunks
// of a transaction, and from an earlier transaction, on every engine: what an
// error does to an open transaction differs.
func TestEnqueueRevisions(t *testing.T) {
	s := newShell(t)
	s.ok("", "migrate")
	const line = `{"topic":"t","type":"y","key":"k"%s}` + "\n"
	given := func(n int) string { return fmt.Sprintf(line, fmt.Sprint(`,"revision":`, n)) }
	plain := fmt.Sprintf(line, "")
	s.ok(plain+given(2)+plain, "enqueue", "--revisions")
	s.fails(exitFailed, plain+given(6), []string{"enqueue", "--revisions"}, "line 2: revision is 6 and the next of its key is 5")
	s.ok(given(4), "enqueue", "--revisions")
	var got []string
	for _, e := range s.deliver() {
		got = append(got, e.Revision)
	}
	if strings.Join(got, " ") != "1 2 3 4" {
		t.Errorf("revisions %q", got)
	}
}

func TestEnqueueNamesTheDuplicate(t *testing.T) {
	smallChunks(t)
	onEveryEngine(t, func(t *testing.T, s *shell) {
		id := func(n int) string { return fmt.Sprintf("0199d3c5-6a4e-7c1e-9a53-%012d", n) }
		for _, test := range []struct {
			name        string
			first, last int // lines with the same id
			args        []string
		}{
			{"in a chunk", 10, 14, nil},
			{"across chunks", 2, 42, nil},
			{"across transactions", 2, 42, []string{"--tx-size", "10"}},
			{"next to each other", 20, 21, nil},
		} {
			var in strings.Builder
			for i := 1; i <= 44; i++ {
				n := i
				if i == test.last {
					n = test.first
				}
				fmt.Fprintf(&in, `{"topic":"t","type":"x","id":"%s"}`+"\n", id(n))
			}
			s.fails(exitFailed, in.String(), append([]string{"enqueue"}, test.args...),
				fmt.Sprintf("line %d: id %s is enqueued already", test.last, id(test.first)))
			want := 0
			if test.args != nil {
				want = 40
			}
			if n := s.status("ready"); n != want {
				t.Errorf("%s: %d are ready, want %d", test.name, n, want)
			}
			s.ok("", "relay", "--publish", "discard:", "--until-empty")
		}
	})
}

// onEveryEngine runs f on migrated tables of its own on SQLite and on every server
// there is.
func onEveryEngine(t *testing.T, f func(t *testing.T, s *shell)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) { f(t, migrated(t)) })
	for _, engine := range []string{"postgres", "mysql", "mariadb", "sqlserver", "oracle"} {
		t.Run(engine, func(t *testing.T) {
			for _, server := range containers.Servers(t, engine) {
				t.Run(server.Version, func(t *testing.T) { f(t, onServer(t, server)) })
			}
		})
	}
}

// onServer makes tables with a random prefix and removes them in the end.
func onServer(t *testing.T, server *containers.Server) *shell {
	t.Helper()
	s := &shell{t, map[string]string{"OUTBOX_DSN": server.DSN, "OUTBOX_PREFIX": fmt.Sprintf("cli_%08x", rand.Uint32())}}
	s.ok("", "migrate")
	t.Cleanup(func() {
		e, err := engineOf(server.DSN)
		if err != nil {
			t.Fatal(err)
		}
		db, err := e.open(server.DSN)
		if err != nil {
			t.Fatal(err)
		}
		for _, suffix := range []string{"", "_parked", "_done", "_lane", "_inbox", "_revision", "_progress", "_audit", "_meta"} {
			if _, err := db.ExecContext(context.Background(), "DROP TABLE "+s.env["OUTBOX_PREFIX"]+suffix); err != nil {
				t.Error(err)
			}
		}
		_ = db.Close()
	})
	return s
}

func TestEnqueuePrintsIDs(t *testing.T) {
	smallChunks(t)
	s := migrated(t)
	r := s.run(strings.NewReader(strings.Repeat(order, 50)), "enqueue", "--print-ids")
	printed := strings.Fields(r.out)
	if r.code != exitOK || len(printed) != 50 || r.err != "50 messages enqueued\n" {
		t.Fatalf("%d ids, exit code %d, %q", len(printed), r.code, r.err)
	}
	for i, e := range s.deliver() { // one key, so in order
		if e.ID != printed[i] {
			t.Fatalf("message %d is %s, printed was %s", i, e.ID, printed[i])
		}
	}
	// An id that is printed is committed.
	if r := s.run(strings.NewReader(strings.Repeat(order, 30)+"bad"), "enqueue", "--print-ids"); r.code != exitFailed || r.out != "" {
		t.Errorf("ids of a transaction that was rolled back: exit code %d, %d bytes", r.code, len(r.out))
	}
	r = s.run(strings.NewReader(strings.Repeat(order, 30)+"bad"), "enqueue", "--print-ids", "--tx-size", "25")
	if r.code != exitFailed || len(strings.Fields(r.out)) != 25 {
		t.Errorf("exit code %d, %d ids, want 25", r.code, len(strings.Fields(r.out)))
	}
	s.fails(exitUsage, "", []string{"enqueue", "--print-ids", "--json"}, "choose one")
}

func TestEnqueueMaxPayload(t *testing.T) {
	s := migrated(t)
	big := `{"topic":"t","type":"x","data":"` + strings.Repeat("p", 3<<20) + `"}`
	s.fails(exitFailed, big, []string{"enqueue"}, "line 1: has more than", "--max-payload")
	s.ok(big, "enqueue", "--max-payload", "4000000")
	s.fails(exitFailed, order, []string{"enqueue", "--max-payload", "5"}, "payload has 11 bytes, the limit is 5")
	for _, args := range [][]string{{"--max-payload", "0"}, {"--tx-size", "0"}, {"--tx-size", "-1"}, {"--tx-size", "x"}} {
		s.fails(exitUsage, "", append([]string{"enqueue"}, args...), "give a number above 0")
	}
}

// TestEnqueueInterrupted ends while the input is silent.
func TestEnqueueInterrupted(t *testing.T) {
	s := migrated(t)
	in, feed := io.Pipe()
	defer feed.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan result)
	go func() { done <- s.runUntil(ctx, in, "enqueue", "--tx-size", "3") }()
	if _, err := io.WriteString(feed, strings.Repeat(order, 5)); err != nil {
		t.Fatal(err)
	}
	for s.status("ready") < 3 { // the first transaction is committed
		time.Sleep(time.Millisecond)
	}
	cancel(interrupted{2})
	if r := <-done; r.code != 130 || !strings.Contains(r.err, "lines 1-3 are committed") {
		t.Errorf("interrupted: %v", r)
	}
	if n := s.status("ready"); n != 3 {
		t.Errorf("%d are ready, want 3", n)
	}
}

// failing is an input that breaks.
type failing struct{ io.Reader }

func (f failing) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		err = errors.New("disk on fire")
	}
	return n, err
}

func TestEnqueueInputBreaks(t *testing.T) {
	s := migrated(t)
	r := s.run(failing{strings.NewReader(strings.Repeat(order, 10))}, "enqueue")
	if r.code != exitFailed || !strings.Contains(r.err, "disk on fire") || !strings.Contains(r.err, "nothing was enqueued") {
		t.Errorf("an input that breaks: %v", r)
	}
	if n := s.status("ready"); n != 0 {
		t.Errorf("%d are ready: a broken input is not the end of one", n)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(order))
	f.Add([]byte(`{"topic":"t","key":"","data":[1 , 2],"headers":{"a":"\ud800"},"available_in":1e300,"revision":9223372036854775808}`))
	f.Add([]byte(`{"data_base64":"AA==","id":"0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11","type":"\ufffd"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		m, given, err := parse(line)
		if err != nil {
			return
		}
		if !utf8.Valid(line) {
			t.Error("accepts what is not UTF-8")
		}
		if given != (m.ID != outbox.Message{}.ID) {
			t.Errorf("id given %t, but it is %v", given, m.ID)
		}
		if m.Payload != nil && !bytes.Contains(line, []byte("data")) {
			t.Errorf("a payload from nowhere: %q", m.Payload)
		}
		if !bytes.Contains(line, []byte("_base64")) && !bytes.Contains(line, []byte(`\u`)) && !bytes.Contains(line, m.Payload) {
			t.Errorf("payload %q is not as in the line", m.Payload)
		}
		if m.Delay < 0 {
			t.Errorf("delay is %v", m.Delay)
		}
	})
}
