package redact_test

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/outbox-suite/outbox/internal/redact"
)

func TestURL(t *testing.T) {
	address := "nats://app:hunter2@host:"
	_, err := url.Parse(address + "port") // which is none
	for _, err := range []error{err, fmt.Errorf("connect: %w", err)} {
		if !strings.Contains(err.Error(), "hunter2") {
			t.Fatalf("%v has nothing to hide", err)
		}
		if got := redact.URL(err); got == nil || strings.Contains(got.Error(), "hunter2") {
			t.Errorf("got %v", got)
		}
	}
	other := errors.New("no url")
	if got := redact.URL(other); got != other { //nolint:errorlint // it must be the same
		t.Errorf("another error: got %v", got)
	}
	if got := redact.URL(nil); got != nil {
		t.Errorf("no error: got %v", got)
	}
}

func TestTorn(t *testing.T) {
	for dsn, want := range map[string]bool{
		"postgres://app:secret@host:1/db":              false,
		"postgres://app:sec%40ret@host/db%40x?a=b@c&d": false,
		"postgres://host/db":                           false,
		"postgres://":                                  false,
		"host=h password=a@b@c":                        false,
		"app:a@b@tcp(host)/db":                         false,
		"postgres://app:sec@ret@host/db":               true,
		"postgres://app:sec/ret@host/db":               true,
		"postgres://app:/secret@host/db":               true,
		"postgres://app:sec?ret@host/db":               true,
		"postgres://app:sec?a=b&ret@host/db":           true,
		"postgres://app:sec#ret@host/db":               true,
	} {
		if got := redact.Torn(dsn); got != want {
			t.Errorf("%s: %v, want %v", dsn, got, want)
		}
	}
}
