package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
)

// overviewData is the first page.
type overviewData struct {
	Stats    outbox.Stats
	Findings []finding
	Charts   []chart
	Owners   []owner
	Lanes    []laneRow
	At       time.Time
}

// finding is something that a person should look at.
type finding struct {
	Text  string
	Where string // below the root
	Link  string
}

// owner are the lanes of one relay, or of nobody.
type owner struct {
	Name          string
	Lanes         int
	Expired       int
	Shortest      time.Duration // of the leases that run
	Running       int
	Served        time.Duration // the last, ago
	ServedAtLeast bool
}

// laneRow is a lane as the table shows it.
type laneRow struct {
	dialect.LaneState
	State string
}

func (p *Page) overview(w http.ResponseWriter, r *http.Request) error {
	now, err := p.sample(r.Context())
	if err != nil {
		return err
	}
	data := overviewData{
		Stats: now.stats, Charts: charts(p.samples(), p.viewer != nil), At: time.Now(),
		Findings: findings(now.stats),
	}
	if p.viewer != nil {
		lanes, err := p.viewer.ViewLanes(r.Context(), p.box.DB())
		if err != nil {
			return err
		}
		data.Owners, data.Lanes = owners(lanes)
	}
	p.render(w, r, http.StatusOK, "overview", "Overview", data)
	return nil
}

// tooOld is how long a ready message may wait before the page says so.
const tooOld = time.Minute

func findings(s outbox.Stats) (list []finding) {
	if s.Dead > 0 {
		what := " messages are dead and need a person."
		if s.Dead == 1 {
			what = " message is dead and needs a person."
		}
		list = append(list, finding{count(s.Dead) + what, "parked?state=dead", "Look at them"})
	}
	if s.OldestReady > tooOld {
		list = append(list, finding{Text: "The oldest ready message has waited for " + age(s.OldestReady) +
			": is a relay running, and does it reach its broker?"})
	}
	if s.LanesExpired > 0 {
		list = append(list, finding{Text: plural(s.LanesExpired, "lane") + " had an owner that neither renewed nor released: another relay takes over what is there."})
	}
	return list
}

