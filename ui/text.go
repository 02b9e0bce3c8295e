package ui

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html/template"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
)

// functions are what templates call.
var functions = template.FuncMap{
	"visible": visible,
	"clip":    clip,
	"age":     age,
	"count":   count,
	"utc":     utc,
	"id":      func(id [16]byte) string { return uuid.UUID(id).String() },
	"plural":  plural,
	"short":   short,
	"rfc3339": func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
}

// visible shows what would not be seen, or would change how the rest is seen: control
// and format characters, among them those that turn the direction of text.
func visible(s string) string {
	if !strings.ContainsFunc(s, hidden) && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if hidden(r) {
			fmt.Fprintf(&b, `\u{%x}`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func hidden(r rune) bool { return !unicode.IsPrint(r) }

// clip shortens text to n characters.
func clip(n int, s string) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// age is a duration as a person reads it: two units at most.
func age(d time.Duration) string {
	if d < 0 {
		return "-" + age(-d)
	}
	switch {
	case d < time.Millisecond:
		return strconv.FormatInt(d.Microseconds(), 10) + " µs"
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return two(d, time.Minute, "min", time.Second, "s")
	case d < 24*time.Hour:
		return two(d, time.Hour, "h", time.Minute, "min")
	default:
		return two(d, 24*time.Hour, "d", time.Hour, "h")
	}
}

func two(d, large time.Duration, name string, small time.Duration, smallName string) string {
	n, rest := d/large, d%large/small
	if rest == 0 {
		return fmt.Sprintf("%d %s", n, name)
	}
	return fmt.Sprintf("%d %s %d %s", n, name, rest, smallName)
}

// count is a number with its thousands apart, and a mark where counting stopped.
func count(n int64) string {
	text := grouped(n)
	if n >= CountLimit {
		text += "+"
	}
	return text
}

func grouped(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// short is an id as it is told from others at a glance: when it was made, and its end.
func short(id [16]byte) string {
	text := uuid.UUID(id).String()
	return text[:8] + "…" + text[len(text)-6:]
}

// plural is "1 message" or "n messages".
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return grouped(int64(n)) + " " + what + "s"
}

// utc is the database's time as it is shown.
func utc(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") }

// mostShown is how much of a payload is shown.
const mostShown = 64 << 10

// payload is a payload as it is shown.
type payload struct {
	Size  int
	Nil   bool
	Shown bool   // somebody asked
	Kind  string // how Text is to be read
	Text  string
	Cut   bool
}

func payloadOf(b []byte, show bool) payload {
	p := payload{Size: len(b), Nil: b == nil, Shown: show && len(b) > 0}
	if !p.Shown {
		return p
	}
	if len(b) <= mostShown && json.Valid(b) && nesting(b) <= mostNested {
		var indented bytes.Buffer
		if json.Indent(&indented, b, "", "  ") == nil && indented.Len() <= 4*mostShown {
			p.Kind, p.Text = "JSON, indented for reading", lines(indented.String())
			return p
		}
	}
	if p.Cut = len(b) > mostShown; p.Cut {
		b = b[:mostShown]
		for range utf8.UTFMax - 1 { // a character that was cut in two
			if r, size := utf8.DecodeLastRune(b); r == utf8.RuneError && size == 1 {
				b = b[:len(b)-1]
			}
		}
	}
	if utf8.Valid(b) && !bytes.ContainsRune(b, 0) {
		p.Kind, p.Text = "text", lines(string(b))
		return p
	}
	// Four times as long as the bytes.
	p.Cut = p.Cut || len(b) > mostShown/4
	p.Kind, p.Text = "hexadecimal, for it is no text", hex.Dump(b[:min(len(b), mostShown/4)])
	return p
}

// mostNested is how deep JSON may be to be indented: spaces grow with lines times depth,
// and 64 KiB of it can be ten thousand deep.
const mostNested = 100

// nesting is how deep valid JSON is.
func nesting(b []byte) (most int) {
	depth, quoted := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++
		case quoted:
		case c == '[', c == '{':
			depth++
			most = max(most, depth)
		case c == ']', c == '}':
			depth--
		}
	}
	return most
}

// lines is visible, but for the ends of lines and tabs.
func lines(s string) string {
	all := strings.Split(s, "\n")
	for i, line := range all {
		cells := strings.Split(strings.TrimSuffix(line, "\r"), "\t")
		for j := range cells {
			cells[j] = visible(cells[j])
		}
		all[i] = strings.Join(cells, "\t")
	}
	return strings.Join(all, "\n")
}
