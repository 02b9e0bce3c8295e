package shell_test

import (
	"os/exec"
	"testing"

	"github.com/outbox-suite/outbox/internal/shell"
)

// A shell takes what is quoted for the one word that it was.
func TestQuote(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("there is no sh")
	}
	for _, s := range []string{"", "plain-1.2:/@", "it's", `$(id) "x" \ &;*`, "a\nb", "-n", "日本", "~", "#", "a b"} {
		out, err := exec.CommandContext(t.Context(), sh, "-c", "printf %s. "+shell.Quote(s)).Output()
		if err != nil || string(out) != s+"." {
			t.Errorf("%q comes back as %q, %v", s, out, err)
		}
	}
	if got := shell.Quote("plain-1.2:/@"); got != "plain-1.2:/@" {
		t.Errorf("plain text is written as %s", got)
	}
}
