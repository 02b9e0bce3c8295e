// Package skeleton takes the quoted names out of SQL, for tests that nothing which is
// not a name depends on what a name holds.
package skeleton

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// Of returns text with every quoted name replaced by a word, and the names, read as a
// server reads them: from opening to closing, where the closing character twice is
// itself. Comments and string literals hold no names. An error says that a name or a
// literal does not end.
func Of(text string, opening, closing byte) (skeleton string, names []string, err error) {
	var b strings.Builder
	// until returns what is before the end, and what is behind it.
	until := func(rest string, end byte) (inside, behind string, err error) {
		var name strings.Builder
		for i := 0; i < len(rest); i++ {
			if rest[i] == end {
				if i+1 == len(rest) || rest[i+1] != end {
					return name.String(), rest[i+1:], nil
				}
				i++
			}
			name.WriteByte(rest[i])
		}
		return "", "", fmt.Errorf("%q does not end after %q", end, b.String())
	}
	for text != "" {
		switch c := text[0]; {
		case strings.HasPrefix(text, "--"):
			comment, behind, _ := strings.Cut(text, "\n")
			b.WriteString(comment + "\n")
			text = behind
		case c == '\'':
			inside, behind, err := until(text[1:], c)
			if err != nil {
				return "", nil, err
			}
			b.WriteString("'" + inside + "'")
			text = behind
		case c == opening:
			name, behind, err := until(text[1:], closing)
			if err != nil {
				return "", nil, err
			}
			b.WriteString("NAME")
			names = append(names, name)
			text = behind
		default:
			b.WriteByte(c)
			text = text[1:]
		}
	}
	return b.String(), names, nil
}

// Fuzz binds tables to any names: those that are not refused are in the statements as
// names, and nothing else is different. render returns all statements of tables, and false
// when their names are refused; equal tells whether a name is what it should be.
func Fuzz(f *testing.F, opening, closing byte, render func(schema, prefix string) (text string, ok bool), equal func(got, want string) bool) {
	f.Helper()
	for _, name := range Names {
		f.Add("", name)
		f.Add(name, name)
	}
	const plainSchema, plainPrefix = "THE_SCHEMA", "THE_PREFIX"
	bind := func(tb testing.TB, schema, prefix string) (text string, names []string, ok bool) {
		tb.Helper()
		statements, ok := render(schema, prefix)
		if !ok {
			return "", nil, false
		}
		text, names, err := Of(statements, opening, closing)
		if err != nil {
			tb.Fatal(err)
		}
		return text, names, true
	}
	f.Fuzz(func(t *testing.T, schema, prefix string) {
		plain := ""
		if schema != "" {
			plain = plainSchema
		}
		want, plainNames, _ := bind(t, plain, plainPrefix)
		got, names, ok := bind(t, schema, prefix)
		if !ok {
			return // they are refused
		}
		if got != want || len(names) != len(plainNames) {
			t.Fatalf("schema %q and prefix %q change more than names:\n%s", schema, prefix, got)
		}
		for i, name := range plainNames {
			switch {
			case strings.HasPrefix(name, plainPrefix):
				name = prefix + strings.TrimPrefix(name, plainPrefix)
			case name == plainSchema:
				name = schema
			}
			if !equal(names[i], name) {
				t.Errorf("name %d is %q, want %q", i, names[i], name)
			}
		}
	})
}

// Same tells whether two names are one where a server minds their case.
func Same(got, want string) bool { return got == want }

// Names are names that have been somebody's undoing.
var Names = []string{
	"outbox", "order", `a"b`, `"`, `""`, "a`b", "``", "a]b", "]]", "[x", "'; DROP TABLE x; --", "a'b", `\`, `a\"b`,
	"-- x", "/* x", "{ready}", "{name:x}", "$1", "?", ":1", "@p1", "%s", "a.b", " ", "a ", "\n", "\t", "日本語", "é",
	"\u202e", "😀", "SELECT", "outbox_parked", "\xff", "a\x00b", "$$", "E'", "`; --",
}

// Name returns a random name of at most so many bytes, most of whose characters mean
// something to some server.
func Name(source *rand.Rand, most int) string {
	characters := []rune("\"`[]'\\;-/*{}$?:@%. \n\t,()abcXYZ019_éß日")
	var b strings.Builder
	for range 1 + source.IntN(most/3) {
		b.WriteRune(characters[source.IntN(len(characters))])
	}
	return b.String()
}
