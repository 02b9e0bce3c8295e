// Package cloudevents writes messages as CloudEvents 1.0 in the JSON format,
// one event a line.
//
// # Attributes
//
//	id               the message's id
//	source           what the caller of Append names: the producing system
//	type             the message's type
//	subject          the key; absent without a key and for an empty key
//	time             when the message was enqueued, by the database's clock, UTC
//	datacontenttype  the message's content type
//	data             the payload, if the content type is JSON and the payload is
//	                 valid JSON; unchanged but for line breaks between its tokens
//	data_base64      any other payload; "" when it is empty, absent when it is nil
//
// Extension attributes:
//
//	topic      string: the message's topic
//	sequence   string: the decimal place in the order of the key; compare as numbers
//	lane       integer: the lane it was read from
//	epoch      string: the decimal epoch of the lease it was published under
//	attempt    integer: counts from 1
//	emptykey   true when the key is the empty string, which a subject cannot be;
//	           absent otherwise
//	replay     integer: how often an operator replayed it; absent when never
//	revision   string: the decimal revision of the aggregate; absent when none
//	headers    string: a JSON object of the headers that are no attributes
//	           themselves; absent when there are none
//
// Numbers of 64 bits are strings because an Integer of CloudEvents has 32.
//
// A header is an extension attribute of its own, a string, when its name is an
// attribute name (only a-z and 0-9) that is not used above or by the
// specification, and its value has no control characters: so traceparent and
// tracestate are where tracing tools look for them. All other headers are in
// headers, names and values unchanged.
//
// A consumer removes duplicates by source and id; a replay keeps both. [Parse]
// reads an event back.
//
// [Attributes] and [FromAttributes] are for the bindings of brokers in their binary
// mode, where attributes are headers and the payload is the body.
package cloudevents

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"mime"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/outbox-suite/outbox/relay"
)

// ContentType is the media type of one event in the JSON format.
const ContentType = "application/cloudevents+json; charset=utf-8"

// DefaultSource is the source attribute where none is configured.
const DefaultSource = "/outbox"

// timeFormat is RFC 3339 with the microseconds a database keeps.
const timeFormat = "2006-01-02T15:04:05.999999Z07:00"

// ours are the attribute names that a header cannot take.
var ours = map[string]bool{
	"specversion": true, "id": true, "source": true, "type": true, "subject": true,
	"time": true, "datacontenttype": true, "dataschema": true, "data": true,
	"topic": true, "sequence": true, "lane": true, "epoch": true, "attempt": true,
	"emptykey": true, "replay": true, "revision": true, "headers": true, PartitionKey: true,
}

// PartitionKey is the name of the partitioning extension's attribute, which some
// bindings add with the key as its value. It is read as the key's repetition, so a
// header of that name is among the headers that are no attributes.
const PartitionKey = "partitionkey"

// CheckSource tells whether source can be the source attribute: a non-empty
// URI reference.
func CheckSource(source string) error {
	if source == "" {
		return errors.New("source is empty: name the producing system with a URI reference, for example /shop/orders")
	}
	if _, err := url.Parse(source); err != nil || strings.ContainsFunc(source, notURI) {
		return errors.New("source is not a URI reference: name the producing system with one, for example /shop/orders")
	}
	return nil
}

func notURI(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"<>\\^`{|}", r) }

// Append appends the message to dst as one event without a line break, and
// returns the result. It is always valid JSON on one line, whatever the
// message holds: text that is not UTF-8 has its bad bytes replaced by U+FFFD,
// except in the payload, which is then in data_base64.
func Append(dst []byte, source string, m *relay.Message) []byte {
	dst = append(dst, Start...)
	dst = appendText(dst, "id", m.ID.String())
	dst = appendText(dst, "source", source)
	dst = appendText(dst, "type", m.Type)
	if m.Key != "" {
		dst = appendText(dst, "subject", m.Key)
	}
	dst = append(dst, `,"time":"`...)
	dst = m.CreatedAt.UTC().Truncate(time.Microsecond).AppendFormat(dst, timeFormat)
	dst = append(dst, '"')
	if m.ContentType != "" {
		dst = appendText(dst, "datacontenttype", m.ContentType)
	}
	dst = appendText(dst, "topic", m.Topic)
	dst = append(dst, `,"sequence":"`...)
	dst = strconv.AppendInt(dst, m.Seq, 10)
	dst = append(dst, `","lane":`...)
	dst = strconv.AppendInt(dst, int64(m.Lane), 10)
	dst = append(dst, `,"epoch":"`...)
	dst = strconv.AppendInt(dst, m.Epoch, 10)
	dst = append(dst, `","attempt":`...)
	dst = strconv.AppendInt(dst, int64(m.Attempt), 10)
	if m.HasKey() && m.Key == "" {
		dst = append(dst, `,"emptykey":true`...)
	}
	if m.Replay != 0 {
		dst = append(dst, `,"replay":`...)
		dst = strconv.AppendInt(dst, int64(m.Replay), 10)
	}
	if m.Revision != 0 {
		dst = append(dst, `,"revision":"`...)
		dst = strconv.AppendInt(dst, m.Revision, 10)
		dst = append(dst, '"')
	}
	dst = appendHeaders(dst, m.Headers)
	dst = appendData(dst, m.ContentType, m.Payload)
	return append(dst, '}')
}

