package boltstore

import (
	"compress/gzip"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

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
