package ui

import (
	"context"
	"errors"
	"html/template"
	"net/http"
	"strconv"
	"strings"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/internal/shell"
)

// action is what a person can do.
type action struct {
	// Word is the verb, Effect what it means for the messages.
	Word, Effect string
	Danger       bool
	// done tells that it is about done messages.
	done  bool
	count func(*outbox.Outbox, context.Context, outbox.Filter, int) (int, error)
	do    func(*outbox.Operator, context.Context, outbox.Filter, int) (int, error)
}

var actions = map[string]action{
	outbox.ActionRequeue: {
		Word:   "Requeue",
		Effect: "They become due at once, and dead ones begin without failed attempts. Messages of one key keep their order, before newer ones.",
		count:  (*outbox.Outbox).Requeueable, do: (*outbox.Operator).Requeue,
	},
	outbox.ActionDiscard: {
		Word:   "Discard",
		Effect: "They are given up and will not be published. They go to done, where a replay finds them until the retention ends, and what waited behind them goes on.",
		Danger: true,
		count:  (*outbox.Outbox).Discardable, do: (*outbox.Operator).Discard,
	},
	outbox.ActionReplay: {
		Word:   "Replay",
		Effect: "They are published again under the same ids, oldest first, marked as a replay. Consumers pass over those that they have had.",
		done:   true,
		count:  (*outbox.Outbox).Replayable, do: (*outbox.Operator).Replay,
	},
}

// confirmData is the page before an action.
type confirmData struct {
	Name string
	action
	Count   int
	AtLeast bool // counting stopped
	AtMost  int  // 0 for all that match
	Command string
	Order   string
	Why     string
	MostWhy int
	Problem string
	Back    template.URL
}

// actionOf is the action that a request is about, where there are any.
func (p *Page) actionOf(r *http.Request) (name string, a action, err error) {
	name = r.PathValue("action")
	a, ok := actions[name]
	switch {
	case !ok:
		return "", a, errNotFound
	case !p.auth.on():
		return "", a, errReadOnly
	}
	return name, a, nil
}

func (p *Page) confirm(w http.ResponseWriter, r *http.Request) error {
	name, a, err := p.actionOf(r)
	if err != nil {
		return err
	}
	// It counts, and takes a place among the orders that wait: not for another site's page.
	if site := r.Header.Get("Sec-Fetch-Site"); site == "cross-site" || site == "same-site" {
		return failure{http.StatusForbidden, "Another site asked for this", "Begin on this page."}
	}
	s, err := searchOf(r.URL.Query())
	if err != nil {
		return err
	}
	if a.done {
		if len(s.filter.States) > 0 {
			return failure{http.StatusBadRequest, "A replay is of done messages", "They have no state: leave it out."}
		}
	} else if s.filter.Since, s.filter.Until = 0, 0; len(s.filter.States)+len(s.filter.IDs) == 0 {
		s.filter.States = []string{outbox.Dead}
	}
	if !s.filter.All && !s.Narrow() && s.filter.Since == 0 && s.filter.Until == 0 {
		return failure{http.StatusBadRequest, "Nothing is selected", "Fill in at least one field, or say that all are meant."}
	}
	bound := ConfirmLimit
	if s.limit > 0 {
		bound = min(bound, s.limit)
	}
	n, resume, err := p.count(r.Context(), a, s.filter, bound)
	if err != nil {
		return err
	}
	data := confirmData{
		Name: name, action: a, Count: n, AtLeast: n >= ConfirmLimit && s.limit != n, MostWhy: dialect.MaxWhy,
		Back: template.URL(p.path+"parked?") + s.Encode(), //nolint:gosec // a plain path
	}
	if a.done {
		data.Back = template.URL(p.path + "replay") //nolint:gosec // a plain path
	}
	if n == 0 {
		p.render(w, r, http.StatusOK, "confirm", a.Word, data)
		return nil
	}
	// No more than was counted; where counting stopped, all that match, or what was asked for.
	data.AtMost = n
	if data.AtLeast {
		data.AtMost = s.limit
	}
	data.Order = p.pending.add(order{who: whoOf(r), action: name, filter: s.filter, limit: data.AtMost, resume: resume})
	data.Command = command(p.box.Tables(), name, s.filter, data.AtMost)
	p.render(w, r, http.StatusOK, "confirm", a.Word, data)
	return nil
}

