package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox/dialect"
)

// Message is what a service tells the world about its change. Topic and Type
// are required; the zero value of every other field is fine.
type Message struct {
	// ID identifies the message for good: consumers remove duplicates by it.
	// The zero UUID stands for a new one, version 7.
	ID uuid.UUID
	// Topic is where the message goes; the publisher gives it its meaning.
	Topic string
	// Key is what order is kept within: messages of one key are published in
	// the order they were enqueued. Usually the id of the aggregate. Keys are
	// compared byte for byte. An empty Key is no key, and no order, unless
	// EmptyKey is set.
	Key string
	// EmptyKey makes an empty Key a key like any other.
	EmptyKey bool
	// Type says what happened, for example "order.placed".
	Type string
	// ContentType describes Payload. Default: application/json.
	ContentType string
	// Payload is delivered byte for byte; nil and empty are kept apart.
	Payload []byte
	// Headers travel with the message. Names are ASCII without spaces, colons
	// and control characters; values are UTF-8 without CR, LF and NUL.
	Headers map[string]string
	// Revision is the version of the aggregate that the message tells of; 0 is none.
	// It is carried and not checked, unless Config.Revisions is set and the message
	// has a key: then it must be the next revision of the key, and 0 stands for that.
	Revision int64
	// Delay holds the message back for at least so long by the database's
	// clock. It takes its place in the order of its key when it is due.
	Delay time.Duration
}

// HasKey tells whether the message has a key, and so an order.
func (m Message) HasKey() bool { return m.Key != "" || m.EmptyKey }

// Limits bound what Enqueue accepts, in bytes. 0 stands for the default.
type Limits struct {
	// Payload. Default 1 MiB.
	Payload int
	// Headers bounds the headers as a JSON object. Default 16 KiB.
	Headers int
	// Key. Default and most: 512.
	Key int
	// Topic. Default and most: 255.
	Topic int
	// Type bounds Type and ContentType. Default and most: 255.
	Type int
}

const (
	defaultPayload = 1 << 20
	defaultHeaders = 16 << 10
	maxKey         = 512
	maxTopic       = 255
	maxType        = 255

	defaultContentType = "application/json"
)

func (l Limits) withDefaults() (Limits, error) {
	var errs []error
	set := func(name string, v *int, def, most int) {
		switch {
		case *v == 0:
			*v = def
		case *v < 0:
			errs = append(errs, fmt.Errorf("limits: %s is %d: give a number of bytes above 0", name, *v))
		case most > 0 && *v > most:
			errs = append(errs, fmt.Errorf("limits: %s is %d: the column holds at most %d bytes", name, *v, most))
		}
	}
	set("payload", &l.Payload, defaultPayload, 0)
	set("headers", &l.Headers, defaultHeaders, 0)
	set("key", &l.Key, maxKey, maxKey)
	set("topic", &l.Topic, maxTopic, maxTopic)
	set("type", &l.Type, maxType, maxType)
	return l, errors.Join(errs...)
}

