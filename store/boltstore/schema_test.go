package boltstore

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

// schemaOf returns the schema version in a store's file.
func schemaOf(t *testing.T, s *Store) []byte {
	t.Helper()
	var schema []byte
	if err := s.db.View(func(tx *bolt.Tx) error {
		schema = slices.Clone(tx.Bucket([]byte(layout.MetaBucket)).Get([]byte(boltfile.SchemaKey)))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return schema
}

// TestOldSchema opens a file of schema 1. It has conversation "data", with values of types "list" and
// "table", and conversation "plain", with a running turn.
func TestOldSchema(t *testing.T) {
	packed, err := os.Open("testdata/schema1.db.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	file, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	path := newPath(t)
	if err := os.WriteFile(path, data, boltfile.FileMode); err != nil {
		t.Fatal(err)
	}
	if _, err := Check(path, func(fault string) { t.Error(fault) }); err != nil {
		t.Errorf("Check of the old file: %v", err)
	}
	now := time.Unix(1_800_000_000, 0)
	s := open(t, path, store.Options{Now: func() time.Time { return now }})
	has := func(kind string, want ...string) {
		t.Helper()
		page, err := s.List(t.Context(), &store.List{Tenant: "acme", PageSize: 9, StructuredDataType: kind})
		if err != nil {
			t.Fatal(err)
		}
		ids := []string{}
		for _, e := range page.Entries {
			ids = append(ids, e.GetConversation().GetId())
		}
		if !slices.Equal(ids, want) {
			t.Errorf("List of type %q = %v, want %v", kind, ids, want)
		}
	}
	has("table", "data")
	has("more")
	if got, want := schemaOf(t, s), boltfile.EncodeSchema(1); !slices.Equal(got, want) {
		t.Errorf("schema before the first write = %x, want %x", got, want)
	}
	for _, id := range []string{"data", "plain"} {
		if _, err := s.Append(t.Context(), &store.Append{Tenant: "acme", ConversationID: id, Messages: []*parleyv1.Message{{
			Role: parleyv1.Role_ROLE_ASSISTANT, StructuredData: []*parleyv1.StructuredData{{Type: "more"}},
		}}}); err != nil {
			t.Fatal(err)
		}
	}
	has("table", "data")
	has("more", "plain", "data")
	if got, want := schemaOf(t, s), boltfile.EncodeSchema(2); !slices.Equal(got, want) {
		t.Errorf("schema after a write = %x, want %x", got, want)
	}
	wantConsistent(t, s)
}

// TestRetentionSchema checks that a conversation with a retention that versions without records misread changes the
// schema, whichever call sets it, and that others keep the schema that these versions read.
func TestRetentionSchema(t *testing.T) {
	plain := &parleyv1.Retention{MaxMessages: 30, Ttl: durationpb.New(time.Hour)}
	for field, retention := range map[string]*parleyv1.Retention{
		"keep_all": {KeepAll: true}, "no_expiry": {NoExpiry: true}, "no_eviction": {NoEviction: true},
	} {
		for call, write := range map[string]func(*Store, *parleyv1.Conversation) error{
			"Create": func(s *Store, c *parleyv1.Conversation) error {
				_, err := s.Create(t.Context(), &store.Create{Tenant: "acme", Conversation: c})
				return err
			},
			"Append": func(s *Store, c *parleyv1.Conversation) error {
				_, err := s.Append(t.Context(), &store.Append{
					Tenant: "acme", ConversationID: c.GetId(), CreateWith: c, Messages: text("hello"),
				})
				return err
			},
			"Import": func(s *Store, c *parleyv1.Conversation) error {
				c.CreateTime, c.UpdateTime, c.LastAppendTime = timestamppb.Now(), timestamppb.Now(), timestamppb.Now()
				_, err := s.Import(t.Context(), &store.Import{Tenant: "acme", Conversation: c})
				return err
			},
			"Update": func(s *Store, c *parleyv1.Conversation) error {
				appendTo(t, s, c.GetId(), "hello")
				_, err := s.Update(t.Context(), &store.Update{
					Tenant: "acme", ConversationID: c.GetId(), Fields: []string{"retention." + field}, Values: c,
				})
				return err
			},
		} {
			for _, budget := range []int64{0, 1 << 20} {
				s := openJournaled(t, newPath(t), store.Options{}, budget)
				for i, r := range []*parleyv1.Retention{plain, retention} {
					appendTo(t, s, "other", "hello") // With a journal, the second is not a transaction.
					id := fmt.Sprint(i)
					if err := write(s, &parleyv1.Conversation{Id: id, Retention: proto.CloneOf(r)}); err != nil {
						t.Fatal(err)
					}
					want := boltfile.EncodeSchema(boltfile.SchemaOf(budget > 0, i == 1, false))
					if got := schemaOf(t, s); !slices.Equal(got, want) {
						t.Errorf("schema after %s with retention %v, journal %d = %x, want %x", call, r, budget, got, want)
					}
				}
				wantConsistent(t, s)
			}
		}
	}
}

// TestTurnSchema checks that the first turn in the index changes the schema at once, also with a journal: versions without
// that index would not keep it, nor all turns of a conversation with max_turns. Other turns keep the schema.
func TestTurnSchema(t *testing.T) {
	for _, budget := range []int64{0, 1 << 20} {
		s := openJournaled(t, newPath(t), store.Options{}, budget)
		appendTo(t, s, "c", "hello")
		for i, id := range []string{"0b9ffa8e-6a4e-4f0c-9d0e-1f6f0e3a6b01", indexedTurn(0), indexedTurn(1)} {
			beginTurn(t, s, "c", id)
			if got, want := schemaOf(t, s), boltfile.EncodeSchema(boltfile.SchemaOf(budget > 0, false, i > 0)); !slices.Equal(got, want) {
				t.Errorf("schema after turn %s, journal %d = %x, want %x", id, budget, got, want)
			}
			if _, err := s.Append(t.Context(), &store.Append{
				Tenant: "acme", ConversationID: "c", End: &parleyv1.Turn{Id: id, State: parleyv1.TurnState_TURN_STATE_COMPLETED},
			}); err != nil {
				t.Fatal(err)
			}
		}
		wantConsistent(t, s)
	}
}

// TestJournaledCreateWith checks that an append to an existing conversation, which the journal takes, ignores the
// retention of its CreateWith, so that it need not change the schema.
func TestJournaledCreateWith(t *testing.T) {
	s := openJournaled(t, newPath(t), store.Options{}, 1<<20)
	appendTo(t, s, "a", "hello")
	before := schemaOf(t, s)
	result, err := s.Append(t.Context(), &store.Append{
		Tenant: "acme", ConversationID: "a", Messages: text("hello"),
		CreateWith: &parleyv1.Conversation{Retention: &parleyv1.Retention{KeepAll: true, NoExpiry: true}},
	})
	if err != nil || result.Conversation.GetRetention().GetKeepAll() {
		t.Fatalf("Append() = %v, %v, want the retention of the conversation", result, err)
	}
	s.folder.fold()
	if got := schemaOf(t, s); !slices.Equal(got, before) {
		t.Errorf("schema = %x, want %x", got, before)
	}
}
