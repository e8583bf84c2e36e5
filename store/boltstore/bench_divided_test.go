package boltstore

import (
	"fmt"
	"strings"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// BenchmarkDivided appends a message of 500 B to a small conversation and to a large one, with a journal, and reads the
// newest 20 messages without the cache. The large one keeps 1000 messages of 3 KB.
func BenchmarkDivided(b *testing.B) {
	s, err := Open(newPath(b), Options{
		Options: store.Options{MaxMessages: 1000, MaxConversationBytes: 8 << 20}, JournalBudget: 256 << 20,
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	for _, c := range []struct {
		id             string
		messages, size int
	}{{"small", 20, 500}, {"large", 1000, 3000}} {
		m := &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: strings.Repeat("x", c.size)}
		conversation := &parleyv1.Conversation{Id: c.id, Retention: &parleyv1.Retention{MaxMessages: int32(c.messages)}}
		if _, err := s.Create(b.Context(), &store.Create{Tenant: "acme", Conversation: conversation}); err != nil {
			b.Fatal(err)
		}
		for i := range c.messages {
			m.Id = fmt.Sprint(i)
			if _, err := s.Append(b.Context(), &store.Append{
				Tenant: "acme", ConversationID: c.id, Messages: []*parleyv1.Message{m},
			}); err != nil {
				b.Fatal(err)
			}
		}
		m.Content = m.Content[:500]
		b.Run("append/"+c.id, func(b *testing.B) {
			for b.Loop() {
				if _, err := s.Append(b.Context(), &store.Append{
					Tenant: "acme", ConversationID: c.id, Messages: []*parleyv1.Message{m},
				}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("fold/"+c.id, func(b *testing.B) {
			for b.Loop() {
				if _, err := s.Append(b.Context(), &store.Append{
					Tenant: "acme", ConversationID: c.id, Messages: []*parleyv1.Message{m},
				}); err != nil {
					b.Fatal(err)
				}
				s.folder.fold()
			}
		})
		b.Run("read/"+c.id, func(b *testing.B) {
			for b.Loop() {
				if _, err := s.Read(b.Context(), &store.Read{Tenant: "acme", ConversationID: c.id, Newest: 20}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
