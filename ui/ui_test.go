package ui_test

import (
	"bytes"
	"context"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/relay"
	"github.com/outbox-suite/outbox/sqlite"
	"github.com/outbox-suite/outbox/ui"
)

type (
	relayMessage = relay.Message
	settled      = dialect.Settled
)

const token = "a-token-of-24-characters"

func newPage(t *testing.T, box *outbox.Outbox, cfg ui.Config) *ui.Page {
	t.Helper()
	page, err := ui.New(box, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// client asks a page, as somebody.
type client struct {
	*testing.T
	page http.Handler
	who  string
}

// ask returns the answer to a request, which edit may change.
func (c client) ask(method, path, body string, edit ...func(*http.Request)) (status int, header http.Header, text string) {
	c.Helper()
	r := httptest.NewRequestWithContext(c.Context(), method, "http://127.0.0.1:8464"+path, strings.NewReader(body))
	if c.who != "" {
		r.SetBasicAuth(c.who, token)
	}
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	for _, e := range edit {
		e(r)
	}
	w := httptest.NewRecorder()
	c.page.ServeHTTP(w, r)
	content, err := io.ReadAll(w.Result().Body)
	if err != nil {
		c.Fatal(err)
	}
	return w.Code, w.Header(), string(content)
}

// get returns a page that must be there.
func (c client) get(path string) string {
	c.Helper()
	status, _, text := c.ask(http.MethodGet, path, "")
	if status != http.StatusOK {
		c.Fatalf("GET %s: %d\n%s", path, status, text)
	}
	return text
}

var orderField = regexp.MustCompile(`name="order" value="([^"]+)"`)

// order asks for an action and returns the name of what is to be confirmed.
func (c client) order(action, selection string) (name, text string) {
	c.Helper()
	text = c.get("/act/" + action + "?" + selection)
	m := orderField.FindStringSubmatch(text)
	if m == nil {
		c.Fatalf("nothing to confirm in\n%s", text)
	}
	return m[1], text
}

// confirm sends the form.
func (c client) confirm(action, order, why string, edit ...func(*http.Request)) (int, http.Header, string) {
	c.Helper()
	return c.ask(http.MethodPost, "/act/"+action, url.Values{"order": {order}, "why": {why}}.Encode(), edit...)
}

func dead(t *testing.T, box *outbox.Outbox) int64 {
	t.Helper()
	s, err := box.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.Dead
}

func message(key string) outbox.Message {
	return outbox.Message{Topic: "orders", Key: key, Type: "placed", Payload: []byte(`{"card":"visa"}`)}
}

func TestNewRefuses(t *testing.T) {
	box := newBox(t, 2)
	for name, c := range map[string]struct {
		cfg  ui.Config
		want string
	}{
		"Path":      {ui.Config{Path: "/x"}, "end it with a slash"},
		"Pattern":   {ui.Config{Path: "/{x}/"}, "plain characters"},
		"Token":     {ui.Config{Token: "short"}, "at least 16"},
		"Password":  {ui.Config{User: "a", Password: "short"}, "at least 12"},
		"UserAlone": {ui.Config{User: "a"}, "go together"},
		"Colon":     {ui.Config{User: "a:b", Password: token}, "colon"},
		"Host":      {ui.Config{Hosts: []string{"https://x"}}, "the name alone"},
		"Sample":    {ui.Config{Sample: -1}, "above 0"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ui.New(box, c.cfg)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "short") {
				t.Errorf("New: %v, want an error that says %q and no secret", err, c.want)
			}
		})
	}
	if _, err := ui.New(nil, ui.Config{}); err == nil {
		t.Error("New took no outbox")
	}
}

// TestLoopback tells addresses that other machines reach from those that they do not.
func TestLoopback(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true, "localhost:1": true, "[::ffff:127.0.0.1]:1": true,
		":1": false, "0.0.0.0:1": false, "[::]:1": false, "10.0.0.1:1": false, "example.org:1": false, "127.0.0.1": false, "localhost.example.org:1": false,
	} {
		if ui.Loopback(address) != want {
			t.Errorf("Loopback(%q) is %t", address, !want)
		}
	}
}

