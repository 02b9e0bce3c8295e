package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outbox-suite/outbox"
)

// Options choose what [Run] does. The zero value measures everything at scale quick.
type Options struct {
	// Match selects measures by name. Default: all.
	Match *regexp.Regexp
	// Rounds is how often each side of a comparison is taken, in turns. Default: 5.
	Rounds int
	// Scale is how much is done. Default: quick.
	Scale Scale
	// NotDurable goes on where commits do not survive a crash. The problems that
	// [outbox.Outbox.Check] finds still end the run: a relay does not start there.
	NotDurable bool
	// Seed is what payloads and keys come from. Default: 1.
	Seed uint64
	// OnRow is told each comparison as soon as it is known.
	OnRow func(Row)
	// OnProgress is told what is being done, in words for people.
	OnProgress func(measure, how string)
}

const defaultRounds = 5

// ErrNotDurable is the error of a run on a server whose commits do not survive a
// crash.
var ErrNotDurable = errors.New("commits are not durable")

// run is a run under way.
type run struct {
	target  Target
	base    *Baseline
	opts    Options
	scale   Scale
	report  *Report
	measure string // the current one

	mu     sync.Mutex
	pools  []*sql.DB
	tables []string // made and not yet dropped, quoted
	notes  map[string]bool
	// reached is the least rate of writers that were to keep up another one.
	reached map[int]float64
}

// Run measures the target. The tables it makes have random names, and are removed
// when it ends, also when ctx ends it. The error tells that the run could not be done
// or was ended early, and the report holds what was known by then; a measure that
// failed is in Report.Failed.
func Run(ctx context.Context, target Target, opts Options) (Report, error) {
	r, err := start(ctx, target, opts)
	if err != nil {
		return Report{}, err
	}
	defer r.close() //nolint:contextcheck // tables are removed after ctx has ended too
	for _, m := range Measures() {
		if opts.Match != nil && !opts.Match.MatchString(m.Name) {
			continue
		}
		r.measure = m.Name
		r.progress("begins")
		err := m.run(ctx, r)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			r.report.Failed = append(r.report.Failed, Failure{m.Name, err.Error()})
		}
		if err := r.dropAll(ctx); err != nil {
			return r.finish(), err
		}
	}
	if err := context.Cause(ctx); err != nil {
		return r.finish(), fmt.Errorf("bench: ended early: %w", err)
	}
	return r.finish(), nil
}

func (r *run) finish() Report {
	r.report.Took = time.Since(r.report.Began)
	return *r.report
}

// start opens the first pool and looks at the server.
func start(ctx context.Context, target Target, opts Options) (_ *run, err error) {
	if err := target.check(); err != nil {
		return nil, err
	}
	if opts.Rounds == 0 {
		opts.Rounds = defaultRounds
	}
	if opts.Rounds < 0 {
		return nil, fmt.Errorf("bench: rounds is %d: give a number above 0", opts.Rounds)
	}
	if opts.Scale.Name == "" {
		opts.Scale = Scales()[0]
	}
	if opts.Seed == 0 {
		opts.Seed = 1
	}
	if opts.Match != nil && !slices.ContainsFunc(Measures(), func(m Measure) bool { return opts.Match.MatchString(m.Name) }) {
		return nil, fmt.Errorf("bench: no measure matches %q", opts.Match)
	}
	r := &run{
		target: target, base: target.Baseline, opts: opts, scale: opts.Scale,
		report: &Report{
			Engine: target.Baseline.Name, Program: program(), Machine: thisMachine(), Began: time.Now().UTC(),
			Seed: opts.Seed, Scale: opts.Scale.Name, Rounds: opts.Rounds,
		},
		notes: make(map[string]bool), reached: make(map[int]float64),
	}
	defer func() { //nolint:contextcheck // as in Run
		if err != nil {
			r.close()
		}
	}()
	db, err := r.pool(ctx, 0)
	if err != nil {
		return nil, err
	}
	for _, s := range r.base.Settings {
		var value string
		if err := db.QueryRowContext(ctx, s.Query).Scan(&value); err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			value = "unknown"
		}
		r.report.Settings = append(r.report.Settings, Value{s.Name, value})
		if len(s.Durable) > 0 && !slices.Contains(s.Durable, strings.ToLower(value)) {
			r.report.NotDurable = append(r.report.NotDurable, fmt.Sprintf("%s is %s, not %s", s.Name, value, strings.Join(s.Durable, " or ")))
		}
	}
	if len(r.report.NotDurable) > 0 && !opts.NotDurable {
		return nil, fmt.Errorf("bench: %w: %s", ErrNotDurable, strings.Join(r.report.NotDurable, "; "))
	}
	o, err := r.outbox(ctx)
	if err != nil {
		return nil, err
	}
	if err := o.Check(ctx); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	in, err := o.Inspect(ctx)
	if err != nil {
		return nil, err
	}
	r.report.Server = in.Server
	return r, r.dropAll(ctx)
}