// owners puts lanes together by who has them, those that nobody has at the end.
func owners(lanes []dialect.LaneState) (list []owner, rows []laneRow) {
	byName := make(map[string]*owner)
	for _, l := range lanes {
		state := "held"
		switch {
		case l.Owner == "":
			state = "free"
		case l.Left <= 0:
			state = "expired"
		}
		rows = append(rows, laneRow{l, state})
		o := byName[l.Owner]
		if o == nil {
			o = &owner{Name: l.Owner}
			byName[l.Owner] = o
		}
		o.Lanes++
		if state == "expired" {
			o.Expired++
		}
		if state == "held" {
			if o.Running++; o.Running == 1 || l.Left < o.Shortest {
				o.Shortest = l.Left
			}
		}
		if l.Served.Valid && (!o.ServedAtLeast || l.Served.V < o.Served) {
			o.Served, o.ServedAtLeast = l.Served.V, true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		if name != "" {
			list = append(list, *byName[name])
		}
	}
	if o := byName[""]; o != nil {
		list = append(list, *o)
	}
	return list, rows
}

// The pages of parked messages.
const (
	defaultRows = 25
	// mostReasons is of how many parked messages the reasons are put together.
	mostReasons  = 1000
	shownReasons = 8
)

var states = []string{outbox.Dead, outbox.Retry, outbox.Held, outbox.Scheduled}

// search is what a person looks for, as the form has it.
type search struct {
	States               []string
	ID, Key, Topic, Type string
	EmptyKey             bool
	Since, Until, AtMost string
	All                  bool
	filter               outbox.Filter
	limit                int
}

// searchOf reads a query.
func searchOf(q url.Values) (search, error) {
	s := search{
		States: q["state"], ID: strings.TrimSpace(q.Get("id")), Key: q.Get("key"), Topic: q.Get("topic"), Type: q.Get("type"),
		EmptyKey: q.Get("emptykey") != "", Since: strings.TrimSpace(q.Get("since")), Until: strings.TrimSpace(q.Get("until")),
		AtMost: strings.TrimSpace(q.Get("limit")), All: q.Get("all") != "",
	}
	bad := func(field, advice string) error {
		return failure{http.StatusBadRequest, "The " + field + " cannot be read", advice}
	}
	s.filter = outbox.Filter{Key: s.Key, EmptyKey: s.EmptyKey && s.Key == "", Topic: s.Topic, Type: s.Type, States: s.States, All: s.All}
	for _, f := range [][2]string{{"key", s.Key}, {"topic", s.Topic}, {"type", s.Type}} {
		if !utf8.ValidString(f[1]) || strings.ContainsRune(f[1], 0) {
			return s, bad(f[0], "It has characters that Enqueue takes from nobody. Select by id, or by something else.")
		}
	}
	for _, text := range strings.FieldsFunc(s.ID, func(r rune) bool { return r == ' ' || r == ',' || r == '\n' || r == '\t' || r == '\r' }) {
		id, err := uuid.Parse(text)
		if err != nil || len(text) != 36 {
			return s, bad("id", "Give a UUID, for example 0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11.")
		}
		s.filter.IDs = append(s.filter.IDs, id)
	}
	for _, state := range s.States {
		if !slices.Contains(states, state) {
			return s, bad("state", "Use scheduled, retry, held or dead.")
		}
	}
	for _, f := range []struct {
		name, text string
		into       *time.Duration
	}{{"beginning", s.Since, &s.filter.Since}, {"end", s.Until, &s.filter.Until}} {
		if f.text == "" {
			continue
		}
		d, err := time.ParseDuration(strings.ReplaceAll(f.text, " ", ""))
		if err != nil || d <= 0 {
			return s, bad(f.name, "Give an age, for example 2h30m.")
		}
		*f.into = d
	}
	if s.filter.Since > 0 && s.filter.Until >= s.filter.Since {
		return s, bad("time", "The beginning is not before the end, so nothing could match: the larger age is the earlier one.")
	}
	if s.AtMost != "" {
		n, err := strconv.Atoi(s.AtMost)
		if err != nil || n < 1 {
			return s, bad("limit", "Give a number above 0, or nothing for all.")
		}
		s.limit = n
	}
	return s, nil
}

// Has tells whether a state is chosen.
func (s search) Has(state string) bool { return slices.Contains(s.States, state) }

// Narrow tells whether the search leaves anything out.
func (s search) Narrow() bool { return len(s.States) > 0 || s.ofContent() }

// ofContent tells whether the search is for something in the messages.
func (s search) ofContent() bool {
	return len(s.filter.IDs) > 0 || s.Key != "" || s.EmptyKey || s.Topic != "" || s.Type != ""
}

// query is the search as a query.
func (s search) query() url.Values {
	q := url.Values{}
	for _, state := range s.States {
		q.Add("state", state)
	}
	for name, value := range map[string]string{"id": s.ID, "key": s.Key, "topic": s.Topic, "type": s.Type} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if s.filter.EmptyKey {
		q.Set("emptykey", "1")
	}
	return q
}

// Encode is the search as a query.
func (s search) Encode() template.URL { return encoded(s.query()) }

// encoded is a query as part of a link, in percent-encoding that is not to be encoded again.
func encoded(q url.Values) template.URL { return template.URL(q.Encode()) } //nolint:gosec // nothing is left in it that a page could take for its own

// After is the search from a place on.
func (s search) After(pos int64) template.URL {
	q := s.query()
	q.Set("after", strconv.FormatInt(pos, 10))
	return encoded(q)
}

// ForAction is the search for a page that acts: one that leaves nothing out says so.
func (s search) ForAction() template.URL {
	q := s.query()
	if !s.Narrow() {
		q.Set("all", "1")
	}
	return encoded(q)
}

// parkedData is a page of parked messages.
type parkedData struct {
	Search    search
	AllStates []string
	Messages  []outbox.Parked
	After     int64
	Next      int64 // 0 for none
	Reasons   []reasonRow
	Sampled   int // of how many the reasons are
	// Elsewhere is where the messages stand whose ids were looked for, when none of them
	// is parked.
	Elsewhere []placed
}

// placed is a message in one of its places.
type placed struct {
	ID uuid.UUID
	outbox.Standing
}

// mostSought is of how many ids the page tells where they are.
const mostSought = 20

// elsewhere looks for messages that are not parked.
func (p *Page) elsewhere(ctx context.Context, ids []uuid.UUID) (list []placed, err error) {
	for _, id := range ids[:min(len(ids), mostSought)] {
		found, err := p.box.Find(ctx, id)
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			list = append(list, placed{id, f})
		}
	}
	return list, nil
}

// reasonRow is a reason, and how many messages have it or one that differs in numbers.
type reasonRow struct {
	Count                int
	State, Topic, Reason string
}

// Query searches for what the row counts.
func (r reasonRow) Query() template.URL {
	return encoded(url.Values{"state": {r.State}, "topic": {r.Topic}})
}

func (p *Page) parked(w http.ResponseWriter, r *http.Request) error {
	s, err := searchOf(r.URL.Query())
	if err != nil {
		return err
	}
	after, err := place(r.URL.Query().Get("after"))
	if err != nil {
		return err
	}
	list, err := p.box.Parked(r.Context(), s.filter, after, defaultRows+1) // one more tells whether there is more
	if err != nil {
		return err
	}
	data := parkedData{Search: s, AllStates: states, Messages: list, After: after}
	if len(list) > defaultRows {
		data.Messages = list[:defaultRows]
		data.Next = data.Messages[defaultRows-1].Pos
	}
	if p.viewer != nil && len(list) == 0 && after == 0 {
		if data.Elsewhere, err = p.elsewhere(r.Context(), s.filter.IDs); err != nil {
			return err
		}
	}
	if p.viewer != nil && after == 0 && !s.ofContent() {
		all, err := p.viewer.ViewReasons(r.Context(), p.box.DB(), mostReasons)
		if err != nil {
			return err
		}
		data.Sampled = len(all)
		data.Reasons = reasons(slices.DeleteFunc(all, func(a dialect.ParkedReason) bool { return len(s.States) > 0 && !s.Has(a.State) }))
	}
	p.render(w, r, http.StatusOK, "parked", "Parked messages", data)
	return nil
}