// TestHeaders: every answer forbids what a page could be made to do.
func TestHeaders(t *testing.T) {
	box := newBox(t, 2)
	c := client{t, newPage(t, box, ui.Config{Token: token}), "jo"}
	for _, path := range []string{"/", "/parked", "/parked/1", "/audit", "/replay", "/nothing", "/assets/style.css", "/act/requeue?all=1"} {
		for _, who := range []string{"jo", ""} {
			c.who = who
			status, h, _ := c.ask(http.MethodGet, path, "")
			if who == "" && status != http.StatusUnauthorized {
				t.Errorf("%s: %d without a name", path, status)
			}
			policy := h.Get("Content-Security-Policy")
			for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'"} {
				if !strings.Contains(policy, want) {
					t.Errorf("%s: the policy %q lacks %q", path, policy, want)
				}
			}
			if strings.Contains(policy, "unsafe") || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Referrer-Policy") != "same-origin" || h.Get("X-Frame-Options") != "DENY" {
				t.Errorf("%s: headers are %v", path, h)
			}
			if kept := h.Get("Cache-Control"); kept != "no-store" && (path != "/assets/style.css" || who == "") {
				t.Errorf("%s: Cache-Control is %q", path, kept)
			}
		}
	}
}

// TestReadOnly: where nobody is asked who he is, nobody acts.
func TestReadOnly(t *testing.T) {
	box := newBox(t, 2)
	put(t, box, message("a"))
	drain(t, box, refuse("no"))
	page := newPage(t, box, ui.Config{})
	c := client{t, page, ""}
	if page.Acts() {
		t.Error("it says that it acts")
	}
	for _, path := range []string{"/", "/parked", "/parked/1", "/audit"} {
		if text := c.get(path); strings.Contains(text, "act/") || !strings.Contains(text, "read-only") {
			t.Errorf("%s offers to act, or does not say that it only shows:\n%s", path, text)
		}
	}
	for _, path := range []string{"/replay", "/act/requeue?all=1", "/act/discard?all=1", "/act/replay?all=1"} {
		if status, _, _ := c.ask(http.MethodGet, path, ""); status != http.StatusForbidden {
			t.Errorf("%s: %d, want 403", path, status)
		}
	}
	for _, action := range []string{"requeue", "discard", "replay"} {
		if status, _, _ := c.confirm(action, "x", "y"); status != http.StatusForbidden {
			t.Errorf("POST %s: %d, want 403", action, status)
		}
	}
	if n := dead(t, box); n != 1 {
		t.Errorf("%d messages are dead", n)
	}
}

// TestHost: a name that leads here by somebody else's will is refused.
func TestHost(t *testing.T) {
	box := newBox(t, 2)
	c := client{t, newPage(t, box, ui.Config{Hosts: []string{"Outbox.Example"}}), ""}
	for host, want := range map[string]int{
		"localhost": 200, "localhost:8464": 200, "127.0.0.1:8464": 200, "[::1]:8464": 200, "10.1.2.3": 200,
		"outbox.example": 200, "OUTBOX.example.:8464": 200,
		"evil.example": 421, "evil.example:8464": 421, "localhost.evil.example": 421, "127.0.0.1.evil.example": 421, "": 421, "a.outbox.example": 421,
	} {
		if status, _, _ := c.ask(http.MethodGet, "/", "", func(r *http.Request) { r.Host = host }); status != want {
			t.Errorf("host %q: %d, want %d", host, status, want)
		}
	}
}

