package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
)

// lineError is a line that was refused.
type lineError struct {
	line int // from 1
	err  error
}

func (e lineError) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.err) }

func (e lineError) Unwrap() error { return e.err }

// lines reads lines of bounded length.
type lines struct {
	r      *bufio.Reader
	most   int
	number int // of the line last read
	buf    []byte
}

// next returns the next line that is not blank, valid until the next call, or
// io.EOF.
func (l *lines) next() ([]byte, error) {
	for {
		line, err := l.read()
		if err != nil {
			return nil, err
		}
		if l.number == 1 {
			line = bytes.TrimPrefix(line, []byte("\ufeff")) // some editors' byte order mark
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return line, nil
		}
	}
}

func (l *lines) read() ([]byte, error) {
	l.buf = l.buf[:0]
	for {
		part, err := l.r.ReadSlice('\n')
		if len(l.buf) == 0 && len(part) > 0 {
			l.number++
		}
		if len(l.buf)+len(part) > l.most {
			return nil, lineError{l.number, fmt.Errorf("has more than %d bytes: split the message, send a reference, or raise --max-payload", l.most)}
		}
		l.buf = append(l.buf, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(l.buf) > 0:
			return l.buf, nil
		case err != nil:
			return nil, err
		default:
			return l.buf, nil
		}
	}
}

// parse turns a line into a message. given tells whether the line gives the id.
// Names are compared exactly; a name that is unknown or given twice is refused.
func parse(line []byte) (m outbox.Message, given bool, err error) {
	if !utf8.Valid(line) {
		return m, false, errors.New("is not valid UTF-8: give bytes as data_base64")
	}
	d := json.NewDecoder(bytes.NewReader(line))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return m, false, errors.New("is not a JSON object")
	}
	var seen []string
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return m, false, syntax(err)
		}
		name := t.(string) // the decoder lets nothing else be a name
		if slices.Contains(seen, name) {
			return m, false, fmt.Errorf("field %s is given twice", quoted(name))
		}
		seen = append(seen, name)
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return m, false, syntax(err)
		}
		if name == "id" {
			given = true
		}
		if err := set(&m, name, raw); err != nil {
			return m, false, err
		}
	}
	if _, err := d.Token(); err != nil {
		return m, false, syntax(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return m, false, errors.New("goes on behind the JSON object: one object a line")
	}
	if slices.Contains(seen, "data") && slices.Contains(seen, "data_base64") {
		return m, false, errors.New("has data and data_base64: give one of them")
	}
	return m, given, nil
}

// syntax reports what is wrong with the JSON.
func syntax(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return errors.New("is not valid JSON: it ends too early")
	}
	return fmt.Errorf("is not valid JSON: %w", err)
}

// fieldNames are for the error of an unknown one.
const fieldNames = "topic, key, type, data, data_base64, id, headers, content_type, available_in, revision"

// set sets a field of the message.
func set(m *outbox.Message, name string, raw json.RawMessage) error {
	var err error
	switch name {
	case "topic":
		m.Topic, err = text(name, raw)
	case "type":
		m.Type, err = text(name, raw)
	case "content_type":
		m.ContentType, err = text(name, raw)
	case "key":
		if string(raw) == "null" {
			return nil // no key
		}
		m.Key, err = text(name, raw)
		m.EmptyKey = m.Key == ""
	case "id":
		m.ID, err = id(raw)
	case "data":
		m.Payload = raw
	case "data_base64":
		m.Payload, err = binary(raw)
	case "headers":
		m.Headers, err = headers(raw)
	case "available_in":
		m.Delay, err = delay(raw)
	case "revision":
		if json.Unmarshal(raw, &m.Revision) != nil || string(raw) == "null" {
			err = errors.New("revision is not a whole number")
		}
	default:
		err = fmt.Errorf("field %s is unknown: use %s", quoted(name), fieldNames)
	}
	return err
}

// text is a JSON string. Half a surrogate pair, which the decoder would replace,
// is refused: it would make different keys one.
func text(name string, raw json.RawMessage) (string, error) {
	var s string
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &s) != nil {
		return "", fmt.Errorf("%s is not a string", name)
	}
	const replaced = "\ufffd"
	if strings.Contains(s, replaced) {
		plain := strings.Count(string(raw), replaced) + strings.Count(strings.ToLower(string(raw)), `\ufffd`)
		if strings.Count(s, replaced) > plain {
			return "", fmt.Errorf("%s has half of a surrogate pair: it is no text", name)
		}
	}
	return s, nil
}

func id(raw json.RawMessage) (uuid.UUID, error) {
	s, err := text("id", raw)
	if err != nil {
		return uuid.UUID{}, err
	}
	u, err := parseID(s)
	switch {
	case err != nil:
		return u, fmt.Errorf("id is not a UUID: %w", err)
	case u == uuid.UUID{}:
		return u, errors.New("id is all zeros: leave it out to get a new one")
	}
	return u, nil
}

func binary(raw json.RawMessage) ([]byte, error) {
	s, err := text("data_base64", raw)
	if err != nil {
		return nil, err
	}
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return nil, errors.New("data_base64 is not base64 (standard alphabet, padded)")
	}
	return b, nil // not nil for "", which is an empty payload
}

func headers(raw json.RawMessage) (map[string]string, error) {
	errShape := errors.New("headers is not an object of strings")
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errShape
	}
	all := make(map[string]string)
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, errShape
		}
		name := t.(string) // the decoder lets nothing else be a name
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, errShape
		}
		s, err := text("header "+quoted(name), value)
		if err != nil {
			return nil, err
		}
		if _, twice := all[name]; twice {
			return nil, fmt.Errorf("header %s is given twice", quoted(name))
		}
		all[name] = s
	}
	return all, nil
}

// delay is a Go duration in a string, or a number of seconds.
func delay(raw json.RawMessage) (time.Duration, error) {
	errShape := errors.New(`available_in is not a duration: give a number of seconds or a string such as "90s", 0 or more`)
	var seconds float64
	if raw[0] == '"' {
		s, err := text("available_in", raw)
		if err != nil {
			return 0, err
		}
		d, err := time.ParseDuration(s)
		if err != nil || d < 0 {
			return 0, errShape
		}
		return d, nil
	}
	if string(raw) == "null" || json.Unmarshal(raw, &seconds) != nil || seconds < 0 {
		return 0, errShape
	}
	if seconds > math.MaxInt64/float64(time.Second)-1 {
		return 0, errors.New("available_in is too far away")
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// quoted shows a name of the input in an error text.
func quoted(name string) string { return fmt.Sprintf("%q", clip(name, 40)) }