// reasons counts reasons that differ in numbers alone as one, those of most messages first.
func reasons(all []dialect.ParkedReason) []reasonRow {
	byKind := make(map[dialect.ParkedReason]int)
	var rows []reasonRow
	for _, a := range all {
		if a.Reason == "" {
			continue
		}
		kind := dialect.ParkedReason{State: a.State, Topic: a.Topic, Reason: withoutNumbers(a.Reason)}
		at, ok := byKind[kind]
		if !ok {
			at = len(rows)
			byKind[kind] = at
			rows = append(rows, reasonRow{State: a.State, Topic: a.Topic, Reason: a.Reason})
		}
		rows[at].Count++
	}
	slices.SortStableFunc(rows, func(a, b reasonRow) int { return b.Count - a.Count })
	return rows[:min(len(rows), shownReasons)]
}

// withoutNumbers is a reason with a mark for each number, also one in hexadecimal that has
// a digit, as ids have.
func withoutNumbers(s string) string {
	word := func(r rune) bool {
		return r < '0' || r > '9' && r < 'A' || r > 'Z' && r < 'a' || r > 'z'
	}
	var b strings.Builder
	for s != "" {
		end := strings.IndexFunc(s, word)
		switch {
		case end == 0:
			b.WriteByte(s[0])
			s = s[1:]
			continue
		case end < 0:
			end = len(s)
		}
		if strings.ContainsAny(s[:end], "0123456789") {
			b.WriteByte('#')
		} else {
			b.WriteString(s[:end])
		}
		s = s[end:]
	}
	return b.String()
}

// place reads a pos.
func place(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, failure{http.StatusBadRequest, "The place of the page cannot be read", "Begin at the first page."}
	}
	return n, nil
}

// messageData is one message in full.
type messageData struct {
	outbox.Parked
	Headers [][2]string
	// Odd are headers that are no JSON object of strings.
	Odd     string
	Payload payload
	// Requeueable tells whether a requeue would change it.
	Requeueable bool
	KeyQuery    template.URL
}

func (p *Page) message(w http.ResponseWriter, r *http.Request) error {
	pos, err := place(r.PathValue("pos"))
	if err != nil || pos == 0 {
		return errNotFound
	}
	list, err := p.box.Parked(r.Context(), outbox.Filter{}, pos-1, 1)
	if err != nil {
		return err
	}
	if len(list) == 0 || list[0].Pos != pos {
		return failure{http.StatusNotFound, "This message is not parked any more", "It was published, discarded or moved on since. Done messages can be replayed while they are kept."}
	}
	m := list[0]
	data := messageData{
		Parked: m, Payload: payloadOf(m.Payload, r.URL.Query().Get("payload") != ""),
		Requeueable: m.State == outbox.Dead || (m.State == outbox.Retry || m.State == outbox.Scheduled) && m.DueIn.V > 0,
	}
	if m.Key.Valid {
		s := search{Key: m.Key.V, filter: outbox.Filter{EmptyKey: m.Key.V == ""}}
		data.KeyQuery = s.Encode()
	}
	headers := make(map[string]string)
	if err := json.Unmarshal([]byte(m.Headers), &headers); err != nil {
		data.Odd = clip(4096, m.Headers)
	}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		data.Headers = append(data.Headers, [2]string{name, headers[name]})
	}
	p.render(w, r, http.StatusOK, "message", "Parked message", data)
	return nil
}

func (p *Page) replay(w http.ResponseWriter, r *http.Request) error {
	if !p.auth.on() {
		return errReadOnly
	}
	p.render(w, r, http.StatusOK, "replay", "Replay", nil)
	return nil
}

// auditData is a page of what operators did.
type auditData struct {
	Actions []outbox.Audited
	Next    int64 // 0 for none
	Done    bool  // an action has just ended
	Kept    bool  // the engine keeps an audit
	First   bool
}

func (p *Page) audit(w http.ResponseWriter, r *http.Request) error {
	before, err := place(r.URL.Query().Get("before"))
	if err != nil {
		return err
	}
	data := auditData{Kept: p.box.Audits(), First: before == 0, Done: before == 0 && r.URL.Query().Has("done")}
	if data.Kept {
		if data.Actions, err = p.box.Audit(r.Context(), before, defaultRows+1); err != nil {
			return err
		}
	}
	if len(data.Actions) > defaultRows {
		data.Actions = data.Actions[:defaultRows]
		data.Next = data.Actions[defaultRows-1].Pos
	}
	p.render(w, r, http.StatusOK, "audit", "Audit", data)
	return nil
}

// verb is the action in the past.
func verb(action string) string {
	switch action {
	case outbox.ActionRequeue:
		return "requeued"
	case outbox.ActionDiscard:
		return "discarded"
	case outbox.ActionReplay:
		return "replayed"
	}
	return fmt.Sprintf("%sd", action)
}