// pool returns the pool of that number. Number 0 is for filling and writing; each
// relay has one of its own.
func (r *run) pool(ctx context.Context, number int) (*sql.DB, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.pools) <= number {
		db, err := r.target.Open(ctx)
		if err != nil {
			return nil, err
		}
		db.SetMaxIdleConns(32)
		r.pools = append(r.pools, db)
	}
	return r.pools[number], nil
}

// close removes what is left, whatever has happened to the run's context.
func (r *run) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_ = r.dropAll(ctx) // a server that does not answer keeps them
	for _, db := range r.pools {
		_ = db.Close()
	}
}

func (r *run) name() string { return fmt.Sprintf("bench_%08x", rand.Uint32()) }

// created matches the tables that a schema's text makes, as it quotes them.
var created = regexp.MustCompile(`(?im)^CREATE TABLE (?:IF NOT EXISTS )?(\S+) \(`)

// outbox makes an outbox with tables of its own.
func (r *run) outbox(ctx context.Context) (*outbox.Outbox, error) {
	db, err := r.pool(ctx, 0)
	if err != nil {
		return nil, err
	}
	o, err := outbox.New(db, r.target.Dialect, outbox.Config{Prefix: r.name()})
	if err != nil {
		return nil, err
	}
	// Noted before they are made, so that those of a migration that is interrupted
	// are removed too.
	r.made(tablesOf(o)...)
	_, err = o.Migrate(ctx)
	return o, err
}

