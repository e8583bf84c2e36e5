package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// listBounds tests lists that are too long for one call.
func (s Subject) listBounds(t *testing.T) {
	t.Run("bytes", func(t *testing.T) {
		f := s.open(t, nil)
		labels := make(map[string]string)
		for i := range 64 {
			labels[fmt.Sprint("label ", i)] = strings.Repeat("x", 1024)
		}
		var want []string
		for i := range 60 {
			id := fmt.Sprint("c", i)
			f.clock.Advance(time.Millisecond)
			f.do(&store.Create{Conversation: &parleyv1.Conversation{Id: id, Labels: labels}})
			want = slices.Insert(want, 0, id)
		}
		for _, order := range []parleyv1.ListOrder{0, byUpdateTime} {
			var got []string
			f.eachPage(store.List{PageSize: 1000, Order: order}, func(page *store.Page) {
				if size := proto.Size(&parleyv1.ListConversationsResponse{Conversations: page.Entries}); size > store.MaxListBytes {
					t.Errorf("%v: page of %d bytes, want at most MaxListBytes", order, size)
				}
				got = append(got, ids(page)...)
				if page.NextPageToken != "" && len(page.Entries) < 40 {
					t.Errorf("%v: page ends after %d entries, want at least 40", order, len(page.Entries))
				}
			})
			same(t, order.String(), got, want)
		}
	})
	t.Run("headers", s.listHeaders)
	t.Run("cancelled", s.listCancelled)
}

// listCancelled cancels the context of a list while the list is built.
func (s Subject) listCancelled(t *testing.T) {
	f := s.open(t, nil)
	for i := range 20 {
		f.create(fmt.Sprint("c", i))
	}
	for name, l := range map[string]store.List{
		"newest first": {}, "oldest first": {OldestFirst: true}, "by update time": {Order: byUpdateTime},
		"by type": {StructuredDataType: "none"},
	} {
		l.Tenant, l.PageSize = tenant, 100
		ctx := &countdownContext{Context: t.Context(), checks: 5}
		if page, err := f.store.List(ctx, &l); !errors.Is(err, context.Canceled) {
			t.Errorf("List, %s = %v, %v, want context.Canceled", name, page, err)
		}
	}
}

// countdownContext is a context that ends after a number of calls of Err.
type countdownContext struct {
	context.Context

	checks int
}

// Err implements context.Context.
func (l *countdownContext) Err() error {
	l.checks--
	if l.checks < 0 {
		return context.Canceled
	}
	return nil
}

// listHeaders lists more conversations than one call reads.
func (s Subject) listHeaders(t *testing.T) {
	const more = 25
	f := s.open(t, nil)
	f.clock.tick = time.Microsecond
	label := map[string]string{"is": "wanted"}
	for i := range more {
		f.do(&store.Create{Conversation: &parleyv1.Conversation{Id: fmt.Sprint("old", i), Labels: label}})
	}
	f.fill(store.MaxListHeaders)
	f.append("old3", user("changed"))
	f.append("c77", user("changed"))
	for _, order := range []parleyv1.ListOrder{0, byUpdateTime} {
		l := store.List{PageSize: 20, Order: order, Labels: label}
		page := f.list(l)
		if len(page.Entries) != 0 || page.NextPageToken == "" || page.Total != store.MaxListHeaders+more {
			t.Fatalf("%v: the first page = %v, token %q, total %d", order, ids(page), page.NextPageToken, page.Total)
		}
		l.PageToken = page.NextPageToken
		pages := f.pages(l)
		if len(pages) != 2 || len(pages[0]) != 20 || len(pages[1]) != 5 {
			t.Fatalf("%v: pages after the first: %v", order, pages)
		}
		if first := pages[0][0]; order == byUpdateTime && first != "old3" {
			t.Errorf("second block starts with %s, want old3, the last changed", first)
		}
	}
	// Blocks keep their bounds while conversations are created and deleted.
	listed := make(map[string]int)
	n := 0
	f.eachPage(store.List{PageSize: 1000, Order: byUpdateTime}, func(page *store.Page) {
		if n == 0 && (len(page.Entries) == 0 || ids(page)[0] != "c77") {
			t.Errorf("first page = %v, want c77 first", ids(page))
		}
		for _, id := range ids(page) {
			listed[id]++
		}
		f.create(fmt.Sprint("new", n))
		f.do(&store.Delete{ConversationID: fmt.Sprint("c", n)})
		n++
	})
	for i := range more {
		if n := listed[fmt.Sprint("old", i)]; n != 1 {
			t.Errorf("old%d was listed %d times, want 1", i, n)
		}
	}
	for i := 100; i < store.MaxListHeaders; i++ {
		if n := listed[fmt.Sprint("c", i)]; n != 1 {
			t.Errorf("c%d was listed %d times, want 1", i, n)
		}
	}
	f.listDuringImports()
}

// fill creates n conversations from many goroutines.
func (f *fixture) fill(n int) {
	f.t.Helper()
	const writers = 100
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for i := w; i < n; i += writers {
				_, err := f.store.Create(f.t.Context(), &store.Create{
					Tenant: tenant, Conversation: &parleyv1.Conversation{Id: fmt.Sprint("c", i)},
				})
				if err != nil {
					f.t.Errorf("Create: %v", err)
				}
			}
		})
	}
	group.Wait()
}
