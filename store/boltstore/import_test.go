package boltstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

// importOf returns an import of an empty conversation of tenant "acme" with that create time.
func importOf(id string, at time.Time, ttl time.Duration) *store.Import {
	return &store.Import{Tenant: "acme", Conversation: &parleyv1.Conversation{
		Id: id, Version: 3, LastSequence: 2, Retention: &parleyv1.Retention{Ttl: durationpb.New(ttl)},
		CreateTime: timestamppb.New(at), UpdateTime: timestamppb.New(at), LastAppendTime: timestamppb.New(at),
	}}
}

// TestImportOverDamage replaces a damaged conversation with an import.
func TestImportOverDamage(t *testing.T) {
	for name, test := range map[string]struct {
		change func([]byte) []byte
		want   error // without Overwrite
	}{
		"header":   {flip(20), store.ErrCorrupt},
		"messages": {flip(-1), store.ErrConversationExists},
		"cut off":  {func(b []byte) []byte { return b[:5] }, store.ErrCorrupt},
		"empty":    {func([]byte) []byte { return nil }, store.ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			var observed []string
			s, c := openThree(t, store.Options{MaxConversations: 3, Observe: func(changes []store.Change) {
				for _, change := range changes {
					observed = append(observed, strings.TrimPrefix(change.Kind.String(), "CHANGE_KIND_")+" "+change.ConversationID)
				}
			}})
			damage(t, s, layout.ConversationsBucket, badKey, test.change)
			observed = nil
			i := importOf("bad", c.Now(), time.Hour)
			if _, err := s.Import(t.Context(), i); !errors.Is(err, test.want) {
				t.Errorf("Import without overwrite = %v, want %v", err, test.want)
			}
			i.Overwrite = true
			if _, err := s.Import(t.Context(), i); err != nil {
				t.Fatal(err)
			}
			if want := []string{"DELETED bad", "CREATED bad"}; !slices.Equal(observed, want) {
				t.Errorf("observed changes = %v, want %v", observed, want)
			}
			if got := listIDs(t, s, "acme"); !slices.Equal(got, []string{"bad", "new", "old"}) {
				t.Errorf("List = %v, want bad, new and old", got)
			}
			c.advance(3 * time.Hour)
			sweep(t, s)
			wantConsistent(t, s)
		})
	}
	t.Run("id without a record", func(t *testing.T) {
		s, c := openThree(t, store.Options{})
		damage(t, s, layout.IDsBucket, keyOf("bad"), flip(3))
		i := importOf("bad", c.Now(), time.Hour)
		i.Overwrite = true
		if _, err := s.Import(t.Context(), i); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("Import = %v, want ErrCorrupt", err)
		}
	})
}

// TestImportAboveCapacity imports after the capacity was lowered. One expired conversation is then
// not enough space.
func TestImportAboveCapacity(t *testing.T) {
	c := newClock()
	path, o := newPath(t), store.Options{Now: c.Now}
	s := open(t, path, o)
	for i := range 4 {
		if i == 1 {
			c.advance(30 * time.Minute)
		}
		appendTo(t, s, fmt.Sprint("c", i), "hello")
	}
	c.advance(30 * time.Minute) // c0 expires.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	o.MaxConversations = 3
	s = open(t, path, o)
	if _, err := s.Import(t.Context(), importOf("new", c.Now(), time.Hour)); !errors.Is(err, store.ErrFull) {
		t.Errorf("Import = %v, want ErrFull", err)
	}
	overwrite := importOf("c1", c.Now(), time.Hour)
	overwrite.Overwrite = true
	if _, err := s.Import(t.Context(), overwrite); err != nil {
		t.Errorf("Import with overwrite = %v", err)
	}
	wantConsistent(t, s)
	if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "c2"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Import(t.Context(), importOf("new", c.Now(), time.Hour)); err != nil {
		t.Errorf("Import in place of an expired conversation = %v", err)
	}
	if got := listIDs(t, s, "acme"); !slices.Equal(got, []string{"new", "c1", "c3"}) {
		t.Errorf("List = %v, want new, c1 and c3", got)
	}
	wantConsistent(t, s)
}

// importAny makes a random import, for TestRandom.
func (w *randomRun) importAny(r *rapid.T) {
	tenant, id := w.name(r)
	age := rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute, time.Hour, 365 * 24 * time.Hour}).Draw(r, "age")
	i := importOf(id, w.clock.Now().Add(-age), ttl(r).AsDuration())
	i.Tenant, i.Overwrite = tenant, rapid.Bool().Draw(r, "overwrite")
	_, err := w.store.Import(w.t.Context(), i)
	w.logRefused(r, err)
}
