package dialect

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// LanesError is a schema whose number of lanes is not the one that the outbox is set
// to. A message could get into a lane that the others do not take it for, so nothing
// goes on.
type LanesError struct {
	// Schema is what the tables were made with, Set what the outbox is set to.
	Schema, Set int
}

// Error tells both numbers and the remedy.
func (e *LanesError) Error() string {
	return fmt.Sprintf("the schema has %d lanes and lanes is set to %d: set it to %d, or make another outbox as docs/adopting.md says", e.Schema, e.Set, e.Schema)
}

// KeyHash is what order is kept by: the first 8 bytes of SHA-256 of the key's
// UTF-8 bytes, big-endian, as a signed 64-bit integer.
func KeyHash(key string) int64 {
	sum := sha256.Sum256([]byte(key))
	return int64(binary.BigEndian.Uint64(sum[:8])) //nolint:gosec // the same 64 bits, signed, as the column is
}

// LaneOfKey is the lane of a key hash: the hash taken as unsigned, modulo the
// number of lanes.
func LaneOfKey(keyHash int64, lanes int) int {
	return int(uint64(keyHash) % uint64(lanes)) //nolint:gosec // the same 64 bits, unsigned; lanes is 1 to MaxLanes
}

// LaneOfID is the lane of a message without a key: as [LaneOfKey], from the 16
// bytes of its id.
func LaneOfID(id [16]byte, lanes int) int {
	sum := sha256.Sum256(id[:])
	return int(binary.BigEndian.Uint64(sum[:8]) % uint64(lanes)) //nolint:gosec // lanes is 1 to MaxLanes
}
