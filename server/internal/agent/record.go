package agent

import (
	"context"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// recordKey is the key of a record in the context of [Agent.Respond].
type recordKey struct{}

// WithRecord returns a context for Respond with the record that [Entry.Record] names. r may be nil.
func WithRecord(ctx context.Context, r *parleyv1.Record) context.Context {
	return context.WithValue(ctx, recordKey{}, r)
}

// Record returns the record of the conversation that [Entry.Record] names, as it was when the turn started. It
// returns nil if the conversation has no such record. The agent must not change it; it writes the record with a
// piece of its answer.
func Record(ctx context.Context) *parleyv1.Record {
	r, _ := ctx.Value(recordKey{}).(*parleyv1.Record)
	return r
}
