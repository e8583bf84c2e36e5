// Package tracestore records the operations of a store as spans. Start at [New].
package tracestore

import (
	"context"
	"errors"

	"github.com/parleyhq/parley/server/internal/tracing"
	"github.com/parleyhq/parley/store"
)

// tracedStore is a store whose operations in calls and turns have spans.
type tracedStore struct{ store.Store }

// New returns a store that passes all calls to s, and records the operations of calls and turns as spans below those
// of their contexts.
func New(s store.Store) store.Store { return tracedStore{s} }

// end ends the span of an operation. Errors that the state of a conversation causes are not failures of the store.
func end(span *tracing.Span, err error) {
	switch {
	case errors.Is(err, store.ErrCorrupt):
		span.End("corrupt")
	case errors.Is(err, store.ErrFailed):
		span.End("failed")
	case errors.Is(err, store.ErrNoSpace):
		span.End("no_space")
	case errors.Is(err, store.ErrOverloaded):
		span.End("overloaded")
	default:
		span.End("")
	}
}

// Create creates a conversation.
func (t tracedStore) Create(ctx context.Context, c *store.Create) (*store.Result, error) {
	ctx, span := tracing.BeginStore(ctx, "create")
	result, err := t.Store.Create(ctx, c)
	end(span, err)
	return result, err
}

// Append appends messages, starts or ends a turn, or both.
func (t tracedStore) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	ctx, span := tracing.BeginStore(ctx, "append")
	result, err := t.Store.Append(ctx, a)
	end(span, err)
	return result, err
}

// Update changes a conversation.
func (t tracedStore) Update(ctx context.Context, u *store.Update) (*store.Result, error) {
	ctx, span := tracing.BeginStore(ctx, "update")
	result, err := t.Store.Update(ctx, u)
	end(span, err)
	return result, err
}

// Delete deletes a conversation.
func (t tracedStore) Delete(ctx context.Context, d *store.Delete) error {
	ctx, span := tracing.BeginStore(ctx, "delete")
	err := t.Store.Delete(ctx, d)
	end(span, err)
	return err
}

// Purge deletes inactive conversations.
func (t tracedStore) Purge(ctx context.Context, p *store.Purge) (store.Purged, error) {
	ctx, span := tracing.BeginStore(ctx, "purge")
	purged, err := t.Store.Purge(ctx, p)
	end(span, err)
	return purged, err
}

// Import stores a conversation of another server.
func (t tracedStore) Import(ctx context.Context, i *store.Import) (*store.Result, error) {
	ctx, span := tracing.BeginStore(ctx, "import")
	result, err := t.Store.Import(ctx, i)
	end(span, err)
	return result, err
}

// Read returns a conversation.
func (t tracedStore) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	ctx, span := tracing.BeginStore(ctx, "read")
	snapshot, err := t.Store.Read(ctx, r)
	end(span, err)
	return snapshot, err
}

// List returns a page of conversations.
func (t tracedStore) List(ctx context.Context, l *store.List) (*store.Page, error) {
	ctx, span := tracing.BeginStore(ctx, "list")
	page, err := t.Store.List(ctx, l)
	end(span, err)
	return page, err
}

// SaveProgress stores a part of an answer.
func (t tracedStore) SaveProgress(ctx context.Context, p *store.Progress) error {
	ctx, span := tracing.BeginStore(ctx, "save_progress")
	err := t.Store.SaveProgress(ctx, p)
	end(span, err)
	return err
}
