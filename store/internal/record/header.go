package record

import (
	"google.golang.org/protobuf/proto"

	"github.com/parleyhq/parley/store"
)

// headerBytes returns the size of the header that clients see in encoded form, in bytes, its system prompt
// included.
func (r *Record) headerBytes() int { return proto.Size(r.Conversation()) + len(r.Prompt) }

// checkHeader returns a store.HeaderTooLargeError for a header over the limit, law 15 of package
// store.
func (r *Record) checkHeader() error {
	if err := r.shrinkHeader(); err != nil {
		return err
	}
	if size := r.headerBytes(); size > store.MaxHeaderBytes {
		return &store.HeaderTooLargeError{Bytes: size}
	}
	return nil
}

// shrinkHeader removes the unknown fields of a header that is too large: earlier versions stored
// those of a request without a limit. Smaller headers retain theirs, which may come from a later
// version.
func (r *Record) shrinkHeader() error {
	if r.headerBytes() <= store.MaxHeaderBytes {
		return nil
	}
	b, err := proto.Marshal(r.Conversation())
	if err != nil {
		return err
	}
	return proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, r.Conversation())
}
