package transfer

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

func TestExportWithConcurrentWrites(t *testing.T) {
	f := open(t)
	hooks := f.hooks
	const n = 2*exportPage + 10
	var want []string
	for i := range n {
		_, err := hooks.Create(t.Context(), &store.Create{
			Tenant: tenant, Conversation: &parleyv1.Conversation{Id: fmt.Sprint("c", i)},
		})
		if err != nil {
			t.Fatal(err)
		}
		if i%5 != 3 {
			want = append(want, fmt.Sprint("c", i))
		}
	}
	created := 0
	hooks.read = func(r *store.Read) error {
		// If the export included conversations created after its start, it would never end.
		f.clock.advance(time.Millisecond)
		created++
		_, err := hooks.Create(t.Context(), &store.Create{
			Tenant: r.Tenant, Conversation: &parleyv1.Conversation{Id: fmt.Sprint("new", created)},
		})
		var i int
		if _, scan := fmt.Sscanf(r.ConversationID, "c%d", &i); scan == nil && i%5 == 2 {
			err = errors.Join(
				err,
				hooks.Delete(t.Context(), &store.Delete{Tenant: r.Tenant, ConversationID: fmt.Sprint("c", i+1)}),
			)
		}
		return err
	}
	if diff := cmp.Diff(want, exportedIDs(f.mustExport(t))); diff != "" {
		t.Errorf("exported (-want +got):\n%s", diff)
	}
	if created != n {
		t.Errorf("the export read %d conversations, want %d", created, n)
	}
}
