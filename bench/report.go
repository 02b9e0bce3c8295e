package bench

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// Row is one comparison.
type Row struct {
	Measure string `json:"measure"`
	// Case says with what, Against what the baseline is.
	Case    string `json:"case"`
	Against string `json:"against,omitempty"`
	Unit    string `json:"unit"`
	// LessIsBetter tells that a smaller figure is a better one.
	LessIsBetter bool   `json:"less_is_better,omitempty"`
	Ours         Figure `json:"ours"`
	// Baseline and Ratio are missing where there is nothing to compare with. Ratio
	// is ours divided by the baseline's, round by round.
	Baseline *Figure `json:"baseline,omitempty"`
	Ratio    *Figure `json:"ratio,omitempty"`
	Target   string  `json:"target,omitempty"`
	// Met is yes or no where there is a target.
	Met  string `json:"met,omitempty"`
	Note string `json:"note,omitempty"`
}

// Report is what a run gave.
type Report struct {
	// Engine is the baseline's name and Server what the server says of itself.
	Engine   string  `json:"engine"`
	Server   string  `json:"server"`
	Program  string  `json:"program"`
	Machine  Machine `json:"machine"`
	Settings []Value `json:"settings"`
	// NotDurable says what keeps commits from surviving a crash; the figures tell
	// little then.
	NotDurable []string      `json:"not_durable,omitempty"`
	Began      time.Time     `json:"began"`
	Took       time.Duration `json:"took"`
	Seed       uint64        `json:"seed"`
	Scale      string        `json:"scale"`
	Rounds     int           `json:"rounds"`
	Rows       []Row         `json:"rows"`
	Charts     []Chart       `json:"charts,omitempty"`
	// Failed are measures that could not be taken, with the reason.
	Failed []Failure `json:"failed,omitempty"`
	Notes  []string  `json:"notes,omitempty"`
}

// Value is a setting as it was found.
type Value struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Failure is a measure that could not be taken.
type Failure struct {
	Measure string `json:"measure"`
	Reason  string `json:"reason"`
}

// WriteMarkdown writes the report for people, without a heading of its own. chart is
// a link to the chart, or empty. It holds no DSN. The error is w's.
func (r Report) WriteMarkdown(w io.Writer, chart string) error {
	var b strings.Builder
	if len(r.NotDurable) > 0 {
		fmt.Fprintf(&b, "**Commits were not durable** (%s): these figures are not to be compared with others.\n\n", cell(strings.Join(r.NotDurable, "; ")))
	}
	if r.Scale == "tiny" {
		b.WriteString("**Taken at the scale tiny, which only tries that everything works**: these figures mean nothing.\n\n")
	}
	met, missed := 0, 0
	for _, row := range r.Rows {
		switch row.Met {
		case "yes":
			met++
		case "no":
			missed++
		}
	}
	fmt.Fprintf(&b, "%s: %d targets met, %d missed.\n\n", cell(r.Server), met, missed)
	if chart != "" {
		fmt.Fprintf(&b, "![How figures grow on %s](%s)\n\n", cell(r.Server), chart)
	}
	b.WriteString("| measure | case | ours | baseline | ratio | target | met? |\n|---|---|---:|---:|---:|---|---|\n")
	for _, row := range r.Rows {
		base, ratio := "", ""
		if row.Baseline != nil {
			base = fmt.Sprintf("%s (%s)", number(row.Baseline.Median), cell(row.Against))
		}
		if row.Ratio != nil {
			ratio = fmt.Sprintf("%s (%s)", row.Ratio, row.Ratio.Range())
		}
		name := row.Case
		if row.Note != "" {
			name += "; " + row.Note
		}
		fmt.Fprintf(&b, "| %s | %s | %s %s | %s | %s | %s | %s |\n", cell(row.Measure), cell(name),
			number(row.Ours.Median), cell(row.Unit), base, ratio, cell(row.Target), row.Met)
	}
	for _, f := range r.Failed {
		fmt.Fprintf(&b, "\n%s could not be measured: %s\n", cell(f.Measure), cell(f.Reason))
	}
	b.WriteString("\nRatios are ours divided by the baseline's, the median of the rounds with the smallest and the largest.\n\n")
	lines := [][2]string{
		{"Server", r.Server},
		{"Program", r.Program},
		{"Machine", r.Machine.String()},
		{"Scale", fmt.Sprintf("%s, %d rounds, seed %d", r.Scale, r.Rounds, r.Seed)},
		{"Began", fmt.Sprintf("%s, took %v", r.Began.Format(time.RFC3339), r.Took.Round(time.Second))},
	}
	var settings []string
	for _, s := range r.Settings {
		settings = append(settings, s.Name+" = "+s.Value)
	}
	lines = append(lines, [2]string{"Settings", strings.Join(settings, ", ")})
	for _, n := range r.Notes {
		lines = append(lines, [2]string{"Note", n})
	}
	for _, l := range lines {
		fmt.Fprintf(&b, "- %s: %s\n", l[0], cell(l[1]))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Splice puts a section into a document, between the markers
//
//	<!-- bench NAME -->
//	<!-- /bench NAME -->
//
// which are added at the end, under a heading, when they are not there. All else
// stays as it is.
func Splice(document, name, section string) (string, error) {
	begin, end := "<!-- bench "+name+" -->\n", "<!-- /bench "+name+" -->"
	before, rest, ok := strings.Cut(document, begin)
	if !ok {
		if strings.Contains(document, end) {
			return "", fmt.Errorf("the marker %q is missing", strings.TrimSpace(begin))
		}
		if document != "" {
			document = strings.TrimRight(document, "\n") + "\n\n"
		}
		return document + "## " + name + "\n\n" + begin + section + end + "\n", nil
	}
	_, after, ok := strings.Cut(rest, end)
	if !ok {
		return "", fmt.Errorf("the marker %q is missing", end)
	}
	return before + begin + section + end + after, nil
}

// cell is text that stands in one cell of a table, or on one line.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\r", " ", "\n", " ", "<", "&lt;").Replace(text)
}

// number is a figure with three digits that count, and groups of thousands.
func number(v float64) string {
	abs := math.Abs(v)
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "–"
	case v == 0:
		return "0"
	case abs < 1000:
		decimals := max(0, 2-int(math.Floor(math.Log10(abs))))
		s := strconv.FormatFloat(v, 'f', min(decimals, 6), 64)
		if strings.Contains(s, ".") {
			s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
		}
		return s
	}
	digits := strconv.FormatFloat(abs, 'f', 0, 64)
	if n := len(digits); n > 3 {
		step := math.Pow10(n - 3)
		digits = strconv.FormatFloat(math.Round(abs/step)*step, 'f', 0, 64)
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	if v < 0 {
		return "-" + digits
	}
	return digits
}

// String is the median as the report writes it.
func (f Figure) String() string { return number(f.Median) }

// Range is the smallest and the largest, as the report writes them.
func (f Figure) Range() string { return number(f.Low) + "–" + number(f.High) }