// TestAccess lets in whoever gives what was configured, and nobody else.
func TestAccess(t *testing.T) {
	box := newBox(t, 2)
	const password = "correct horse battery"
	basic := func(user, secret string) func(*http.Request) {
		return func(r *http.Request) { r.SetBasicAuth(user, secret) }
	}
	header := func(text string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", text) }
	}
	for name, c := range map[string]struct {
		cfg  ui.Config
		as   func(*http.Request)
		want string // who; empty for nobody
	}{
		"None":            {ui.Config{Token: token}, func(*http.Request) {}, ""},
		"Bearer":          {ui.Config{Token: token}, header("Bearer " + token), "bearer of the token"},
		"BearerLower":     {ui.Config{Token: token}, header("bearer " + token), "bearer of the token"},
		"WrongBearer":     {ui.Config{Token: token}, header("Bearer " + token + "x"), ""},
		"ShortBearer":     {ui.Config{Token: token}, header("Bearer " + token[:20]), ""},
		"EmptyBearer":     {ui.Config{Token: token}, header("Bearer "), ""},
		"TokenOfJo":       {ui.Config{Token: token}, basic("jo", token), "jo"},
		"TokenOfNobody":   {ui.Config{Token: token}, basic("", token), "bearer of the token"},
		"WrongToken":      {ui.Config{Token: token}, basic("jo", "x"), ""},
		"Password":        {ui.Config{User: "jo", Password: password}, basic("jo", password), "jo"},
		"WrongPassword":   {ui.Config{User: "jo", Password: password}, basic("jo", password+" "), ""},
		"WrongUser":       {ui.Config{User: "jo", Password: password}, basic("jon", password), ""},
		"NoPassword":      {ui.Config{User: "jo", Password: password}, basic("jo", ""), ""},
		"PasswordNoToken": {ui.Config{User: "jo", Password: password}, header("Bearer " + password), ""},
		"Either":          {ui.Config{User: "jo", Password: password, Token: token}, basic("ann", token), "ann"},
		"LongName":        {ui.Config{Token: token}, basic(strings.Repeat("x", 256), token), ""},
		"OddName":         {ui.Config{Token: token}, basic("a\xff", token), ""},
	} {
		t.Run(name, func(t *testing.T) {
			var logged bytes.Buffer
			c.cfg.Log = slog.New(slog.NewTextHandler(&logged, nil))
			status, h, text := client{t, newPage(t, box, c.cfg), ""}.ask(http.MethodGet, "/", "", c.as)
			switch {
			case c.want == "" && (status != http.StatusUnauthorized || !strings.HasPrefix(h.Get("WWW-Authenticate"), "Basic ")):
				t.Errorf("%d, %q, want to be refused", status, h.Get("WWW-Authenticate"))
			case c.want != "" && (status != http.StatusOK || !strings.Contains(text, `who">`+c.want+"<")):
				t.Errorf("%d, want to be let in as %s", status, c.want)
			}
			if strings.Contains(logged.String(), token[:16]) || strings.Contains(logged.String(), "correct") {
				t.Errorf("the log has the secret: %s", logged.String())
			}
		})
	}
}

// TestCrossSite: what another site makes a browser send changes nothing.
func TestCrossSite(t *testing.T) {
	box := newBox(t, 2)
	put(t, box, message("a"))
	drain(t, box, refuse("no"))
	c := client{t, newPage(t, box, ui.Config{Token: token}), "jo"}
	order, _ := c.order("discard", "all=1")
	for name, edit := range map[string]func(*http.Request){
		"CrossSite":   func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
		"SameSite":    func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") },
		"Origin":      func(r *http.Request) { r.Header.Del("Sec-Fetch-Site"); r.Header.Set("Origin", "http://evil.example") },
		"OriginNull":  func(r *http.Request) { r.Header.Del("Sec-Fetch-Site"); r.Header.Set("Origin", "null") },
		"AnotherPort": func(r *http.Request) { r.Header.Del("Sec-Fetch-Site"); r.Header.Set("Origin", "http://127.0.0.1:9") },
	} {
		if status, _, _ := c.confirm("discard", order, "why", edit); status != http.StatusForbidden {
			t.Errorf("%s: %d, want 403", name, status)
		}
	}
	// Not one that knows no order either, whatever it says of itself.
	if status, _, _ := c.confirm("discard", "guessed", "why"); status != http.StatusConflict {
		t.Errorf("a guessed order: %d, want 409", status)
	}
	if status, _, _ := c.ask(http.MethodGet, "/act/discard?all=1&order="+order+"&why=x", ""); status != http.StatusOK || dead(t, box) != 1 {
		t.Errorf("a GET changed something, or %d", status)
	}
	if n := dead(t, box); n != 1 {
		t.Errorf("%d messages are dead", n)
	}
	if status, _, _ := c.confirm("discard", order, "why"); status != http.StatusSeeOther || dead(t, box) != 0 {
		t.Errorf("the page's own form: %d", status)
	}
}