// record checks m against the limits and turns it into what the engine stores.
func (o *Outbox) record(ctx context.Context, m Message) (dialect.Message, error) {
	if m.ContentType == "" {
		m.ContentType = defaultContentType
	}
	if m.Topic == "" {
		return dialect.Message{}, &InvalidError{Field: "topic", Reason: "is empty: say where the message goes"}
	}
	if m.Type == "" {
		return dialect.Message{}, &InvalidError{Field: "type", Reason: "is empty: say what happened"}
	}
	for _, f := range []struct {
		name, value string
		most        int
	}{
		{"topic", m.Topic, o.limits.Topic},
		{"key", m.Key, o.limits.Key},
		{"type", m.Type, o.limits.Type},
		{"content type", m.ContentType, o.limits.Type},
	} {
		if err := checkText(f.name, f.value, f.most); err != nil {
			return dialect.Message{}, err
		}
	}
	switch {
	case m.Key != "" && m.EmptyKey:
		return dialect.Message{}, &InvalidError{Field: "key", Reason: "is not empty but EmptyKey is set: clear one of them"}
	case len(m.Payload) > o.limits.Payload:
		return dialect.Message{}, &InvalidError{Field: "payload", Reason: fmt.Sprintf("has %d bytes, the limit is %d: store it elsewhere and send a reference, or raise Limits.Payload", len(m.Payload), o.limits.Payload)}
	case m.Revision < 0:
		return dialect.Message{}, &InvalidError{Field: "revision", Reason: fmt.Sprintf("is %d: give a number above 0, or 0 for none", m.Revision)}
	case m.Delay < 0:
		return dialect.Message{}, &InvalidError{Field: "delay", Reason: fmt.Sprintf("is %v: give a duration of 0 or more", m.Delay)}
	}
	headers, err := o.headers(ctx, m.Headers)
	if err != nil {
		return dialect.Message{}, err
	}
	if m.ID == (uuid.UUID{}) {
		if m.ID, err = uuid.NewV7(); err != nil {
			return dialect.Message{}, fmt.Errorf("new message id: %w", err)
		}
	}
	r := dialect.Message{
		ID: m.ID, Topic: m.Topic, Type: m.Type, ContentType: m.ContentType,
		Payload: m.Payload, Headers: headers, Revision: m.Revision, Delay: m.Delay,
	}
	if m.HasKey() {
		hash := dialect.KeyHash(m.Key)
		r.Key = sql.Null[string]{V: m.Key, Valid: true}
		r.KeyHash = sql.Null[int64]{V: hash, Valid: true}
		r.Lane = dialect.LaneOfKey(hash, o.tables.Lanes)
		if o.reviser != nil && m.Delay > 0 {
			return dialect.Message{}, &InvalidError{Field: "delay", Reason: fmt.Sprintf("is %v, but with Revisions a message with a key takes its place in the order when it is enqueued: leave the delay or the key out", m.Delay)}
		}
	} else {
		r.Lane = dialect.LaneOfID(m.ID, o.tables.Lanes)
	}
	return r, nil
}

// headers merges what Config.Inject adds below the message's own headers and
// encodes the result.
func (o *Outbox) headers(ctx context.Context, own map[string]string) (string, error) {
	all := own
	if o.inject != nil {
		all = make(map[string]string, len(own)+2)
		o.inject(ctx, all)
		maps.Copy(all, own)
	}
	if len(all) == 0 {
		return "{}", nil
	}
	for name, value := range all {
		if !validHeaderName(name) {
			return "", &InvalidError{Field: "headers", Reason: fmt.Sprintf("name %q: use visible ASCII characters other than the colon", clip(name))}
		}
		if !utf8.ValidString(value) || strings.ContainsAny(value, "\r\n\x00") {
			return "", &InvalidError{Field: "headers", Reason: fmt.Sprintf("value of %q: use UTF-8 without CR, LF and NUL, for example by encoding it as base64", clip(name))}
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		return "", &InvalidError{Field: "headers", Reason: err.Error()}
	}
	if len(text) > o.limits.Headers {
		return "", &InvalidError{Field: "headers", Reason: fmt.Sprintf("have %d bytes as JSON, the limit is %d: shorten them or raise Limits.Headers", len(text), o.limits.Headers)}
	}
	return string(text), nil
}

func validHeaderName(name string) bool {
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c >= 0x7f || c == ':' {
			return false
		}
	}
	return name != ""
}

func checkText(field, value string, most int) error {
	switch {
	case len(value) > most:
		return &InvalidError{Field: field, Reason: fmt.Sprintf("has %d bytes, the limit is %d", len(value), most)}
	case !utf8.ValidString(value):
		return &InvalidError{Field: field, Reason: "is not valid UTF-8: encode it, for example as base64"}
	case strings.ContainsRune(value, 0):
		return &InvalidError{Field: field, Reason: "contains a NUL character: remove it"}
	}
	return nil
}

// clip keeps a hostile name from flooding an error text.
func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}
