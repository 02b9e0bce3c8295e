package main

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
)

// KEK wraps data keys with a key-encryption key that never leaves it, usually that
// of a key management service. It is used by many goroutines at once.
type KEK interface {
	// Wrap encrypts a data key and names the key that it did it with.
	Wrap(ctx context.Context, dataKey []byte) (keyID string, wrapped []byte, err error)
	// Unwrap decrypts it with the key of that name, which may be an older one.
	Unwrap(ctx context.Context, keyID string, wrapped []byte) (dataKey []byte, err error)
}

// The headers of a sealed message.
const (
	headerKeyID       = "enckeyid"       // the key-encryption key
	headerDataKey     = "encdatakey"     // wrapped by it, in base64
	headerContentType = "enccontenttype" // of what is sealed
)

// A data key seals so many messages, and for so long: AES-GCM with random nonces is
// good for 2^32 messages, and a key that leaks should open few.
const (
	sealsPerKey = 1 << 20
	ageOfKey    = time.Hour
)

// ErrOpen is what Open returns for a message that was not sealed as it is: with
// another key, or changed since, or moved to another id, key, topic or type.
var ErrOpen = errors.New("encryption: the payload cannot be authenticated")

// Envelope seals and opens payloads with AES-256-GCM under data keys that a KEK wraps.
// It is safe for concurrent use.
type Envelope struct {
	kek KEK
	now func() time.Time

	mu      sync.Mutex
	sealing dataKey
	opened  map[string]cipher.AEAD // by key id and wrapped data key
}

// dataKey is the key that messages are sealed with for a while.
type dataKey struct {
	aead    cipher.AEAD
	headers map[string]string
	left    int
	until   time.Time
}

// New returns an envelope under kek.
func New(kek KEK) *Envelope {
	return &Envelope{kek: kek, now: time.Now, opened: make(map[string]cipher.AEAD)}
}

// Seal returns m with its payload encrypted, to be enqueued. Id, key, topic, type,
// content type and the other headers stay readable and are bound to the payload. A
// message without a payload, which some brokers take for a deletion, stays one. The
// message gets its id here. Seal may ask the KEK: call it before the transaction.
func (e *Envelope) Seal(ctx context.Context, m outbox.Message) (outbox.Message, error) {
	if m.ID == (uuid.UUID{}) {
		id, err := uuid.NewV7()
		if err != nil {
			return m, fmt.Errorf("encryption: %w", err)
		}
		m.ID = id
	}
	if m.Payload == nil {
		return m, nil
	}
	key, err := e.dataKey(ctx)
	if err != nil {
		return m, err
	}
	headers := map[string]string{headerContentType: m.ContentType}
	maps.Copy(headers, m.Headers)
	maps.Copy(headers, key.headers)
	m.Payload = key.aead.Seal(nil, nil, m.Payload, bound(m, m.ContentType)) //nolint:gosec // the AEAD makes a nonce itself
	m.Headers = headers
	m.ContentType = "application/octet-stream"
	return m, nil
}

// Open returns m with its payload as it was before Seal. A message without a payload
// was not sealed; one that has a payload and was not sealed is [ErrOpen] too.
func (e *Envelope) Open(ctx context.Context, m outbox.Message) (outbox.Message, error) {
	if m.Payload == nil {
		return m, nil
	}
	wrapped, err := base64.StdEncoding.DecodeString(m.Headers[headerDataKey])
	if err != nil || len(wrapped) == 0 {
		return m, fmt.Errorf("%w: message %s has no data key", ErrOpen, m.ID)
	}
	aead, err := e.unwrapped(ctx, m.Headers[headerKeyID], wrapped)
	if err != nil {
		return m, err
	}
	contentType := m.Headers[headerContentType]
	payload, err := aead.Open(nil, nil, m.Payload, bound(m, contentType))
	if err != nil {
		return m, fmt.Errorf("%w: message %s", ErrOpen, m.ID)
	}
	if payload == nil {
		payload = []byte{} // it was empty, not absent
	}
	headers := maps.Clone(m.Headers)
	for _, name := range []string{headerKeyID, headerDataKey, headerContentType} {
		delete(headers, name)
	}
	m.Payload, m.ContentType, m.Headers = payload, contentType, headers
	return m, nil
}

// bound is what the payload belongs to, each part behind its length.
func bound(m outbox.Message, contentType string) []byte {
	key := "-"
	if m.HasKey() {
		key = "+" + m.Key
	}
	var b []byte
	for _, part := range []string{m.ID.String(), key, m.Topic, m.Type, contentType} {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	return b
}

// dataKey returns the key to seal one message with, a new one when it is time.
func (e *Envelope) dataKey(ctx context.Context) (dataKey, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sealing.left == 0 || !e.now().Before(e.sealing.until) {
		plain := make([]byte, 32)
		_, _ = rand.Read(plain) // never fails
		id, wrapped, err := e.kek.Wrap(ctx, plain)
		if err != nil {
			return dataKey{}, fmt.Errorf("encryption: wrap a data key: %w", err)
		}
		aead, err := newAEAD(plain)
		if err != nil {
			return dataKey{}, err
		}
		e.sealing = dataKey{
			aead:    aead,
			headers: map[string]string{headerKeyID: id, headerDataKey: base64.StdEncoding.EncodeToString(wrapped)},
			left:    sealsPerKey, until: e.now().Add(ageOfKey),
		}
	}
	e.sealing.left--
	return e.sealing, nil
}

// unwrapped returns the cipher of a wrapped data key. A process sees few of them at a
// time, so those it has seen are kept, up to a number.
func (e *Envelope) unwrapped(ctx context.Context, keyID string, wrapped []byte) (cipher.AEAD, error) {
	name := keyID + "\x00" + string(wrapped)
	e.mu.Lock()
	aead, known := e.opened[name]
	e.mu.Unlock()
	if known {
		return aead, nil
	}
	plain, err := e.kek.Unwrap(ctx, keyID, wrapped)
	if err != nil {
		return nil, fmt.Errorf("encryption: unwrap a data key with key %q: %w", keyID, err)
	}
	if aead, err = newAEAD(plain); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.opened) >= 1000 {
		clear(e.opened)
	}
	e.opened[name] = aead
	return aead, nil
}

// newAEAD is AES-GCM that puts a random nonce before what it seals.
func newAEAD(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("encryption: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("encryption: %w", err)
	}
	return aead, nil
}
