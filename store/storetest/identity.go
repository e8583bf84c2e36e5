package storetest

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// law14Identity creates conversations with one id in every way, also from exports of each other. It
// checks that no uid occurs twice.
func (s Subject) law14Identity(t *testing.T) {
	t.Run("every creation has a new uid", s.identityIsNew)
	t.Run("an import over a conversation has another uid", s.identityOfImport)
}

func (s Subject) identityIsNew(t *testing.T) {
	f := s.open(t, nil)
	seen := make(map[string]string) // how each conversation was created, by uid
	checkNewUID := func(how string, w any) {
		t.Helper()
		result := f.do(w)
		c := result.Conversation
		uid := f.header(c.GetId()).GetUid()
		if by, ok := seen[uid]; ok || uid == "" || c.GetUid() != uid {
			t.Errorf("%s: uid %q, already used by %s; the result has %q", how, uid, by, c.GetUid())
		}
		seen[uid] = how
		changes := f.observer.drain()
		if created := changes[len(changes)-1]; created.UID != uid {
			t.Errorf("%s: the change has uid %q, want %q", how, created.UID, uid)
		}
	}
	exported := func() *store.Import {
		t.Helper()
		snapshot := f.read("a")
		return &store.Import{Conversation: snapshot.Conversation, Messages: snapshot.Messages, Overwrite: true}
	}
	checkNewUID("Create", &store.Create{Conversation: &parleyv1.Conversation{Id: "created", Uid: "mine"}})
	checkNewUID("Append", &store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("hello")}})
	checkNewUID("Create of a fork", &store.Create{
		Conversation: &parleyv1.Conversation{Id: "fork", ForkedFrom: &parleyv1.ForkOrigin{ConversationId: "a", Sequence: 1}},
		Messages:     f.read("a").Messages,
	})
	checkNewUID("Import of another server's", f.newImport("imported", time.Minute))
	again := f.newImport("imported", time.Minute)
	again.Overwrite = true
	checkNewUID("Import with overwrite", again)
	without := f.newImport("without", time.Minute)
	without.Conversation.Uid = ""
	checkNewUID("Import without a uid", without)
	checkNewUID("Import of a conversation over itself", exported())
	copied := exported()
	copied.Conversation.Id = "copy"
	checkNewUID("Import of a copy", copied)
	deleted := exported()
	f.do(&store.Delete{ConversationID: "a"})
	f.observer.drain()
	checkNewUID("Import after a delete", deleted)
	f.do(&store.Delete{ConversationID: "a"})
	checkNewUID("Append after a delete", &store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("hello")}})
	expired := exported()
	expired.Conversation.Retention.Ttl.Seconds += 60
	f.clock.Advance(time.Hour)
	checkNewUID("Import after it expired", expired)
	if s.Durable {
		uid := f.header("a").GetUid()
		f.reopen(nil)
		same(t, "uid after reopening", f.header("a").GetUid(), uid)
	}
}

// identityOfImport overwrites a conversation with an earlier state of itself. The old uid, versions
// and tokens must be invalid for the new conversation, even at the same version.
func (s Subject) identityOfImport(t *testing.T) {
	f := s.open(t, nil)
	f.append("a", user("one"))
	exported := f.read("a")
	old := f.append("a", user("two")).Conversation
	known := store.Known{Version: old.GetVersion(), UID: old.GetUid()}
	f.observer.drain()
	imported := f.do(&store.Import{
		Conversation: proto.CloneOf(exported.Conversation), Messages: exported.Messages, Overwrite: true,
	})
	changes := f.observer.drain()
	same(t, "changes", summaries(changes), []string{
		"DELETED a version 2 count 2 trimmed 0", "CREATED a version 1 count 1 trimmed 0",
	})
	if changes[0].UID != old.GetUid() || changes[1].UID != imported.Conversation.GetUid() {
		t.Errorf("uids of the changes = %q and %q, want %q and %q", changes[0].UID, changes[1].UID, old.GetUid(),
			imported.Conversation.GetUid())
	}
	f.append("a", user("another two"))
	got, err := f.store.Read(t.Context(), &store.Read{Tenant: tenant, ConversationID: "a", Newest: -1, Known: known})
	if err != nil || got.Unchanged || got.Conversation.GetVersion() != known.Version {
		t.Errorf("Read, known %+v: %+v, %v; want the other history at the same version", known, got, err)
	}
	f.expectError(&store.Append{ConversationID: "a", UID: old.GetUid(), Messages: []*parleyv1.Message{user("three")}},
		store.ErrNotFound)
	f.do(&store.Append{
		ConversationID: "a", UID: imported.Conversation.GetUid(), Messages: []*parleyv1.Message{user("three")},
	})
}
