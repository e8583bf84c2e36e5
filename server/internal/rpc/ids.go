package rpc

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/parleyhq/parley/store"
)

// newID returns a UUID v4: a random one for a call without a request_id, else one that
// every retry of the call derives anew. Scope tells apart what else the request_id may be
// used for.
func newID(requestID string, scope ...string) string {
	if requestID == "" {
		return uuid.NewString()
	}
	return derive(append(scope, requestID)...)
}

// derive makes a UUID v4 of the parts: the same of the same ones, in every process.
func derive(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		// The length first, so that no two lists of parts run together.
		h.Write(binary.AppendUvarint(nil, uint64(len(p))))
		h.Write([]byte(p))
	}
	u := uuid.UUID(h.Sum(nil)[:16])
	u[6] = u[6]&0x0f | 0x40 // version 4
	u[8] = u[8]&0x3f | 0x80 // variant of RFC 9562
	return u.String()
}

// newRequest tells a retry of the method from a reuse of its request_id: compared is what
// both must have in common, apart from tenant and conversation. Nil without a request_id.
func newRequest(id, method string, compared proto.Message) (*store.Request, error) {
	if id == "" {
		return nil, nil // There is nothing to remember.
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(compared)
	if err != nil {
		return nil, fmt.Errorf("digest of %s: %w", method, err)
	}
	return &store.Request{ID: id, Method: method, Digest: sha256.Sum256(b)}, nil
}
