package search

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/entry"
	"github.com/parleyhq/parley/server/internal/interactionlog/entrytest"
)

func TestSearch(t *testing.T) {
	r := newTestReader(t)
	for i := range 9 {
		d := dayfile.DayOf(readNow) + 1 - dayfile.Day(i)
		at := d.Start().Format(entry.TimestampLayout)
		content := "Quarterly Goals " + d.String()
		r.putFile(t, d.String(), entrytest.Sample{At: at, Conversation: fmt.Sprint("s", i%2), Content: content}.String()+
			entrytest.Sample{At: at, Tenant: "other", Content: "quarterly goals of others"}.String()+
			entrytest.Sample{At: d.Start().Format(entry.TimestampLayout), Agent: "quarterly goals", Content: "nothing"}.String())
	}
	for _, tt := range []struct {
		name   string
		search Search
		days   []int // of November, newest first
	}{
		{"seven days, newest first", Search{Query: "quarterly goals"}, []int{20, 19, 18, 17, 16, 15, 14}},
		{"today", Search{Query: "QUARTERLY", Days: 1}, []int{20}},
		{"more days than there are", Search{Query: "ls 2026", Days: 1 << 31}, []int{20, 19, 18, 17, 16, 15, 14, 13}},
		{"one conversation", Search{Query: "goals", ConversationID: "s0"}, []int{19, 17, 15}},
		{"one of one day", Search{Query: "2026-11-17"}, []int{17}},
		{"no match", Search{Query: "quarterly  goals"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var want []string
			for _, d := range tt.days {
				want = append(want, fmt.Sprintf("Quarterly Goals 2026-11-%d", d))
			}
			for _, size := range []int{1, 2, 50} {
				tt.search.Tenant, tt.search.PageSize = "default", size
				all, skipped := r.searchAll(t, tt.search)
				if diff := cmp.Diff(append([]string{}, want...), texts(all)); diff != "" || skipped != 0 {
					t.Errorf("pages of %d: skipped %d, (-want +got):\n%s", size, skipped, diff)
				}
			}
		})
	}
}

// TestSearchFollowsEdits checks that a search finds what is in the files now.
func TestSearchFollowsEdits(t *testing.T) {
	r := newTestReader(t)
	for _, content := range []string{
		entrytest.Lines("one goal"), entrytest.Lines("one goal", "a goal more"), entrytest.Lines("a goal more"),
		entrytest.Lines("a goal MORE", "nothing"), "",
	} {
		r.putFile(t, "2026-11-20", content)
		want, _ := model{tenant: "default", text: "goal", backward: true}.find(content)
		all, _ := r.searchAll(t, Search{Tenant: "default", Query: "GOAL"})
		if diff := cmp.Diff(want, texts(all)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// TestConcurrentSearches runs many more searches than may scan files at once.
func TestConcurrentSearches(t *testing.T) {
	r := newTestReader(t)
	r.putFile(t, "2026-11-20", strings.Repeat(entrytest.Lines(strings.Repeat("x", 1000)), 2000)+entrytest.Lines("goal"))
	var running sync.WaitGroup
	for range 16 {
		running.Go(func() {
			page, err := r.Search(t.Context(), &Search{Tenant: "default", Query: "GOAL"})
			if err != nil || contents(page) != "goal" {
				t.Errorf("%v, %v", page, err)
			}
		})
	}
	running.Wait()
}

func TestSearchCanceled(t *testing.T) {
	r := newTestReader(t)
	r.putFile(t, "2026-11-20", entrytest.Lines("a"))
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := r.Search(ctx, &Search{Tenant: "default", Query: "a"}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestQueryLimits checks how many queries run concurrently, that lists and scans do not wait for each other,
// and that a waiting query ends with its context.
func TestQueryLimits(t *testing.T) {
	r := newTestReader(t) // Without files, only a query that waits checks its context.
	scan := func(ctx context.Context) error {
		_, err := r.Search(ctx, &Search{Tenant: "default", Query: "a"})
		return err
	}
	conversation := func(ctx context.Context) error {
		_, err := r.List(ctx, &List{Tenant: "default", ConversationID: "s"})
		return err
	}
	day := func(ctx context.Context) error {
		_, err := r.List(ctx, &List{Tenant: "default", Date: "2026-11-20"})
		return err
	}
	span := func(ctx context.Context) error {
		_, err := r.List(ctx, &List{Tenant: "other"})
		return err
	}
	left, leave := context.WithCancel(t.Context())
	leave()
	for _, tt := range []struct {
		turns         chan struct{}
		waiting, free []func(context.Context) error
	}{
		{r.scanSlots, []func(context.Context) error{scan, conversation}, []func(context.Context) error{day, span}},
		{r.listSlots, []func(context.Context) error{day, span}, []func(context.Context) error{scan, conversation}},
	} {
		for range cap(tt.turns) {
			tt.turns <- struct{}{}
		}
		for i, query := range tt.waiting {
			if err := query(left); !errors.Is(err, context.Canceled) {
				t.Errorf("waiting query %d: %v, want %v", i, err, context.Canceled)
			}
		}
		for i, query := range tt.free {
			if err := query(t.Context()); err != nil {
				t.Errorf("other query %d: %v", i, err)
			}
		}
		var ended sync.WaitGroup
		for _, query := range tt.waiting {
			ended.Go(func() {
				if err := query(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		for range cap(tt.turns) {
			<-tt.turns
		}
		ended.Wait()
		if len(tt.turns) > 0 {
			t.Error("a slot was not released")
		}
	}
}
