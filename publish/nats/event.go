package nats

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/outbox-suite/outbox/relay"
)

const (
	prefix     = "ce-"
	timeFormat = "2006-01-02T15:04:05.999999Z07:00"
)

// ours are the attribute names that a header of the message cannot take.
var ours = map[string]bool{
	"specversion": true, "id": true, "source": true, "type": true, "subject": true,
	"time": true, "datacontenttype": true, "dataschema": true, "data": true,
	"topic": true, "sequence": true, "lane": true, "epoch": true, "attempt": true,
	"emptykey": true, "replay": true, "revision": true, "headers": true, "nodata": true,
}

// encode makes what is sent of a message, with a copy of its payload.
func (p *Publisher) encode(m *relay.Message) (*nats.Msg, error) {
	subject := p.cfg.Subject(m.Topic)
	if err := checkSubject(subject); err != nil {
		return nil, relay.Permanent(fmt.Errorf("nats publisher: topic %q: %w", m.Topic, err))
	}
	h := make(nats.Header, 16+len(m.Headers))
	set := func(name, value string) { h[prefix+name] = []string{escape(value)} }
	set("specversion", "1.0")
	set("id", m.ID.String())
	set("source", p.cfg.Source)
	set("type", m.Type)
	if m.Key != "" {
		set("subject", m.Key)
	}
	set("time", m.CreatedAt.UTC().Truncate(time.Microsecond).Format(timeFormat))
	if m.ContentType != "" {
		set("datacontenttype", m.ContentType)
	}
	set("topic", m.Topic)
	set("sequence", strconv.FormatInt(m.Seq, 10))
	set("lane", strconv.Itoa(m.Lane))
	set("epoch", strconv.FormatInt(m.Epoch, 10))
	set("attempt", strconv.Itoa(m.Attempt))
	if m.HasKey() && m.Key == "" {
		set("emptykey", "true")
	}
	if m.Replay != 0 {
		set("replay", strconv.Itoa(m.Replay))
	}
	if m.Revision != 0 {
		set("revision", strconv.FormatInt(m.Revision, 10))
	}
	if m.Payload == nil {
		set("nodata", "true")
	}
	rest := make(map[string]string)
	for name, value := range m.Headers {
		switch {
		case !utf8.ValidString(name) || !utf8.ValidString(value):
			return nil, relay.Permanent(fmt.Errorf("nats publisher: topic %q: header %q is not UTF-8: encode it, for example as base64", m.Topic, name))
		case isAttribute(name) && isString(value):
			set(name, value)
		default:
			rest[name] = value
		}
	}
	if len(rest) > 0 {
		var text bytes.Buffer
		e := json.NewEncoder(&text)
		e.SetEscapeHTML(false)
		if err := e.Encode(rest); err != nil {
			return nil, relay.Permanent(fmt.Errorf("nats publisher: topic %q: headers: %w", m.Topic, err))
		}
		set("headers", strings.TrimSuffix(text.String(), "\n"))
	}
	h[nats.MsgIdHdr] = []string{duplicateID(m)}
	if p.cfg.Stream != "" {
		h[nats.ExpectedStreamHdr] = []string{p.cfg.Stream}
	}
	return &nats.Msg{Subject: subject, Header: h, Data: bytes.Clone(m.Payload)}, nil
}

// duplicateID is what the stream removes duplicates by: the message's id, and a
// new one for each replay.
func duplicateID(m *relay.Message) string {
	if m.Replay == 0 {
		return m.ID.String()
	}
	return m.ID.String() + "-replay-" + strconv.Itoa(m.Replay)
}

// checkSubject refuses what is no subject to publish to, and the server's own.
func checkSubject(subject string) error {
	switch {
	case subject == "":
		return errors.New("its subject is empty")
	case strings.HasPrefix(subject, "$"), strings.HasPrefix(subject, "_INBOX."):
		return fmt.Errorf("subject %q belongs to the server: choose another topic", subject)
	case strings.ContainsFunc(subject, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '*' || r == '>' }), !utf8.ValidString(subject):
		return fmt.Errorf("subject %q has a space, a control character or a wildcard: choose another topic, or map it", subject)
	case strings.HasPrefix(subject, "."), strings.HasSuffix(subject, "."), strings.Contains(subject, ".."):
		return fmt.Errorf("subject %q has an empty part: choose another topic, or map it", subject)
	}
	return nil
}

// escape percent-encodes what the bindings of CloudEvents to headers say.
func escape(s string) string {
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

// unescape undoes escape; what is no escape stays.
func unescape(s string) string {
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

func isAttribute(name string) bool {
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return name != "" && !ours[name]
}

// isString tells whether the value is a String of CloudEvents.
func isString(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool {
		return unicode.IsControl(r) || r&0xfffe == 0xfffe || r >= 0xfdd0 && r <= 0xfdef // control characters, noncharacters
	})
}

// Decode reads back a message that a [Publisher] has sent, for a consumer: all
// that a relay knows of it but Age. The payload is data itself.
func Decode(header nats.Header, data []byte) (relay.Message, error) {
	var m relay.Message
	var errs []error
	if v := header.Get(prefix + "specversion"); v != "1.0" {
		return m, fmt.Errorf("nats: header ce-specversion is %q: this is no event of an outbox", v)
	}
	number := func(name, value string, bits int) int64 {
		n, err := strconv.ParseInt(value, 10, bits)
		if err != nil {
			errs = append(errs, fmt.Errorf("nats: header ce-%s is %q, no number", name, value))
		}
		return n
	}
	m.Payload = data
	if m.Payload == nil {
		m.Payload = []byte{}
	}
	for full, values := range header {
		name, is := strings.CutPrefix(full, prefix)
		if !is || len(values) == 0 {
			continue
		}
		value := unescape(values[0])
		var err error
		switch name {
		case "specversion", "source":
		case "id":
			m.ID, err = uuid.Parse(value)
		case "type":
			m.Type = value
		case "subject":
			m.Key = value
		case "time":
			m.CreatedAt, err = time.Parse(time.RFC3339Nano, value)
		case "datacontenttype":
			m.ContentType = value
		case "topic":
			m.Topic = value
		case "sequence":
			m.Seq = number(name, value, 64)
		case "lane":
			m.Lane = int(number(name, value, 0))
		case "epoch":
			m.Epoch = number(name, value, 64)
		case "attempt":
			m.Attempt = int(number(name, value, 0))
		case "emptykey":
			m.EmptyKey = value == "true"
		case "replay":
			m.Replay = int(number(name, value, 0))
		case "revision":
			m.Revision = number(name, value, 64)
		case "nodata":
			if value == "true" {
				m.Payload = nil
			}
		case "headers":
			var rest map[string]string
			err = json.Unmarshal([]byte(value), &rest)
			for n, v := range rest {
				addHeader(&m, n, v)
			}
		default:
			addHeader(&m, name, value)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("nats: header %s: %w", full, err))
		}
	}
	return m, errors.Join(errs...)
}

func addHeader(m *relay.Message, name, value string) {
	if m.Headers == nil {
		m.Headers = make(map[string]string)
	}
	m.Headers[name] = value
}
