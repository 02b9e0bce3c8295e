package outbox_test

import (
	"testing"
	"time"

	"github.com/outbox-suite/outbox"
)

// TestFilterString: a selection reads as the flags that make it, wherever its texts end.
func TestFilterString(t *testing.T) {
	for want, f := range map[string]outbox.Filter{
		"":                      {},
		"--all":                 {All: true},
		`--key ''`:              {EmptyKey: true},
		`--key 'a b' --topic t`: {Key: "a b", Topic: "t"},
		`--key '$(x)'\''"' --type '` + "`y`" + `'`:              {Key: `$(x)'"`, Type: "`y`"},
		"--type '--all\n'":                                      {Type: "--all\n"},
		"--state dead --state held --since 2h0m0s --until 1m0s": {States: []string{outbox.Dead, outbox.Held}, Since: 2 * time.Hour, Until: time.Minute},
	} {
		if got := f.String(); got != want {
			t.Errorf("%+v is %q, want %q", f, got, want)
		}
	}
}
