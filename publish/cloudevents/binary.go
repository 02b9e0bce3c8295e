package cloudevents

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox/relay"
)

// Attribute is an attribute of an event in a binding's binary mode, in which the
// attributes are headers and the payload is the body. Neither part is escaped.
type Attribute struct {
	Name, Value string
}

// noData is an attribute of the binary mode alone, where a body may not tell a
// nil payload from an empty one.
const noData = "nodata"

// Attributes returns the attributes of a message in the binary mode: those of
// the package's documentation but data and data_base64, all as strings, and
// nodata, which is true when the payload is nil and absent otherwise. It is an
// error when a header is not UTF-8, which no attempt will cure.
func Attributes(source string, m *relay.Message) ([]Attribute, error) {
	all := make([]Attribute, 0, 16+len(m.Headers))
	add := func(name, value string) { all = append(all, Attribute{name, value}) }
	add("specversion", "1.0")
	add("id", m.ID.String())
	add("source", source)
	add("type", m.Type)
	if m.Key != "" {
		add("subject", m.Key)
	}
	add("time", m.CreatedAt.UTC().Truncate(time.Microsecond).Format(timeFormat))
	if m.ContentType != "" {
		add("datacontenttype", m.ContentType)
	}
	add("topic", m.Topic)
	add("sequence", strconv.FormatInt(m.Seq, 10))
	add("lane", strconv.Itoa(m.Lane))
	add("epoch", strconv.FormatInt(m.Epoch, 10))
	add("attempt", strconv.Itoa(m.Attempt))
	if m.HasKey() && m.Key == "" {
		add("emptykey", "true")
	}
	if m.Replay != 0 {
		add("replay", strconv.Itoa(m.Replay))
	}
	if m.Revision != 0 {
		add("revision", strconv.FormatInt(m.Revision, 10))
	}
	if m.Payload == nil {
		add(noData, "true")
	}
	rest := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		switch value := m.Headers[name]; {
		case !utf8.ValidString(name) || !utf8.ValidString(value):
			return nil, fmt.Errorf("header %q is not UTF-8: encode it, for example as base64", name)
		case isAttribute(name) && name != noData && isString(value):
			add(name, value)
		default:
			rest[name] = value
		}
	}
	if len(rest) > 0 {
		var text bytes.Buffer
		e := json.NewEncoder(&text)
		e.SetEscapeHTML(false)
		if err := e.Encode(rest); err != nil {
			return nil, fmt.Errorf("headers: %w", err)
		}
		add("headers", strings.TrimSuffix(text.String(), "\n"))
	}
	return all, nil
}

// FromAttributes reads back a message from what [Attributes] made of it: all
// that a relay knows of it but Age. The payload is the body itself, and nil or
// empty as the attributes say. An unknown attribute is a header.
func FromAttributes(attributes []Attribute, body []byte) (relay.Message, error) {
	var m relay.Message
	var errs []error
	number := func(a Attribute, bits int) int64 {
		n, err := strconv.ParseInt(a.Value, 10, bits)
		if err != nil {
			errs = append(errs, fmt.Errorf("attribute %s is %q, no number", a.Name, a.Value))
		}
		return n
	}
	header := func(name, value string) {
		if m.Headers == nil {
			m.Headers = make(map[string]string)
		}
		m.Headers[name] = value
	}
	m.Payload = body
	if m.Payload == nil {
		m.Payload = []byte{}
	}
	version := ""
	for _, a := range attributes {
		var err error
		switch a.Name {
		case "specversion":
			version = a.Value
		case "source", PartitionKey:
		case "id":
			m.ID, err = uuid.Parse(a.Value)
		case "type":
			m.Type = a.Value
		case "subject":
			m.Key = a.Value
		case "time":
			m.CreatedAt, err = time.Parse(time.RFC3339Nano, a.Value)
		case "datacontenttype":
			m.ContentType = a.Value
		case "topic":
			m.Topic = a.Value
		case "sequence":
			m.Seq = number(a, 64)
		case "lane":
			m.Lane = int(number(a, 0))
		case "epoch":
			m.Epoch = number(a, 64)
		case "attempt":
			m.Attempt = int(number(a, 0))
		case "emptykey":
			m.EmptyKey = a.Value == "true"
		case "replay":
			m.Replay = int(number(a, 0))
		case "revision":
			m.Revision = number(a, 64)
		case noData:
			if a.Value == "true" {
				m.Payload = nil
			}
		case "headers":
			var rest map[string]string
			err = json.Unmarshal([]byte(a.Value), &rest)
			for name, value := range rest {
				header(name, value)
			}
		default:
			header(a.Name, a.Value)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("attribute %s: %w", a.Name, err))
		}
	}
	if version != "1.0" {
		return relay.Message{}, fmt.Errorf("attribute specversion is %q: this is no event of an outbox", version)
	}
	return m, errors.Join(errs...)
}

// Escape percent-encodes a value for headers that hold printable ASCII alone, as
// the bindings of HTTP and NATS say.
func Escape(s string) string {
	const hex = "0123456789ABCDEF"
	n := 0
	for i := range len(s) {
		if mustEscape(s[i]) {
			n++
		}
	}
	if n == 0 {
		return s
	}
	b := make([]byte, 0, len(s)+2*n)
	for i := range len(s) {
		if c := s[i]; mustEscape(c) {
			b = append(b, '%', hex[c>>4], hex[c&15])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

func mustEscape(c byte) bool { return c <= ' ' || c > '~' || c == '"' || c == '%' }

// Unescape undoes [Escape]; what is no escape stays.
func Unescape(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil {
				b = append(b, byte(c))
				i += 2
				continue
			}
		}
		b = append(b, s[i])
	}
	return string(b)
}
