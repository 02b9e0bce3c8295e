package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/outbox-suite/outbox"
)

// writeJSON writes one document for a program to read.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// table writes aligned columns; the first row is the heading.
func table(w io.Writer, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = printable(cell)
		}
		if _, err := fmt.Fprintln(tw, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return tw.Flush()
}

// printable quotes text that would move the cursor, or worse.
func printable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) || strings.TrimSpace(s) != s {
		return fmt.Sprintf("%q", s)
	}
	return s
}

// clip shortens text to n characters.
func clip(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// clipFor shortens where a terminal's line is to hold what is shown, and leaves a pipe
// everything.
func clipFor(w io.Writer) func(s string, n int) string {
	if isTerminal(w) {
		return clip
	}
	return func(s string, _ int) string { return s }
}

// count is a number that counting may have stopped at.
func count(n int64) string {
	if n >= outbox.DefaultCount {
		return fmt.Sprintf("%d or more", n)
	}
	return fmt.Sprint(n)
}

// age is a duration as a person reads it.
func age(d time.Duration) string {
	switch {
	case d <= 0:
		return "0s"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 24*time.Hour:
		return d.Round(time.Second).String()
	default:
		return fmt.Sprintf("%dd%s", d/(24*time.Hour), (d % (24 * time.Hour)).Round(time.Hour))
	}
}

// messages is "1 message" or "n messages".
func messages(n int) string {
	if n == 1 {
		return "1 message"
	}
	return fmt.Sprintf("%d messages", n)
}
