package redisstore

import (
	"context"
	"testing"
	"time"
)

// TestHorizon: commands whose context does not end get one that ends in time, and that a later command does not end.
func TestHorizon(t *testing.T) {
	t.Parallel()
	const most = time.Hour
	b := bounded{horizon: &horizon{most: most, base: context.WithoutCancel(t.Context())}}
	within := func(ctx context.Context) context.Context {
		t.Helper()
		before := time.Now()
		limited, cancel := b.within(ctx)
		t.Cleanup(cancel)
		end, ok := limited.Deadline()
		if least := before.Add(most - most/8); !ok || end.Before(least) || end.After(time.Now().Add(most)) {
			t.Errorf("deadline = %v, %v, want one from %v to %v later", end, ok, least, most/8)
		}
		return limited
	}
	first := within(context.Background()) //nolint:usetesting // A context that never ends.
	if second := within(context.WithoutCancel(t.Context())); second != first {
		t.Error("two commands at about the same time have two contexts, want one")
	}
	if own := within(t.Context()); own == first {
		t.Error("a command whose context can end has a shared one")
	}
	b.horizon.aged = time.Now()
	later := within(context.Background()) //nolint:usetesting // As above.
	if later == first || first.Err() != nil {
		t.Errorf("after an eighth of the time the context is another one: %v, want true; the first one ends: %v, want nil",
			later != first, first.Err())
	}
	b.horizon.close()
	if later.Err() == nil {
		t.Error("the context continues after the end of the client")
	}
}