// count counts what an action would change, and of a replay fixes its times.
func (p *Page) count(ctx context.Context, a action, f outbox.Filter, most int) (n int, resume string, err error) {
	if !a.done {
		n, err = a.count(p.box, ctx, f, most)
		return n, "", err
	}
	n, err = p.box.ReplayWith(ctx, f, outbox.ReplayOptions{Limit: most, DryRun: true, Progress: func(_ int, place string) {
		if resume == "" {
			resume = place
		}
	}})
	return n, resume, err
}

// command is the same for the command line, which has the database from OUTBOX_DSN.
func command(tables dialect.Tables, name string, f outbox.Filter, limit int) string {
	text := "outbox " + name
	if tables.Schema != "" {
		text += " --schema " + shell.Quote(tables.Schema)
	}
	if tables.Prefix != outbox.DefaultPrefix {
		text += " --prefix " + shell.Quote(tables.Prefix)
	}
	text += " " + f.String()
	if limit > 0 {
		text += " --limit " + strconv.Itoa(limit)
	}
	return text
}

// mostForm is the most bytes of a form that is sent: a reason in percent-encoding, and
// the name of an order.
const mostForm = 16 << 10

var errNoOrder = failure{
	http.StatusConflict, "There is nothing to confirm", "It was done already, or it has waited too long, or the program was started anew. Look at the audit, then begin again.",
}

func (p *Page) act(w http.ResponseWriter, r *http.Request) error {
	name, a, err := p.actionOf(r)
	if err != nil {
		return err
	}
	r.Body = http.MaxBytesReader(w, r.Body, mostForm)
	if err := r.ParseForm(); err != nil {
		return failure{http.StatusBadRequest, "The form cannot be read", "Begin again, with a shorter reason."}
	}
	who, token := whoOf(r), r.PostForm.Get("order")
	why := strings.TrimSpace(strings.ReplaceAll(r.PostForm.Get("why"), "\r\n", "\n"))
	problem := ""
	switch {
	case why == "":
		problem = "Say why: the reason is kept in the audit."
	case len(why) > dialect.MaxWhy:
		problem = "The reason has " + plural(len(why), "byte") + ": shorten it to " + grouped(dialect.MaxWhy) + "."
	}
	if problem != "" {
		o, ok := p.pending.get(token, who, name)
		if !ok {
			return errNoOrder
		}
		n := o.limit
		data := confirmData{
			Name: name, action: a, Count: n, AtMost: o.limit, Command: command(p.box.Tables(), name, o.filter, o.limit), Order: token,
			Why: why, MostWhy: dialect.MaxWhy, Problem: problem, Back: template.URL(p.path), //nolint:gosec // a plain path
		}
		if o.limit == 0 {
			data.Count, data.AtLeast = ConfirmLimit, true
		}
		p.render(w, r, http.StatusUnprocessableEntity, "confirm", a.Word, data)
		return nil
	}
	operator, err := p.box.As(who, why)
	if err != nil {
		return err
	}
	o, ok := p.pending.take(token, who, name)
	if !ok {
		return errNoOrder
	}
	var n int
	if o.resume != "" {
		n, err = operator.ReplayWith(r.Context(), o.filter, outbox.ReplayOptions{Limit: o.limit, Resume: o.resume})
	} else {
		n, err = a.do(operator, r.Context(), o.filter, o.limit)
	}
	p.log.InfoContext(r.Context(), "ui: "+name, "who", who, "messages", n, "failed", err != nil)
	if err != nil {
		if errors.Is(err, outbox.ErrInvalid) {
			return err
		}
		return failure{http.StatusServiceUnavailable, "It did not end well", plural(n, "message") + " " + verb(name) + " before: " + err.Error()}
	}
	http.Redirect(w, r, p.path+"audit?done", http.StatusSeeOther)
	return nil
}
