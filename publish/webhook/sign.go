package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// ErrNotVerified is what every error of [Verify] about a request is.
var ErrNotVerified = errors.New("request is not verified")

// DefaultTolerance is how old a request that [Verify] takes may be by default, and
// how far ahead of this machine's clock.
const DefaultTolerance = 5 * time.Minute

const (
	secretPrefix    = "whsec_"
	signaturePrefix = "v1,"
	leastSecret     = 24
	mostSecret      = 64
)

// Verify tells whether a request was made by a [Publisher] that has one of the
// secrets, and not longer ago than tolerance; 0 means [DefaultTolerance]. Body is
// what arrived, before anything else was done with it. A request that someone
// recorded passes again until then: remove duplicates by the message's id, as is
// needed anyway. An error that is not [ErrNotVerified] is about the secrets.
func Verify(header http.Header, body []byte, tolerance time.Duration, secrets ...string) error {
	keys, err := decodeSecrets(secrets)
	if err == nil && len(keys) == 0 {
		err = errors.New("there is no secret")
	}
	if err != nil {
		return fmt.Errorf("webhook: %w", err)
	}
	if tolerance == 0 {
		tolerance = DefaultTolerance
	}
	id, timestamp := header.Get(idHeader), header.Get(timestampHeader)
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if id == "" || err != nil {
		return fmt.Errorf("webhook: %w: webhook-id or webhook-timestamp is missing or cannot be read", ErrNotVerified)
	}
	if age := time.Since(time.Unix(seconds, 0)); age > tolerance || age < -tolerance {
		return fmt.Errorf("webhook: %w: webhook-timestamp is further from this machine's clock than %v", ErrNotVerified, tolerance)
	}
	for _, key := range keys {
		want := sign(key, id, timestamp, body)
		for text := range strings.FieldsSeq(header.Get(signatureHeader)) {
			encoded, is := strings.CutPrefix(text, signaturePrefix)
			got, err := base64.StdEncoding.DecodeString(encoded)
			if is && err == nil && hmac.Equal(got, want) {
				return nil
			}
		}
	}
	return fmt.Errorf("webhook: %w: no webhook-signature fits", ErrNotVerified)
}

// sign is the signature of a request.
func sign(key []byte, id, timestamp string, body []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(id + "." + timestamp + "."))
	h.Write(body)
	return h.Sum(nil)
}

// signatures is the value of the header: a signature for each key.
func signatures(keys [][]byte, id, timestamp string, body []byte) string {
	all := make([]string, len(keys))
	for i, key := range keys {
		all[i] = signaturePrefix + base64.StdEncoding.EncodeToString(sign(key, id, timestamp, body))
	}
	return strings.Join(all, " ")
}

// decodeSecrets returns the keys. No error shows a secret.
func decodeSecrets(secrets []string) ([][]byte, error) {
	keys := make([][]byte, len(secrets))
	for i, s := range secrets {
		encoded, is := strings.CutPrefix(s, secretPrefix)
		key, err := base64.StdEncoding.DecodeString(encoded)
		if !is || err != nil || len(key) < leastSecret || len(key) > mostSecret {
			return nil, fmt.Errorf("secret %d cannot be used: write it as %s and the base64 of %d to %d random bytes", i+1, secretPrefix, leastSecret, mostSecret)
		}
		keys[i] = key
	}
	return keys, nil
}