// AppendAttribute adds an attribute, a string, to the event that [Append] has
// written at the end of dst. Its name must be an attribute name that the event does
// not have.
func AppendAttribute(dst []byte, name, value string) []byte {
	return append(appendText(dst[:len(dst)-1], name, value), '}')
}

// Start is what every event that [Append] writes begins with.
const Start = `{"specversion":"1.0"`

func appendHeaders(dst []byte, headers map[string]string) []byte {
	if len(headers) == 0 {
		return dst
	}
	var rest []string
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if value := headers[name]; isAttribute(name) && isString(value) {
			dst = appendText(dst, name, value)
		} else {
			rest = append(rest, name)
		}
	}
	if len(rest) == 0 {
		return dst
	}
	object := []byte("{")
	for i, name := range rest {
		if i > 0 {
			object = append(object, ',')
		}
		object = appendQuoted(object, name)
		object = append(object, ':')
		object = appendQuoted(object, headers[name])
	}
	object = append(object, '}')
	return appendText(dst, "headers", string(object))
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
	return utf8.ValidString(value) && !strings.ContainsFunc(value, func(r rune) bool {
		return unicode.IsControl(r) || r&0xfffe == 0xfffe || r >= 0xfdd0 && r <= 0xfdef // control characters, noncharacters
	})
}

func appendData(dst []byte, contentType string, payload []byte) []byte {
	switch {
	case payload == nil:
		return dst
	case isJSON(contentType) && utf8.Valid(payload) && json.Valid(payload):
		dst = append(dst, `,"data":`...)
		if !bytes.ContainsAny(payload, "\r\n") {
			return append(dst, payload...)
		}
		line := bytes.NewBuffer(dst)
		_ = json.Compact(line, payload) // it is valid
		return line.Bytes()
	default:
		dst = append(dst, `,"data_base64":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, payload)
		return append(dst, '"')
	}
}

// isJSON tells whether the media type declares JSON.
func isJSON(contentType string) bool {
	if contentType == "application/json" {
		return true
	}
	mediaType, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return false
	}
	_, subtype, _ := strings.Cut(mediaType, "/")
	return subtype == "json" || strings.HasSuffix(subtype, "+json")
}

// appendText appends a further member with a string value.
func appendText(dst []byte, name, value string) []byte {
	dst = append(dst, ',', '"')
	dst = append(dst, name...)
	dst = append(dst, '"', ':')
	return appendQuoted(dst, value)
}

// appendQuoted appends a JSON string. Unlike json.Marshal it leaves <, > and &
// readable. U+2028 and U+2029 are escaped because some readers take them for
// the end of a line.
func appendQuoted(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	plain := 0 // where what is not appended yet, and needs no escape, begins
	for i := 0; i < len(s); {
		if c := s[i]; c >= ' ' && c < 0x7f && c != '"' && c != '\\' {
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		dst = append(dst, s[plain:i]...)
		i += size
		plain = i
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < 0xa0: // a control character
			dst = append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&0xf])
		case r == '\u2028' || r == '\u2029':
			dst = append(dst, '\\', 'u', '2', '0', '2', hex[r&0xf])
		default:
			dst = utf8.AppendRune(dst, r) // U+FFFD for a bad byte
		}
	}
	dst = append(dst, s[plain:]...)
	return append(dst, '"')
}
