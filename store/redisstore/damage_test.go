package redisstore

import (
	"errors"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// TestDamagedConversation changes a byte of each part of a conversation. Calls with it then fail with ErrCorrupt, those
// with others do not, lists count it, and it can be deleted.
func TestDamagedConversation(t *testing.T) {
	engine := redistest.Start(t)
	for _, field := range []string{"h", "x", "q", "t", "p"} {
		t.Run(field, func(t *testing.T) {
			s, err := Open(t.Context(), Options{
				Client: rueidis.ClientOption{InitAddress: []string{engine.Addr()}}, Prefix: t.Name(), Buckets: 1,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			for _, id := range []string{"a", "b"} {
				if _, err := s.Append(t.Context(), &store.Append{
					ConversationID: id, Begin: &parleyv1.Turn{Id: "turn"}, Request: &store.Request{ID: "r", Method: "m"},
					CreateWith: &parleyv1.Conversation{SystemPrompt: "prompt"}, Messages: []*parleyv1.Message{{Content: "hello"}},
				}); err != nil {
					t.Fatal(err)
				}
			}
			key := s.space("").of("c", "a")
			value, err := s.client.Do(t.Context(), s.client.B().Hget().Key(key).Field(field).Build()).ToString()
			if err != nil || value == "" {
				t.Fatalf("field %s is %q, %v", field, value, err)
			}
			last := len(value) - 1
			value = value[:last] + string(value[last]^1)
			set := s.client.B().Hset().Key(key).FieldValue().FieldValue(field, value).Build()
			if err := s.client.Do(t.Context(), set).Error(); err != nil {
				t.Fatal(err)
			}

			read := func(id string) error {
				_, err := s.Read(t.Context(), &store.Read{
					ConversationID: id, Newest: -1, Turns: true, Request: &store.Request{ID: "r", Method: "m"},
				})
				return err
			}
			if err := read("a"); !errors.Is(err, store.ErrCorrupt) {
				t.Errorf("Read = %v, want ErrCorrupt", err)
			}
			if err := read("b"); err != nil {
				t.Errorf("Read of another conversation: %v", err)
			}
			page, err := s.List(t.Context(), &store.List{PageSize: 10})
			if err != nil || len(page.Entries)+page.Damaged != 2 || field == "h" && page.Damaged != 1 {
				t.Errorf("List = %v, %v", page, err)
			}
			if err := s.Delete(t.Context(), &store.Delete{ConversationID: "a"}); err != nil {
				t.Errorf("Delete = %v", err)
			}
			if err := read("a"); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("Read after Delete = %v, want ErrNotFound", err)
			}
			left, err := s.client.Do(t.Context(), s.client.B().Keys().Pattern("*").Build()).AsStrSlice()
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range left {
				if strings.HasPrefix(key, t.Name()) && strings.HasSuffix(key, "0::a") {
					t.Errorf("%q is left", key)
				}
			}
		})
	}
}
