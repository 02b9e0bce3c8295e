package bench

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// Chart is how a figure grows.
type Chart struct {
	Title string `json:"title"`
	X     string `json:"x"`
	Y     string `json:"y"`
	// Log and LogY tell that an axis counts in powers of ten.
	Log    bool     `json:"log,omitempty"`
	LogY   bool     `json:"log_y,omitempty"`
	Series []Series `json:"series"`
}

// Series is one line of a chart.
type Series struct {
	Name   string  `json:"name"`
	Points []Point `json:"points"`
}

// Point is a figure at one place: the median, with the lowest and the highest.
type Point struct {
	X    float64 `json:"x"`
	Y    float64 `json:"y"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// The sizes of a drawing, in pixels.
const (
	chartWidth  = 480
	chartHeight = 300
	marginLeft  = 64
	marginRight = 20
	marginTop   = 48
	marginFoot  = 48
	legendLine  = 16
	columns     = 2
)

// style draws for a light page, and for a dark one where the reader has that.
const style = `
	svg { font: 12px system-ui, sans-serif; }
	.page { fill: #ffffff; }
	text { fill: #1f2328; }
	.faint { fill: #59636e; }
	.grid { stroke: #d1d9e0; stroke-width: 1; }
	.line { fill: none; stroke-width: 2; }
	.spread { stroke-width: 1; opacity: .6; }
	.title { font-size: 14px; font-weight: 600; }
	.s0 { stroke: #0969da; } .s1 { stroke: #bc4c00; } .s2 { stroke: #1a7f37; }
	.s3 { stroke: #8250df; } .s4 { stroke: #9a6700; } .s5 { stroke: #cf222e; }
	.f0 { fill: #0969da; } .f1 { fill: #bc4c00; } .f2 { fill: #1a7f37; }
	.f3 { fill: #8250df; } .f4 { fill: #9a6700; } .f5 { fill: #cf222e; }
	@media (prefers-color-scheme: dark) {
		.page { fill: #0d1117; }
		text { fill: #f0f6fc; }
		.faint { fill: #9198a1; }
		.grid { stroke: #3d444d; }
		.s0 { stroke: #58a6ff; } .s1 { stroke: #f0883e; } .s2 { stroke: #3fb950; }
		.s3 { stroke: #bc8cff; } .s4 { stroke: #d29922; } .s5 { stroke: #ff7b72; }
		.f0 { fill: #58a6ff; } .f1 { fill: #f0883e; } .f2 { fill: #3fb950; }
		.f3 { fill: #bc8cff; } .f4 { fill: #d29922; } .f5 { fill: #ff7b72; }
	}
`

const colours = 6

// WriteSVG draws the charts of the report in one image. The error is w's.
func (r Report) WriteSVG(w io.Writer) error {
	var charts []Chart
	for _, c := range r.Charts {
		if slices.ContainsFunc(c.Series, func(s Series) bool { return len(s.Points) > 0 }) {
			charts = append(charts, c)
		}
	}
	// A row is as high as the longest legend in it.
	tops := []int{0}
	for row := range slices.Chunk(charts, columns) {
		legend := 0
		for _, c := range row {
			legend = max(legend, len(c.Series))
		}
		tops = append(tops, tops[len(tops)-1]+chartHeight+(legend+1)*legendLine)
	}
	width, height := columns*chartWidth, tops[len(tops)-1]+3*legendLine
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, "<title>%s</title>\n<style>%s</style>\n", escape("How figures grow on "+r.Server), style)
	fmt.Fprintf(&b, `<rect class="page" width="%d" height="%d"/>`+"\n", width, height)
	for i, c := range charts {
		fmt.Fprintf(&b, `<g transform="translate(%d %d)">`+"\n", i%columns*chartWidth, tops[i/columns])
		c.draw(&b)
		b.WriteString("</g>\n")
	}
	for i, caption := range []string{
		fmt.Sprintf("%s; %s", r.Server, r.Machine),
		fmt.Sprintf("scale %s, median of %d rounds, bars from the lowest to the highest; %s", r.Scale, r.Rounds, r.Began.Format("2006-01-02")),
	} {
		fmt.Fprintf(&b, `<text class="faint" x="%d" y="%d">%s</text>`+"\n", marginLeft, height-28+i*legendLine, escape(caption))
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (c Chart) draw(b *strings.Builder) {
	x, y := c.axes()
	left, right := float64(marginLeft), float64(chartWidth-marginRight)
	top, foot := float64(marginTop), float64(chartHeight-marginFoot)
	px := func(v float64) float64 { return left + x.at(v)*(right-left) }
	py := func(v float64) float64 { return foot - y.at(v)*(foot-top) }

	fmt.Fprintf(b, `<text class="title" x="%d" y="22">%s</text>`+"\n", marginLeft, escape(c.Title))
	for _, t := range y.ticks {
		fmt.Fprintf(b, `<line class="grid" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", left, py(t), right, py(t))
		fmt.Fprintf(b, `<text class="faint" x="%.1f" y="%.1f" text-anchor="end">%s</text>`+"\n", left-6, py(t)+4, short(t))
	}
	for _, t := range x.ticks {
		fmt.Fprintf(b, `<text class="faint" x="%.1f" y="%.1f" text-anchor="middle">%s</text>`+"\n", px(t), foot+16, short(t))
	}
	fmt.Fprintf(b, `<text class="faint" x="%.1f" y="%.1f" text-anchor="end">%s</text>`+"\n", right, foot+34, escape(c.X))
	fmt.Fprintf(b, `<text class="faint" x="%.1f" y="%.1f">%s</text>`+"\n", left, top-8, escape(c.Y))

	for i, s := range c.Series {
		colour := i % colours
		points := slices.SortedFunc(slices.Values(s.Points), func(a, b Point) int { return cmp.Compare(a.X, b.X) })
		var path []string
		for _, p := range points {
			path = append(path, fmt.Sprintf("%.1f,%.1f", px(p.X), py(p.Y)))
			if p.High > p.Low {
				fmt.Fprintf(b, `<line class="spread s%d" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", colour, px(p.X), py(p.Low), px(p.X), py(p.High))
			}
			fmt.Fprintf(b, `<circle class="f%d" cx="%.1f" cy="%.1f" r="3"><title>%s</title></circle>`+"\n", colour, px(p.X), py(p.Y),
				escape(fmt.Sprintf("%s at %s: %s %s", s.Name, number(p.X), number(p.Y), c.Y)))
		}
		fmt.Fprintf(b, `<polyline class="line s%d" points="%s"/>`+"\n", colour, strings.Join(path, " "))
		at := chartHeight + i*legendLine - 4
		fmt.Fprintf(b, `<line class="line s%d" x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n", colour, marginLeft, at-4, marginLeft+18, at-4)
		fmt.Fprintf(b, `<text x="%d" y="%d">%s</text>`+"\n", marginLeft+24, at, escape(s.Name))
	}
}

// axis maps figures to 0 … 1.
type axis struct {
	low, high float64
	log       bool
	ticks     []float64
}

func (a axis) at(v float64) float64 {
	low, high := a.low, a.high
	if a.log {
		low, high, v = math.Log10(low), math.Log10(high), math.Log10(max(v, a.low))
	}
	if high == low {
		return 0.5
	}
	return (v - low) / (high - low)
}

func (c Chart) axes() (x, y axis) {
	var xs, ys []float64
	for _, s := range c.Series {
		for _, p := range s.Points {
			xs = append(xs, p.X)
			ys = append(ys, p.Y, p.Low, p.High)
		}
	}
	x = axis{low: slices.Min(xs), high: slices.Max(xs), log: c.Log && slices.Min(xs) > 0}
	slices.Sort(xs)
	x.ticks = apart(x, slices.Compact(xs)) // where something was measured
	if c.LogY {
		if positive := slices.DeleteFunc(slices.Clone(ys), func(v float64) bool { return v <= 0 }); len(positive) > 0 {
			low := math.Pow(10, math.Floor(math.Log10(slices.Min(positive))))
			high := math.Pow(10, math.Ceil(math.Log10(slices.Max(positive))))
			y = axis{low: low, high: max(high, 10*low), log: true}
			for v := y.low; v <= y.high*1.001; v *= 10 {
				y.ticks = append(y.ticks, v)
			}
			return x, y
		}
	}
	step := nice(slices.Max(ys) / 4)
	y = axis{high: step}
	for y.high < slices.Max(ys) {
		y.high += step
	}
	for v := 0.0; v <= y.high+step/2; v += step {
		y.ticks = append(y.ticks, v)
	}
	return x, y
}

// apart leaves out ticks whose texts would touch.
func apart(a axis, ticks []float64) []float64 {
	var kept []float64
	for _, t := range ticks {
		if len(kept) == 0 || a.at(t)-a.at(kept[len(kept)-1]) > 0.07 {
			kept = append(kept, t)
		}
	}
	return kept
}

// nice is the smallest of 1, 2, 5, 10, … that is not below v.
func nice(v float64) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 2, 2.5, 5} {
		if f*power >= v*0.999 {
			return f * power
		}
	}
	return 10 * power
}

// short is a figure at an axis.
func short(v float64) string {
	switch {
	case v >= 1e6:
		return number(v/1e6) + "M"
	case v >= 1e4:
		return number(v/1e3) + "k"
	default:
		return number(v)
	}
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a builder takes everything
	return b.String()
}
