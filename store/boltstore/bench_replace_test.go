package boltstore

import (
	"fmt"
	"strings"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// BenchmarkReplaceNewest replaces the newest message of a conversation that keeps 100,000 messages of 500 B, without a
// journal and without the sync of a disk.
func BenchmarkReplaceNewest(b *testing.B) {
	const messages = 100_000
	s, err := Open(newPath(b), Options{Options: store.Options{MaxConversationBytes: 1 << 30}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	s.db.NoSync = true
	history := make(store.Frames, 0, 600*messages)
	for i := range messages {
		frame, err := store.EncodeFrame(&parleyv1.Message{
			Id: fmt.Sprint(i), Role: parleyv1.Role_ROLE_USER, Content: strings.Repeat("x", 500), Sequence: int32(i + 1),
		})
		if err != nil {
			b.Fatal(err)
		}
		history = append(history, frame...)
	}
	if _, err := s.Create(b.Context(), &store.Create{Tenant: "acme", Messages: history, Conversation: &parleyv1.Conversation{
		Id: "a", Retention: &parleyv1.Retention{KeepAll: true, NoExpiry: true, NoEviction: true},
	}}); err != nil {
		b.Fatal(err)
	}
	last := int32(messages)
	b.Run("replace", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			result, err := s.Append(b.Context(), &store.Append{
				Tenant: "acme", ConversationID: "a", ReplaceAfter: new(last - 1), Messages: text(strings.Repeat("y", 500)),
			})
			if err != nil {
				b.Fatal(err)
			}
			last = result.Appended[0].GetSequence()
		}
	})
	b.Run("append", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.Append(b.Context(), &store.Append{
				Tenant: "acme", ConversationID: "a", Messages: text(strings.Repeat("y", 500)),
			}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