// TestCommandNamesTheOutbox: the command that is shown acts on the same tables, whatever
// their names.
func TestCommandNamesTheOutbox(t *testing.T) {
	box := newBox(t, 1)
	other, err := outbox.New(box.DB(), sqlite.New(), outbox.Config{Prefix: "shop's b"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	put(t, other, message("a"))
	drain(t, other, refuse("no"))
	_, text := client{t, newPage(t, other, ui.Config{Token: token}), "jo"}.order("discard", "topic=orders")
	if want := `outbox discard --prefix 'shop'\''s b' --topic orders --state dead --limit 1`; !strings.Contains(html.UnescapeString(text), want) {
		t.Errorf("the confirmation lacks %s:\n%s", want, text)
	}
}

// TestConfirm: what was counted is what is done, once, by who asked, with a reason.
func TestConfirm(t *testing.T) {
	box := newBox(t, 2)
	put(t, box, message("a"), message("b"), message("c"))
	drain(t, box, refuse("no"))
	page := newPage(t, box, ui.Config{Token: token})
	c := client{t, page, "jo"}

	order, text := c.order("requeue", "topic=orders")
	for _, want := range []string{"Requeue 3 messages?", "outbox requeue --topic orders --state dead --limit 3"} {
		if !strings.Contains(text, want) {
			t.Errorf("the confirmation lacks %q:\n%s", want, text)
		}
	}
	refused := func(what string, want int, status int, text string) {
		t.Helper()
		if status != want || dead(t, box) < 3 {
			t.Errorf("%s: %d, want %d, and no change\n%s", what, status, want, text)
		}
	}
	status, _, text := c.confirm("requeue", order, " \r\n ")
	refused("no reason", 422, status, text)
	if !strings.Contains(text, "Say why") || !strings.Contains(text, order) || !strings.Contains(text, "Requeue 3 messages?") {
		t.Errorf("without a reason the page is\n%s", text)
	}
	status, _, text = c.confirm("requeue", order, strings.Repeat("ü", 501))
	refused("a long reason", 422, status, text)
	status, _, text = c.confirm("discard", order, "why")
	refused("another action", 409, status, text)
	status, _, text = client{t, page, "ann"}.confirm("requeue", order, "why")
	refused("another person", 409, status, text)
	status, _, text = c.confirm("requeue", order, strings.Repeat("x", 20<<10))
	refused("a form without end", 400, status, text)

	// One more dies before the confirmation: it is not meant.
	put(t, box, message("d"))
	drain(t, box, refuse("no"))
	status, h, _ := c.confirm("requeue", order, "the queue is there <now>")
	if status != http.StatusSeeOther || h.Get("Location") != "/audit?done" || dead(t, box) != 1 {
		t.Errorf("confirmed: %d to %q, %d dead, want 1", status, h.Get("Location"), dead(t, box))
	}
	if text := c.get("/audit?done"); !strings.Contains(text, "the queue is there &lt;now&gt;") || !strings.Contains(text, `role="status"`) {
		t.Errorf("the audit is\n%s", text)
	}
	if status, _, _ := c.confirm("requeue", order, "again"); status != http.StatusConflict {
		t.Errorf("confirmed twice: %d, want 409", status)
	}
	order, _ = c.order("discard", "all=1")
	ui.Expire(page)
	if status, _, _ := c.confirm("discard", order, "late"); status != http.StatusConflict || dead(t, box) != 1 {
		t.Errorf("confirmed late: %d, want 409", status)
	}
	list, err := box.Audit(t.Context(), 0, 9)
	if err != nil || len(list) != 1 {
		t.Fatalf("the audit has %d actions, %v", len(list), err)
	}
	if a := list[0]; a.Who != "jo" || a.Action != outbox.ActionRequeue || a.Changed != 3 || a.Why != "the queue is there <now>" ||
		a.Selection != "--topic orders --state dead --limit 3" || !a.Ended || a.Failure != "" {
		t.Errorf("the audit has %+v", a)
	}
	if text := c.get("/act/discard?topic=nothing"); !strings.Contains(text, "nothing matches") || orderField.MatchString(text) {
		t.Errorf("where nothing matches there is something to confirm:\n%s", text)
	}
}

// TestDiscardOne gives up one message by its id.
func TestDiscardOne(t *testing.T) {
	box := newBox(t, 2)
	ids := put(t, box, message("a"), message("b"))
	drain(t, box, refuse("no"))
	c := client{t, newPage(t, box, ui.Config{Token: token}), "jo"}
	order, _ := c.order("discard", "id="+ids[0].String())
	if status, _, _ := c.confirm("discard", order, "a test order"); status != http.StatusSeeOther {
		t.Errorf("%d", status)
	}
	left, err := box.Parked(t.Context(), outbox.Filter{}, 0, 9)
	if err != nil || len(left) != 1 || left[0].ID != ids[1] {
		t.Errorf("left are %v, %v", left, err)
	}
}

// TestSelection refuses what cannot be read, and an empty one that was not meant.
func TestSelection(t *testing.T) {
	box := newBox(t, 2)
	c := client{t, newPage(t, box, ui.Config{Token: token}), "jo"}
	for path, want := range map[string]int{
		"/parked?id=x": 400, "/parked?state=odd": 400, "/parked?after=x": 400, "/parked?after=-1": 400, "/audit?before=x": 400,
		"/parked/0": 404, "/parked/x": 404, "/parked/7": 404, "/parked/-1": 404, "/nothing": 404, "/act/purge?all=1": 404, "/act/odd": 404,
		"/act/requeue": 400, "/act/discard?topic=": 400, "/act/replay?limit=3": 400, "/act/replay?since=x": 400, "/act/replay?since=1h&until=2h": 400,
		"/parked?key=%00": 400, "/parked?type=a%ff": 400, "/act/requeue?topic=%c3": 400, "/parked?key=%c3%a4": 200,
		"/act/replay?all=1&state=dead": 400, "/act/requeue?all=1&limit=0": 400, "/act/requeue?all=1": 200, "/act/replay?all=1": 200, "/act/replay?since=2h&until=1h": 200,
	} {
		if status, _, text := c.ask(http.MethodGet, path, ""); status != want {
			t.Errorf("%s: %d, want %d\n%s", path, status, want, text)
		}
	}
	for method, path := range map[string]string{http.MethodPost: "/parked", http.MethodDelete: "/parked/1"} {
		if status, _, _ := c.ask(method, path, ""); status != http.StatusMethodNotAllowed {
			t.Errorf("%s %s: %d, want 405", method, path, status)
		}
	}
}

// TestHostileText: what messages hold is text, wherever it is shown.
func TestHostileText(t *testing.T) {
	box := newBox(t, 1)
	const attack = `"><script>alert(1)</script><img src=x onerror=alert(2)>'</pre></textarea>{{.}}`
	const turned = "\u202egnp.exe\x1b[31m"
	put(t, box,
		outbox.Message{Topic: attack + turned, Key: attack + turned, Type: attack, ContentType: attack, Payload: []byte(attack + turned), Headers: map[string]string{"<b>": attack + turned}},
		outbox.Message{Topic: attack + turned, Key: attack + turned, Type: attack},
	)
	drain(t, box, refuse(attack+turned))
	c := client{t, newPage(t, box, ui.Config{Token: token}), attack}
	operator, err := box.As(attack+turned, attack+turned)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := operator.Discard(t.Context(), outbox.Filter{Topic: attack}, 0); err != nil {
		t.Fatal(err)
	}
	list, err := box.Parked(t.Context(), outbox.Filter{}, 0, 9)
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	one := fmt.Sprintf("/parked/%d", list[0].Pos)
	query := url.Values{"topic": {attack + turned}, "key": {attack + turned}, "type": {attack}}.Encode()
	for _, path := range []string{"/", "/parked", "/parked?" + query, one, one + "?payload=1", "/audit", "/act/requeue?" + query, "/act/discard?" + query} {
		text := c.get(path)
		for _, bad := range []string{"<script>alert", "<img src=x", "\u202e", "\x1b", "</pre></textarea>{{"} {
			// The reader's own search is in its field as it was typed.
			typed := strings.HasPrefix(path, "/parked?") && (bad == "\u202e" || bad == "\x1b")
			if strings.Contains(text, bad) && !typed {
				t.Errorf("%s has %q:\n%s", path, bad, text)
			}
		}
		if path != "/" && !strings.Contains(text, "&lt;script&gt;alert(1)") {
			t.Errorf("%s does not show it at all", path)
		}
		if scripts := strings.Count(text, "<script"); scripts > 1 || scripts == 1 && path != "/" {
			t.Errorf("%s has %d scripts", path, scripts)
		}
	}
	if text := c.get(one); !strings.Contains(text, `\u{202e}gnp.exe\u{1b}[31m`) {
		t.Errorf("what turns text is not to be seen:\n%s", text)
	}
}

// TestPayload is hidden until it is asked for, and then shown as what it is, bounded.
func TestPayload(t *testing.T) {
	box := newBox(t, 1)
	put(t, box, message("a"))
	drain(t, box, refuse("no"))
	c := client{t, newPage(t, box, ui.Config{}), ""}
	if text := c.get("/parked/1"); strings.Contains(text, "visa") || !strings.Contains(text, "15 bytes, hidden") {
		t.Errorf("the payload is shown unasked:\n%s", text)
	}
	if text := c.get("/parked"); strings.Contains(text, "visa") {
		t.Error("the list shows payloads")
	}
	if text := c.get("/parked/1?payload=1"); !strings.Contains(text, "&#34;card&#34;: &#34;visa&#34;") {
		t.Errorf("the payload is not shown when asked for:\n%s", text)
	}
	large := strings.Repeat("ä", 40<<10)
	for name, p := range map[string]struct {
		payload    string
		kind, text string
		cut        bool
	}{
		"JSON":      {`{"a":[1,2.50]}`, "JSON, indented for reading", "{\n  \"a\": [\n    1,\n    2.50\n  ]\n}", false},
		"Text":      {"a\tb\r\nc\x00d"[:6], "text", "a\tb\nc", false},
		"Control":   {"a\x07\u2066b", "text", `a\u{7}\u{2066}b`, false},
		"NUL":       {"a\x00", "hexadecimal, for it is no text", "00000000  61 00                                             |a.|\n", false},
		"Bytes":     {"\xff\xfe", "hexadecimal, for it is no text", "00000000  ff fe                                             |..|\n", false},
		"Large":     {"x" + large, "text", "x" + large[:64<<10-2], true},
		"LargeJSON": {`"` + large + `"`, "text", `"` + large[:64<<10-2], true},
		"None":      {"", "", "", false},
	} {
		kind, text, cut := ui.Payload([]byte(p.payload), true)
		if kind != p.kind || text != p.text || cut != p.cut {
			t.Errorf("%s: %s, cut %t, %d bytes:\n%.200q", name, kind, cut, len(text), text)
		}
		if _, text, _ := ui.Payload([]byte(p.payload), false); text != "" {
			t.Errorf("%s is shown unasked", name)
		}
	}
	if _, text, cut := ui.Payload(bytes.Repeat([]byte{0xff}, 1<<20), true); !cut || len(text) > 100<<10 {
		t.Errorf("a mebibyte of bytes is shown as %d", len(text))
	}
}

// TestDeepPayload is not indented where that took gigabytes: whoever enqueues decides how
// deep it is.
func TestDeepPayload(t *testing.T) {
	nested := func(open, end string, depth int) string {
		return strings.Repeat(open, depth) + "0" + strings.Repeat(end, depth)
	}
	for name, p := range map[string]struct {
		payload string
		kind    string
	}{
		"Deep":      {nested("[", "]", 9000), "text"},
		"Long":      {nested("[", strings.Repeat(",0", 10)+"]", 2500), "text"},
		"Brackets":  {nested(`["]\"]",`, "]", 5000), "text"},
		"Object":    {nested(`{"a":`, "}", 100), "JSON, indented for reading"},
		"InStrings": {`"` + strings.Repeat("[{", 1000) + `"`, "JSON, indented for reading"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		kind, _, _ := ui.Payload([]byte(p.payload), true)
		runtime.ReadMemStats(&after)
		if allocated := after.TotalAlloc - before.TotalAlloc; kind != p.kind || allocated > 32<<20 {
			t.Errorf("%s: %d bytes are shown as %s by allocating %d", name, len(p.payload), kind, allocated)
		}
	}
}

// TestPages goes through all messages, each once, whatever the filter.
func TestPages(t *testing.T) {
	box := newBox(t, 4)
	var all []outbox.Message
	for i := range 60 {
		all = append(all, message(fmt.Sprint("k", i)))
	}
	put(t, box, all...)
	drain(t, box, refuse("refused 17 times: id 0af3"))
	c := client{t, newPage(t, box, ui.Config{Path: "/deep/down/"}), ""}
	link := regexp.MustCompile(`href="(/deep/down/parked/\d+)"`)
	next := regexp.MustCompile(`<a rel="next" href="([^"]+)"`)
	seen := make(map[string]bool)
	pages := 0
	for path := "/deep/down/parked?state=dead"; path != "" && pages < 10; pages++ {
		text := c.get(path)
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if seen[m[1]] {
				t.Errorf("%s is listed twice", m[1])
			}
			seen[m[1]] = true
		}
		path = ""
		if m := next.FindStringSubmatch(text); m != nil {
			path = strings.ReplaceAll(m[1], "&amp;", "&")
		}
	}
	if len(seen) != 60 || pages != 3 {
		t.Errorf("%d messages on %d pages, want 60 on 3", len(seen), pages)
	}
	// Below a path, every link is.
	for _, path := range []string{"/deep/down/", "/deep/down/parked", "/deep/down/parked/1", "/deep/down/audit"} {
		for _, m := range regexp.MustCompile(`(?:href|src|action)="([^"]*)"`).FindAllStringSubmatch(c.get(path), -1) {
			if !strings.HasPrefix(m[1], "/deep/down/") && !strings.HasPrefix(m[1], "#") && !strings.HasPrefix(m[1], "?") {
				t.Errorf("%s links to %s", path, m[1])
			}
		}
	}
	if status, _, _ := c.ask(http.MethodGet, "/parked", ""); status != http.StatusNotFound {
		t.Errorf("outside of its path it answers with %d", status)
	}
	if text := c.get("/deep/down/parked"); !strings.Contains(text, ">60</a>") {
		t.Errorf("the reasons are not put together:\n%s", text)
	}
}

// TestElsewhere: an id that is not parked is told where it is.
func TestElsewhere(t *testing.T) {
	box := newBox(t, 2)
	done := put(t, box, message("a"))[0].String()
	drain(t, box, func(relay.Message) error { return nil })
	ready := put(t, box, message("b"))[0].String()
	c := client{t, newPage(t, box, ui.Config{}), ""}
	text := c.get("/parked?id=" + done + "+" + ready)
	for _, want := range []string{
		"Nothing is parked that matches",
		done + `</span> is <span class="badge published">published</span> since`,
		ready + `</span> is <span class="badge ready">ready</span> since`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	if text := c.get("/parked?id=" + uuid.NewString()); strings.Contains(text, "elsewhere") {
		t.Errorf("an id that was never used is somewhere:\n%s", text)
	}
}

// TestOverview shows what stands in the tables, and what a person should look at.
func TestOverview(t *testing.T) {
	box := newBox(t, 3)
	page := newPage(t, box, ui.Config{})
	c := client{t, page, ""}
	if text := c.get("/"); !strings.Contains(text, "Nothing needs a person") {
		t.Errorf("an empty outbox is shown as\n%s", text)
	}
	put(t, box, message("a"), message("a"))
	drain(t, box, refuse("no"))
	if _, ok, err := box.Store().Claim(t.Context(), box.DB(), 1, "relay <1>", time.Hour); !ok || err != nil {
		t.Fatal(ok, err)
	}
	page = newPage(t, box, ui.Config{})
	c.page = page
	text := c.get("/")
	for _, want := range []string{"1 message is dead and needs a person", "relay &lt;1&gt;", "59 min", "behind 1 blocked keys", "All 3 lanes"} {
		if !strings.Contains(text, want) {
			t.Errorf("the overview lacks %q:\n%s", want, text)
		}
	}
}

// TestUnreachable says what is wrong, and no secret.
func TestUnreachable(t *testing.T) {
	box := newBox(t, 2)
	var logged bytes.Buffer
	c := client{t, newPage(t, box, ui.Config{Token: token, Log: slog.New(slog.NewTextHandler(&logged, nil))}), "jo"}
	order := func() string {
		put(t, box, message("a"))
		drain(t, box, refuse("no"))
		name, _ := c.order("requeue", "all=1")
		return name
	}()
	if err := box.DB().Close(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/", "/parked", "/parked/1", "/audit", "/act/requeue?all=1"} {
		status, h, text := c.ask(http.MethodGet, path, "")
		if status != http.StatusServiceUnavailable || h.Get("Cache-Control") != "no-store" || !strings.Contains(text, "database is closed") {
			t.Errorf("%s: %d\n%s", path, status, text)
		}
	}
	if status, _, text := c.confirm("requeue", order, "why"); status != http.StatusServiceUnavailable || !strings.Contains(text, "audit cannot be written") {
		t.Errorf("an action: %d\n%s", status, text)
	}
	if !strings.Contains(logged.String(), "request failed") || strings.Contains(logged.String(), token) {
		t.Errorf("logged: %s", logged.String())
	}
}

// TestSamples keeps a ring: bounded, and as long whoever looks.
func TestSamples(t *testing.T) {
	box := newBox(t, 2)
	page := newPage(t, box, ui.Config{Sample: time.Second})
	begin := time.Now().Add(-2 * time.Hour)
	for i := range 2 * ui.Samples {
		for look := range 3 {
			ui.Keep(page, begin.Add(time.Duration(i)*time.Second+time.Duration(look)*time.Millisecond))
		}
	}
	if n := ui.Kept(page); n != ui.Samples {
		t.Errorf("%d samples are kept, want %d", n, ui.Samples)
	}
	ctx, cancel := context.WithCancel(t.Context())
	page = newPage(t, box, ui.Config{Sample: 10 * time.Millisecond})
	done := make(chan struct{})
	go func() { page.Run(ctx); close(done) }()
	for deadline := time.Now().Add(time.Minute); ui.Kept(page) < 2 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	<-done
	if n := ui.Kept(page); n < 2 {
		t.Errorf("Run has taken %d samples", n)
	}
}

// TestFigures are computed from what the tables number and time.
func TestFigures(t *testing.T) {
	for _, c := range []struct {
		from, to int64
		rate     float64
		known    bool
	}{{0, 0, 0, true}, {100, 150, 5, true}, {150, 100, 0, false}, {0, 100, 0, false}, {100, 0, 0, false}} {
		if rate, known := ui.Rate(c.from, c.to, 10*time.Second); rate != c.rate || known != c.known {
			t.Errorf("from %d to %d is %v, %t", c.from, c.to, rate, known)
		}
	}
	var done []settled
	for i := range 100 {
		done = append(done, settled{Pos: int64(100 - i), Ago: time.Duration(i) * time.Second, Took: time.Duration(i+1) * time.Millisecond, First: true})
	}
	done = append(done, settled{Pos: 200, Took: time.Hour}) // a replay
	if pos, median, slow, timed := ui.Times(done, time.Minute); pos != 200 || median != 31*time.Millisecond || slow != 58*time.Millisecond || !timed {
		t.Errorf("%d, %v, %v, %t", pos, median, slow, timed)
	}
	if _, _, _, timed := ui.Times(done[len(done)-1:], time.Minute); timed {
		t.Error("a replay is timed")
	}
	for text, want := range map[string]string{
		"retry after 30s: 429": "retry after #: #", "no digits here": "no digits here",
		"id 0199d3c5-6a4e: x": "id #-#: x", "ü 7": "ü #", "": "",
	} {
		if got := ui.WithoutNumbers(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0 µs", 1500 * time.Microsecond: "1 ms", 9100 * time.Millisecond: "9.1 s", 59 * time.Second: "59 s", 61 * time.Second: "1 min 1 s",
		time.Hour: "1 h", 25 * time.Hour: "1 d 1 h", -time.Minute: "-1 min",
	} {
		if got := ui.Age(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
}

// TestPaths are refused that no server would route.
func TestPaths(t *testing.T) {
	for _, path := range []string{"//", "/a//b/", "/a/../b/", "/./", "a/", "/a"} {
		if _, err := ui.New(newBox(t, 1), ui.Config{Path: path}); err == nil || !strings.Contains(err.Error(), "path is") {
			t.Errorf("%q: %v", path, err)
		}
	}
	if _, err := ui.New(newBox(t, 1), ui.Config{Path: "/a/b/"}); err != nil {
		t.Error(err)
	}
}

// TestOthersCount: a count takes time, and a place among the orders that wait.
func TestOthersCount(t *testing.T) {
	box := newBox(t, 1)
	put(t, box, message("k"))
	drain(t, box, refuse("no"))
	c := client{t, newPage(t, box, ui.Config{Token: token}), "ann"}
	for site, want := range map[string]int{"cross-site": 403, "same-site": 403, "same-origin": 200, "none": 200} {
		status, _, _ := c.ask(http.MethodGet, "/act/discard?all=1", "", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", site) })
		if status != want {
			t.Errorf("%s: %d", site, status)
		}
	}
}

// TestReplayAsCounted confirms a replay when younger messages have come to be as old as
// those that were counted.
func TestReplayAsCounted(t *testing.T) {
	for range 5 {
		if replayAsCounted(t) {
			return
		}
	}
	t.Error("the younger message was never counted in time")
}

// replayAsCounted is false when the machine stood still until both were old.
func replayAsCounted(t *testing.T) bool {
	t.Helper()
	box := newBox(t, 2)
	accept := answers(func(relayMessage) error { return nil })
	const age = 5 * time.Second
	aged := func(n int) {
		t.Helper()
		for {
			found, err := box.Replayable(t.Context(), outbox.Filter{Until: age}, 0)
			if err != nil {
				t.Fatal(err)
			}
			if found == n {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	put(t, box, message("old"))
	drain(t, box, accept)
	aged(1)
	began := time.Now()
	put(t, box, message("young"))
	drain(t, box, accept)
	c := client{t, newPage(t, box, ui.Config{Token: token}), "ann"}
	order, text := c.order("replay", "until=5s")
	if !strings.Contains(text, "1 message") {
		if time.Since(began) > age {
			return false
		}
		t.Fatalf("the count is wrong:\n%s", text)
	}
	aged(2)
	if status, _, text := c.confirm("replay", order, "a consumer lost them"); status != http.StatusSeeOther {
		t.Fatalf("%d %s", status, text)
	}
	var replayed []string
	drain(t, box, answers(func(m relayMessage) error {
		replayed = append(replayed, m.Key)
		return nil
	}))
	if len(replayed) != 1 || replayed[0] != "old" {
		t.Errorf("the message of the key old was counted, and %q were replayed", replayed)
	}
	return true
}
