package redisstore

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// openAt opens a store with one bucket on an engine. It is closed at the end of the test.
func openAt(t *testing.T, o store.Options, addresses ...string) *Store {
	t.Helper()
	return openWith(t, Options{Options: o, Buckets: 1}, addresses...)
}

func openWith(t *testing.T, o Options, addresses ...string) *Store {
	t.Helper()
	o.Client.InitAddress = addresses
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// watcher collects what a store reports of its own changes, and of those that it missed.
type watcher struct {
	mu   sync.Mutex
	seen []string
}

// observe implements store.Options.Observe.
func (w *watcher) observe(changes []store.Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range changes {
		c := &changes[i]
		if c.Elsewhere && c.Kind != parleyv1.ChangeKind_CHANGE_KIND_GAP {
			continue
		}
		w.seen = append(w.seen, fmt.Sprint(strings.TrimPrefix(c.Kind.String(), "CHANGE_KIND_"), " ", c.ConversationID, " ",
			c.Version))
	}
}

// take returns what was reported since the last call.
func (w *watcher) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := w.seen
	w.seen = nil
	return seen
}

// want checks what was reported of a write whose reply was lost. Commands and the subscription may share the connection
// that has ended, so that the changes can be missed: then there must be a GAP.
func (w *watcher) want(t *testing.T, what string, want ...string) {
	t.Helper()
	all := w.take()
	got := slices.DeleteFunc(slices.Clone(all), func(text string) bool { return strings.HasPrefix(text, "GAP ") })
	if len(got) == len(all) && !slices.Equal(got, want) || !isPart(got, want) {
		t.Errorf("changes of %s = %v, want %v", what, all, want)
	}
}

// isPart reports whether all has the texts of part in their order.
func isPart(part, all []string) bool {
	for _, text := range part {
		i := slices.Index(all, text)
		if i < 0 {
			return false
		}
		all = all[i+1:]
	}
	return true
}

func message(text string) []*parleyv1.Message {
	return []*parleyv1.Message{{Id: "id of " + text, Role: parleyv1.Role_ROLE_USER, Content: text}}
}

func requestOf(id string) *store.Request {
	return &store.Request{ID: id, Method: "AppendMessages", Digest: sha256.Sum256([]byte(id))}
}

func appendTo(t *testing.T, s store.Store, id, text string) *store.Result {
	t.Helper()
	r, err := s.Append(t.Context(), &store.Append{Tenant: "acme", ConversationID: id, Messages: message(text)})
	if err != nil {
		t.Fatalf("Append(%q, %q) = %v", id, text, err)
	}
	return r
}

func readAll(t *testing.T, s store.Store, id string) *store.Snapshot {
	t.Helper()
	snapshot, err := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: id, Newest: -1})
	if err != nil {
		t.Fatalf("Read(%q) = %v", id, err)
	}
	return snapshot
}

// textsOf returns the contents of messages.
func textsOf(t *testing.T, frames store.Frames) (texts []string) {
	t.Helper()
	messages, err := frames.Messages()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		texts = append(texts, m.GetContent())
	}
	return texts
}

func wantTexts(t *testing.T, s store.Store, id string, want ...string) {
	t.Helper()
	snapshot := readAll(t, s, id)
	if got := textsOf(t, snapshot.Messages); !slices.Equal(got, want) {
		t.Errorf("messages of %q = %q, want %q", id, got, want)
	}
	if n := int(snapshot.Conversation.GetMessageCount()); n != len(want) {
		t.Errorf("message_count of %q = %d, want %d", id, n, len(want))
	}
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s = %v, want %v", what, err, want)
	}
}

func listedIDs(t *testing.T, s store.Store) (ids []string, page *store.Page) {
	t.Helper()
	page, err := s.List(t.Context(), &store.List{Tenant: "acme", PageSize: 100, OldestFirst: true})
	if err != nil {
		t.Fatalf("List = %v", err)
	}
	for _, e := range page.Entries {
		ids = append(ids, e.GetConversation().GetId())
	}
	return ids, page
}

func putRecord(key, value string) *parleyv1.RecordWrite {
	return &parleyv1.RecordWrite{Key: key, Value: []byte(value), MediaType: "text/plain"}
}
