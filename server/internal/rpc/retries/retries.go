// Package retries makes retries of a call recognizable. A retry has the request_id of the first call and the same
// content. Start at [NewRequest].
package retries

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/parleyhq/parley/store"
)

// NewID returns a UUID v4. Without a request_id it is random. With a request_id it is derived from
// the request_id and scope, so that each retry of the call gets the same id. scope distinguishes the
// calls that may use the same request_id.
func NewID(requestID string, scope ...string) string {
	if requestID == "" {
		return uuid.NewString()
	}
	return derive(append(scope, requestID)...)
}

// IDOr returns id, or NewID if it is empty.
func IDOr(id, requestID string, scope ...string) string {
	if id != "" {
		return id
	}
	return NewID(requestID, scope...)
}

// derive returns a UUID v4 that is a hash of the parts. It is the same in every process.
func derive(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		// The length before each part makes the encoding of a list unique.
		h.Write(binary.AppendUvarint(nil, uint64(len(p))))
		h.Write([]byte(p))
	}
	u := uuid.UUID(h.Sum(nil)[:16])
	u[6] = u[6]&0x0f | 0x40 // version 4
	u[8] = u[8]&0x3f | 0x80 // variant of RFC 9562
	return u.String()
}

// NewRequest returns the request that the store compares retries with. A call with the same id is a
// retry if its method and compared are the same, and a misuse of the id otherwise. compared need not
// contain the tenant and the conversation. If id is empty, NewRequest returns nil.
func NewRequest(id, method string, compared proto.Message) (*store.Request, error) {
	if id == "" {
		return nil, nil // The store records no request.
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(compared)
	if err != nil {
		return nil, fmt.Errorf("digest of %s: %w", method, err)
	}
	return &store.Request{ID: id, Method: method, Digest: sha256.Sum256(b)}, nil
}
