package skeleton_test

import (
	"slices"
	"testing"

	"github.com/outbox-suite/outbox/internal/skeleton"
)

func TestOf(t *testing.T) {
	for _, test := range []struct {
		text, want string
		names      []string
	}{
		{`SELECT 1`, `SELECT 1`, nil},
		{`"a"."b""c"`, `NAME.NAME`, []string{"a", `b"c`}},
		{`'it''s "x"' "y" -- "z` + "\n" + `""`, `'it's "x"' NAME -- "z` + "\n" + `NAME`, []string{"y", ""}},
		{`"a" ; DROP TABLE x"`, "", nil},
		{`'a`, "", nil},
	} {
		got, names, err := skeleton.Of(test.text, '"', '"')
		if got != test.want || !slices.Equal(names, test.names) || (err != nil) != (test.want == "") {
			t.Errorf("%s: %q, %q, %v", test.text, got, names, err)
		}
	}
	if got, names, err := skeleton.Of("[a]]b]", '[', ']'); got != "NAME" || names[0] != "a]b" || err != nil {
		t.Errorf("%q %q %v", got, names, err)
	}
}
