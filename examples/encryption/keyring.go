package main

import (
	"context"
	"errors"
	"fmt"
)

// Keyring is a KEK that has its keys in memory, for this example: the service that
// wraps data keys should be one that does not hand its keys out.
type Keyring struct {
	// Current is the id of the key that wraps. The others open what they wrapped.
	Current string
	Keys    map[string][]byte // of 32 bytes
}

var errNoKey = errors.New("the key ring has no such key")

// Wrap implements [KEK].
func (k *Keyring) Wrap(_ context.Context, dataKey []byte) (string, []byte, error) {
	key, ok := k.Keys[k.Current]
	if !ok {
		return "", nil, errNoKey
	}
	aead, err := newAEAD(key)
	if err != nil {
		return "", nil, err
	}
	return k.Current, aead.Seal(nil, nil, dataKey, []byte(k.Current)), nil //nolint:gosec // the AEAD makes a nonce itself
}

// Unwrap implements [KEK].
func (k *Keyring) Unwrap(_ context.Context, keyID string, wrapped []byte) ([]byte, error) {
	key, ok := k.Keys[keyID]
	if !ok {
		return nil, errNoKey
	}
	aead, err := newAEAD(key)
	if err != nil {
		return nil, err
	}
	dataKey, err := aead.Open(nil, nil, wrapped, []byte(keyID))
	if err != nil {
		return nil, fmt.Errorf("%w: the data key", ErrOpen)
	}
	return dataKey, nil
}