func tablesOf(o *outbox.Outbox) []string {
	var names []string
	for _, step := range o.Schema() {
		for _, m := range created.FindAllStringSubmatch(step.SQL, -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// again is the same outbox with another pool.
func (r *run) again(ctx context.Context, o *outbox.Outbox, pool int) (*outbox.Outbox, error) {
	db, err := r.pool(ctx, pool)
	if err != nil {
		return nil, err
	}
	return outbox.New(db, r.target.Dialect, outbox.Config{Prefix: o.Tables().Prefix, Lanes: o.Tables().Lanes})
}

// loopTables makes the baseline's tables.
func (r *run) loopTables(ctx context.Context) (tables, error) {
	db, err := r.pool(ctx, 0)
	if err != nil {
		return tables{}, err
	}
	name := r.name()
	t := tables{loop: name + "_loop", business: name + "_business"}
	r.made(t.loop, t.business)
	for _, statement := range r.base.Create {
		if _, err := db.ExecContext(ctx, t.expand(statement)); err != nil {
			return t, fmt.Errorf("baseline: %w", err)
		}
	}
	return t, nil
}

func (r *run) made(names ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tables = append(r.tables, names...)
}

// drop removes tables that were made.
func (r *run) drop(ctx context.Context, names ...string) error {
	db, err := r.pool(ctx, 0)
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, err := db.ExecContext(ctx, "DROP TABLE IF EXISTS "+name); err != nil {
			return fmt.Errorf("drop table %s: %w", name, err)
		}
		r.mu.Lock()
		r.tables = slices.DeleteFunc(r.tables, func(t string) bool { return t == name })
		r.mu.Unlock()
	}
	return nil
}

func (r *run) dropAll(ctx context.Context) error {
	r.mu.Lock()
	names := slices.Clone(r.tables)
	r.mu.Unlock()
	return r.drop(ctx, names...)
}

// tidy does the housekeeping before a timed part.
func (r *run) tidy(ctx context.Context, names ...string) error {
	db, err := r.pool(ctx, 0)
	if err != nil {
		return err
	}
	if err := r.base.Tidy(ctx, db, names); err != nil {
		if ctx.Err() != nil {
			return err
		}
		r.note("housekeeping before the timed parts failed: " + err.Error())
	}
	return nil
}

// note is said once.
func (r *run) note(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.notes[text] {
		r.notes[text] = true
		r.report.Notes = append(r.report.Notes, text)
	}
}

func (r *run) progress(format string, args ...any) {
	if r.opts.OnProgress != nil {
		r.opts.OnProgress(r.measure, fmt.Sprintf(format, args...))
	}
}

// side is one side of a comparison. run returns what it measured, always the same
// number of figures.
type side struct {
	name string
	run  func(ctx context.Context) ([]float64, error)
}

// rounds takes the sides in turns, n times, and returns the samples by side and
// figure.
func (r *run) rounds(ctx context.Context, n int, what string, sides ...side) ([][][]float64, error) {
	samples := make([][][]float64, len(sides))
	for round := range n {
		for i, s := range sides {
			r.progress("%s: %s, round %d of %d", what, s.name, round+1, n)
			figures, err := s.run(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", what, s.name, err)
			}
			if samples[i] == nil {
				samples[i] = make([][]float64, len(figures))
			}
			for j, f := range figures {
				samples[i][j] = append(samples[i][j], f)
			}
		}
	}
	return samples, nil
}

// few is how many rounds something is taken that is large.
func (r *run) few(messages int) int {
	if messages < r.scale.least {
		return r.opts.Rounds
	}
	return min(r.opts.Rounds, fewRounds)
}

// row is a comparison before its figures are summed up.
type row struct {
	what, unit string
	less       bool
	ours       []float64
	against    string
	base       []float64
	goal       string // its name, for Baseline.Goals
	fallback   Goal
	note       string
}

func (r *run) emit(w row) {
	out := Row{
		Measure: r.measure, Case: w.what, Against: w.against, Unit: w.unit, LessIsBetter: w.less,
		Ours: figure(w.ours), Note: w.note,
	}
	if len(w.base) > 0 {
		base := figure(w.base)
		out.Baseline = &base
		if q := ratios(w.ours, w.base); len(q) > 0 {
			ratio := figure(q)
			out.Ratio = &ratio
		}
	}
	if out.Ours.Rounds < r.opts.Rounds { // fewer than the report says of all
		out.Note = strings.TrimPrefix(fmt.Sprintf("%s; rounds %d", out.Note, out.Ours.Rounds), "; ")
	}
	goal := w.fallback
	if g, ok := r.base.Goals[w.goal]; ok && w.goal != "" {
		goal = g
	}
	out.Target, out.Met = goal.Text, goal.met(out.Ours.Median, out.Ratio)
	r.report.Rows = append(r.report.Rows, out)
	if r.opts.OnRow != nil {
		r.opts.OnRow(out)
	}
}

// plot adds a point to a chart, which is made when it is not there.
func (r *run) plot(chart Chart, series string, x float64, samples []float64) {
	i := slices.IndexFunc(r.report.Charts, func(c Chart) bool { return c.Title == chart.Title })
	if i < 0 {
		i = len(r.report.Charts)
		r.report.Charts = append(r.report.Charts, chart)
	}
	c := &r.report.Charts[i]
	j := slices.IndexFunc(c.Series, func(s Series) bool { return s.Name == series })
	if j < 0 {
		j = len(c.Series)
		c.Series = append(c.Series, Series{Name: series})
	}
	f := figure(samples)
	c.Series[j].Points = append(c.Series[j].Points, Point{X: x, Y: f.Median, Low: f.Low, High: f.High})
}
