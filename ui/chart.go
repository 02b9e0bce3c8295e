package ui

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// The measures of a chart, in its own units.
const (
	chartWidth  = 320.0
	chartHeight = 96.0
	chartTop    = 6.0
	chartBase   = 90.0
)

// chart is a drawing of a few lines over time, and what it says in words.
type chart struct {
	Title string
	Now   string // the newest value
	Label string // for who cannot see it
	Empty string // why there is nothing to see
	Top   string // the value at the upper edge
	From  string // the time at the left edge
	Lines []line
}

type line struct {
	Name       string // for the legend; empty for a single line
	Class      string
	Path, Area string
	X, Y       float64 // its end
	Ends       bool    // at the newest sample
}

// point is a value, if there is one.
type point struct {
	at    time.Time
	value float64
	ok    bool
}

type series struct {
	name   string
	points []point
}

// shortest is the time that a chart spans at least.
const shortest = 5 * time.Minute

// draw draws the series of one chart, which are of the same times.
func draw(title, empty string, format func(float64) string, all ...series) chart {
	c := chart{Title: title, Now: "–", Empty: empty}
	highest, last, known := 0.0, all[0].points, false
	for _, s := range all {
		for _, p := range s.points {
			if p.ok {
				highest, known = max(highest, p.value), true
			}
		}
	}
	if !known || len(last) == 0 {
		c.Label = title + ": " + empty
		return c
	}
	c.Empty = ""
	end := last[len(last)-1].at
	span := max(end.Sub(last[0].at), shortest)
	top := ceiling(highest)
	c.Top, c.From = format(top), age(span.Round(time.Minute))+" ago"
	var words []string
	for i, s := range all {
		l := line{Name: s.name, Class: "line" + strconv.Itoa(i)}
		var path, area strings.Builder
		from := math.NaN() // where the run of points began
		x, y := 0.0, 0.0
		shut := func() {
			if !math.IsNaN(from) {
				fmt.Fprintf(&area, "L%.1f %.1fL%.1f %.1fZ", x, chartBase, from, chartBase)
			}
			from = math.NaN()
		}
		for _, p := range s.points {
			if !p.ok {
				shut()
				continue
			}
			x = chartWidth - chartWidth*float64(end.Sub(p.at))/float64(span)
			y = chartBase - (chartBase-chartTop)*p.value/top
			verb := "L"
			if math.IsNaN(from) {
				verb, from = "M", x
			}
			fmt.Fprintf(&path, "%s%.1f %.1f", verb, x, y)
			fmt.Fprintf(&area, "%s%.1f %.1f", verb, x, y)
			l.X, l.Y = x, y
		}
		shut()
		l.Path = path.String()
		if i == 0 {
			l.Area = area.String()
		}
		value := "not known"
		if n := len(s.points); n > 0 && s.points[n-1].ok {
			l.Ends, value = true, format(s.points[n-1].value)
			if i == 0 {
				c.Now = value
			}
		}
		words = append(words, strings.TrimSpace(s.name+" now "+value))
		c.Lines = append(c.Lines, l)
	}
	c.Label = fmt.Sprintf("%s over the last %s: %s, highest %s", title, age(span.Round(time.Minute)), strings.Join(words, ", "), format(highest))
	return c
}

// ceiling is the next round number.
func ceiling(v float64) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 2.5, 5, 10} {
		if v <= m*power*(1+1e-9) {
			return m * power
		}
	}
	return 10 * power
}

func wholes(v float64) string { return grouped(int64(math.Round(v))) }

func perSecond(v float64) string {
	if v < 10 && v != math.Trunc(v) {
		return strconv.FormatFloat(v, 'f', 1, 64) + "/s"
	}
	return wholes(v) + "/s"
}

func seconds(v float64) string { return age(time.Duration(v * float64(time.Second))) }

// charts draws what the samples have.
func charts(all []sample, viewable bool) []chart {
	var waiting, oldest, settled, median, slow []point
	for i, s := range all {
		at := func(v float64, ok bool) point { return point{s.at, v, ok} }
		waiting = append(waiting, at(float64(s.stats.Ready+s.stats.Retry+s.stats.Held), true))
		oldest = append(oldest, at(s.stats.OldestReady.Seconds(), true))
		if !viewable {
			continue
		}
		var r float64
		known := false
		if i > 0 {
			r, known = rate(all[i-1], s)
		}
		settled = append(settled, at(r, known))
		median = append(median, at(s.median.Seconds(), s.timed))
		slow = append(slow, at(s.slow.Seconds(), s.timed))
	}
	list := []chart{
		draw("Waiting: ready, retry, held", "no sample yet", wholes, series{points: waiting}),
		draw("Age of the oldest ready", "no sample yet", seconds, series{points: oldest}),
	}
	if viewable {
		list = append(list,
			draw("Settled into done", "one more sample is needed", perSecond, series{points: settled}),
			draw("From enqueue to done", "nothing was settled lately, or published messages are not kept", seconds,
				series{"half within", median}, series{"95 of 100 within", slow}),
		)
	}
	return list
}
