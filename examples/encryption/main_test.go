package main

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
)

func TestRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "orders.db")
	var out bytes.Buffer
	if err := run(t.Context(), path, &out); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, want := range []string{
		`the consumer reads: {"card":"4111 1111 1111 1110"}`, `the consumer reads: {"card":"4111 1111 1111 1111"}`,
		`"enckeyid":"2026"`, `"enckeyid":"2027"`,
	} {
		if strings.Count(text, want) != 1 {
			t.Errorf("%q is there %d times in:\n%s", want, strings.Count(text, want), text)
		}
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "the broker") && strings.Contains(line, "4111 1111") {
			t.Errorf("the broker reads %s", line)
		}
	}
}

// counted is a key ring that counts.
type counted struct {
	Keyring
	mu             sync.Mutex
	wraps, unwraps int
}

func (c *counted) Wrap(ctx context.Context, k []byte) (string, []byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wraps++
	return c.Keyring.Wrap(ctx, k)
}

func (c *counted) Unwrap(ctx context.Context, id string, w []byte) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unwraps++
	return c.Keyring.Unwrap(ctx, id, w)
}

func keyring() *counted {
	return &counted{Keyring: Keyring{Current: "a", Keys: map[string][]byte{"a": newKey(), "b": newKey()}}}
}

var plain = outbox.Message{
	ID: uuid.MustParse("0197c3a0-5b1e-7c3d-9a52-3f4b8d0e6a01"), Topic: "orders", Key: "42", Type: "order.placed",
	ContentType: "application/json", Payload: []byte(`{"card": "hunter2"}`), Headers: map[string]string{"tenant": "blue"},
}

func TestOpensWhatWasSealed(t *testing.T) {
	for name, change := range map[string]func(*outbox.Message){
		"as it is":     func(*outbox.Message) {},
		"no key":       func(m *outbox.Message) { m.Key = "" },
		"empty key":    func(m *outbox.Message) { m.Key, m.EmptyKey = "", true },
		"empty":        func(m *outbox.Message) { m.Payload = []byte{} },
		"no payload":   func(m *outbox.Message) { m.Payload = nil },
		"no type said": func(m *outbox.Message) { m.ContentType = "" },
	} {
		t.Run(name, func(t *testing.T) {
			m := plain
			m.Headers = maps.Clone(plain.Headers)
			change(&m)
			e := New(keyring())
			sealed, err := e.Seal(t.Context(), m)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(sealed.Payload, []byte("hunter2")) || (m.Payload != nil && sealed.ContentType != "application/octet-stream") {
				t.Errorf("sealed is %+v", sealed)
			}
			if len(m.Headers) != 1 {
				t.Errorf("the headers of the caller were changed: %v", m.Headers)
			}
			opened, err := e.Open(t.Context(), sealed)
			if err != nil || !reflect.DeepEqual(opened, m) {
				t.Errorf("opened is %+v, %v", opened, err)
			}
		})
	}
	sealed, err := New(keyring()).Seal(t.Context(), outbox.Message{Topic: "t", Type: "y", Payload: []byte("x")})
	if err != nil || sealed.ID.Version() != 7 {
		t.Errorf("id %v, %v", sealed.ID, err)
	}
}

func TestRefusesWhatWasChanged(t *testing.T) {
	keys := keyring()
	e := New(keys)
	other, err := New(keys).Seal(t.Context(), plain)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*outbox.Message){
		"payload":      func(m *outbox.Message) { m.Payload[len(m.Payload)-1] ^= 1 },
		"cut":          func(m *outbox.Message) { m.Payload = m.Payload[:5] },
		"emptied":      func(m *outbox.Message) { m.Payload = []byte{} },
		"id":           func(m *outbox.Message) { m.ID[0] ^= 1 },
		"key":          func(m *outbox.Message) { m.Key = "43" },
		"key and type": func(m *outbox.Message) { m.Key, m.Topic = "42o", "rders" },
		"no key":       func(m *outbox.Message) { m.Key = "" },
		"topic":        func(m *outbox.Message) { m.Topic = "mails" },
		"type":         func(m *outbox.Message) { m.Type = "order.paid" },
		"content type": func(m *outbox.Message) { m.Headers[headerContentType] = "text/html" },
		"data key":     func(m *outbox.Message) { m.Headers[headerDataKey] = other.Headers[headerDataKey] },
		"no data key":  func(m *outbox.Message) { delete(m.Headers, headerDataKey) },
		"key's id":     func(m *outbox.Message) { m.Headers[headerKeyID] = "b" },
		"not sealed":   func(m *outbox.Message) { *m = plain },
	} {
		t.Run(name, func(t *testing.T) {
			sealed, err := e.Seal(t.Context(), plain)
			if err != nil {
				t.Fatal(err)
			}
			change(&sealed)
			if opened, err := e.Open(t.Context(), sealed); !errors.Is(err, ErrOpen) || strings.Contains(err.Error(), "hunter2") || bytes.Equal(opened.Payload, plain.Payload) && name != "not sealed" {
				t.Errorf("opened %+v, %v", opened, err)
			}
		})
	}
	sealed, err := e.Seal(t.Context(), plain)
	if err != nil {
		t.Fatal(err)
	}
	delete(keys.Keys, "a")
	if _, err := New(keys).Open(t.Context(), sealed); !errors.Is(err, errNoKey) || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("without its key: %v", err)
	}
}

func TestDataKeysAreFew(t *testing.T) {
	keys := keyring()
	e := New(keys)
	now := time.Now()
	e.now = func() time.Time { return now }
	seal := func() outbox.Message {
		t.Helper()
		m, err := e.Seal(t.Context(), plain)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	consumer := New(keys)
	for range 3 {
		if _, err := consumer.Open(t.Context(), seal()); err != nil {
			t.Error(err)
		}
	}
	if keys.wraps != 1 || keys.unwraps != 1 {
		t.Errorf("%d wraps and %d unwraps for 3 messages", keys.wraps, keys.unwraps)
	}
	e.sealing.left = 0
	seal()
	now = now.Add(ageOfKey)
	keys.Current = "b"
	if m := seal(); keys.wraps != 3 || m.Headers[headerKeyID] != "b" {
		t.Errorf("%d wraps, under key %s", keys.wraps, m.Headers[headerKeyID])
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				m, err := e.Seal(t.Context(), plain)
				if err == nil {
					_, err = consumer.Open(t.Context(), m)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
