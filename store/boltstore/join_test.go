package boltstore

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
)

// appendCall appends a tool call to a conversation of tenant "acme", or its result.
func appendCall(t *testing.T, s *Store, id string, result bool) int32 {
	t.Helper()
	m := &parleyv1.Message{Role: parleyv1.Role_ROLE_ASSISTANT, ToolCalls: []*parleyv1.ToolCall{{Id: "call", Name: "tool"}}}
	if result {
		m = &parleyv1.Message{Role: parleyv1.Role_ROLE_TOOL, ToolResult: &parleyv1.ToolResult{CallId: "call"}}
	}
	r, err := s.Append(t.Context(), &store.Append{
		Tenant: "acme", ConversationID: id, Messages: []*parleyv1.Message{m},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r.Appended[0].GetSequence()
}

// TestReplaceResultInTransaction replaces a result whose call is far before it, in a transaction that has removed
// complete chunks between them: the removals leave empty pages.
func TestReplaceResultInTransaction(t *testing.T) {
	s := openDivided(t, newPath(t), store.Options{MaxMessages: 2000}, 0, 3000)
	call := appendCall(t, s, "a", false)
	appendNumbers(t, s, "a", 1, 600)
	result := appendCall(t, s, "a", true)
	keys := chunkKeys(t, s)
	if len(keys) < 9 {
		t.Fatalf("%d chunks, want 9 at least", len(keys))
	}
	remove := &store.Update{}
	for sequence := int32(100); sequence < 500; sequence++ {
		remove.Sequences = append(remove.Sequences, sequence)
	}
	if err := s.transact(func(tx *txn) error {
		now := s.options.Now()
		c := &change{tenant: "acme", id: "a"}
		old, err := tx.load("acme", "a", all)
		if err != nil {
			return err
		}
		out, err := record.Update(old.live(now), remove, now, &s.options.Options)
		if err == nil {
			err = tx.write(c, old, out, nil, now)
		}
		if err != nil {
			return err
		}
		if old, err = tx.load("acme", "a", all); err != nil {
			return err
		}
		a := &store.Append{Tenant: "acme", ConversationID: "a", ReplaceAfter: new(result - 1)}
		_, err = record.Append(old.live(now), a, nil, nil, "", now, &s.options.Options)
		separated := new(store.SeparatedError)
		if !errors.As(err, &separated) || separated.Call != call || separated.Result != result {
			t.Errorf("Append() that removes result %d of call %d = %v, want SeparatedError", result, call, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	wantConsistent(t, s)
}

// TestRemovalIgnoresOlderDamage removes the newest messages of a conversation whose oldest chunk is damaged.
func TestRemovalIgnoresOlderDamage(t *testing.T) {
	s := openDivided(t, newPath(t), store.Options{MaxMessages: 20}, 1<<20, 300)
	appendNumbers(t, s, "bad", 1, 20)
	s.folder.fold()
	damage(t, s, layout.ChunksBucket, func(tx *bolt.Tx) []byte {
		k, _ := tx.Bucket([]byte(layout.ChunksBucket)).Cursor().First()
		return slices.Clone(k)
	}, flip(3))
	if _, err := s.Update(t.Context(), &store.Update{
		Tenant: "acme", ConversationID: "bad", KeepThrough: new(int32(19)),
	}); err != nil {
		t.Errorf("Update() = %v, want nil", err)
	}
	if _, err := s.Append(t.Context(), &store.Append{
		Tenant: "acme", ConversationID: "bad", ReplaceAfter: new(int32(18)), Messages: text("21"),
	}); err != nil {
		t.Errorf("Append() = %v, want nil", err)
	}
	got, err := readNumbers(t, s, store.Read{ConversationID: "bad", Newest: 3})
	if want := []string{"17", "18", "21"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("newest messages = %v, %v, want %v", got, err, want)
	}
}

// TestRandomRemovals makes removals near the end of a long conversation, and checks the file after each.
func TestRandomRemovals(t *testing.T) {
	for _, budget := range []int64{0, 1 << 20} {
		s := openDivided(t, newPath(t), store.Options{MaxMessages: 300}, budget, 200)
		appendNumbers(t, s, "a", 1, 250)
		next := 251
		for i, back := range []int32{1, 3, 0, 12, 2, 60, 1, 7, 30, 5, 1, 100, 1} {
			_, err := s.Append(t.Context(), &store.Append{
				Tenant: "acme", ConversationID: "a", ReplaceAfter: new(int32(next-1) - back), Messages: text(fmt.Sprint(next)),
			})
			if err != nil {
				t.Fatal(err)
			}
			appendNumbers(t, s, "a", next+1, next+i)
			next += 1 + i
			if s.folder != nil && i%3 == 0 {
				s.folder.fold()
			}
			u := &store.Update{Tenant: "acme", ConversationID: "a", Sequences: []int32{int32(next - 1), int32(next - 9)}}
			if _, err := s.Update(t.Context(), u); err != nil {
				t.Fatal(err)
			}
			wantConsistent(t, s)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		wantSound(t, s.path)
	}
}
