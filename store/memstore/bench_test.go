package memstore

import (
	"fmt"
	"strings"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// message returns a message of about 200 bytes.
func message() *parleyv1.Message {
	return &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: strings.Repeat("x", 150)}
}

// filled returns a store with a conversation that keeps n messages and has that many.
func filled(tb testing.TB, n int) *Store {
	tb.Helper()
	s := New(store.Options{MaxMessages: n, MaxConversationBytes: store.MaxConversationBytes})
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	for left := n; left > 0; left -= 1000 {
		a := &store.Append{Tenant: "t", ConversationID: "c"}
		for range min(left, 1000) {
			a.Messages = append(a.Messages, message())
		}
		if _, err := s.Append(tb.Context(), a); err != nil {
			tb.Fatal(err)
		}
	}
	return s
}

// BenchmarkAppend appends to a conversation that is full, so each append also drops a message.
func BenchmarkAppend(b *testing.B) {
	for _, n := range []int{10, 1000, 10_000, 100_000} {
		b.Run(fmt.Sprint("kept=", n), func(b *testing.B) {
			s := filled(b, n)
			a := &store.Append{Tenant: "t", ConversationID: "c", Messages: []*parleyv1.Message{message()}}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Append(b.Context(), a); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
