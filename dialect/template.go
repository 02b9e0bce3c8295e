package dialect

import (
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
)

// Expand fills the names of tables into a statement. In the text
//
//	{ready} {parked} {done} {lane} {inbox} {meta} {revision} {progress} {audit}
//
// stand for the qualified, quoted tables, {name:x} for the quoted, unqualified
// name PREFIX_x (an index or a constraint), {schema} for the quoted schema,
// {lanes} for the number of lanes, and {wrap} for 2^64 modulo the number of
// lanes, which the lane of a negative key hash needs in signed arithmetic:
//
//	lane = ((key_hash % lanes) + lanes + (key_hash < 0 ? wrap : 0)) % lanes
//
// quote quotes one identifier the engine's way.
func Expand(text string, t Tables, quote func(string) string) string {
	qualified := func(suffix string) string {
		name := quote(t.Prefix + suffix)
		if t.Schema == "" {
			return name
		}
		return quote(t.Schema) + "." + name
	}
	wrap := new(big.Int).Lsh(big.NewInt(1), 64)
	wrap.Mod(wrap, big.NewInt(int64(t.Lanes)))
	// One pass, so that a name that looks like a placeholder stays a name.
	return placeholder.ReplaceAllStringFunc(text, func(p string) string {
		switch token := p[1 : len(p)-1]; token {
		case "ready":
			return qualified("")
		case "parked", "done", "lane", "inbox", "meta", "revision", "progress", "audit":
			return qualified("_" + token)
		case "schema":
			return quote(t.Schema)
		case "lanes":
			return strconv.Itoa(t.Lanes)
		case "wrap":
			return wrap.String()
		default:
			return quote(t.Prefix + "_" + strings.TrimPrefix(token, "name:"))
		}
	})
}

var placeholder = regexp.MustCompile(`\{(?:ready|parked|done|lane|inbox|meta|revision|progress|audit|schema|lanes|wrap|name:[a-z_]+)\}`)

// Validate checks what holds for every engine. longest is the engine's limit
// for one identifier in bytes, and suffix the longest that a name of the
// schema adds to the prefix.
func (t Tables) Validate(longest, suffix int) error {
	switch {
	case t.Prefix == "":
		return fmt.Errorf("prefix is empty: name the table of ready messages, for example %q", "outbox")
	case strings.ContainsRune(t.Prefix, 0) || strings.ContainsRune(t.Schema, 0):
		return fmt.Errorf("schema or prefix contains a NUL character: remove it")
	case len(t.Prefix)+suffix > longest:
		return fmt.Errorf("prefix has %d bytes: shorten it to %d, so that every name fits the engine's %d", len(t.Prefix), longest-suffix, longest)
	case len(t.Schema) > longest:
		return fmt.Errorf("schema has %d bytes: the engine's names have at most %d", len(t.Schema), longest)
	case t.Lanes < 1 || t.Lanes > MaxLanes:
		return fmt.Errorf("lanes is %d: choose 1 to %d", t.Lanes, MaxLanes)
	}
	return nil
}
