package storetest

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// law14Identity creates conversations of one id in every way, from exports of each other, and
// checks that no uid occurs twice.
func (s Subject) law14Identity(t *testing.T) {
	t.Run("every creation has a new uid", s.identityIsNew)
	t.Run("an import over a conversation is another one", s.identityOfImport)
}

func (s Subject) identityIsNew(t *testing.T) {
	f := s.open(t, nil)
	seen := make(map[string]string) // by uid, how its conversation was made
	made := func(how string, w any) {
		t.Helper()
		result := f.do(w)
		c := result.Conversation
		uid := f.header(c.GetId()).GetUid()
		if by, ok := seen[uid]; ok || uid == "" || c.GetUid() != uid {
			t.Errorf("%s: uid %q, already used by %s; the result has %q", how, uid, by, c.GetUid())
		}
		seen[uid] = how
		changes := f.seen.take()
		if created := changes[len(changes)-1]; created.UID != uid {
			t.Errorf("%s: the change has uid %q, want %q", how, created.UID, uid)
		}
	}
	exported := func() *store.Import {
		t.Helper()
		snapshot := f.read("a")
		return &store.Import{Conversation: snapshot.Conversation, Messages: snapshot.Messages, Overwrite: true}
	}
	made("Create", &store.Create{Conversation: &parleyv1.Conversation{Id: "created", Uid: "mine"}})
	made("Append", &store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("hello")}})
	made("Create of a fork", &store.Create{
		Conversation: &parleyv1.Conversation{Id: "fork", ForkedFrom: &parleyv1.ForkOrigin{ConversationId: "a", Sequence: 1}}, Messages: f.read("a").Messages,
	})
	made("Import of one from elsewhere", f.importing("imported", time.Minute))
	again := f.importing("imported", time.Minute)
	again.Overwrite = true
	made("Import over it", again)
	without := f.importing("without", time.Minute)
	without.Conversation.Uid = ""
	made("Import without a uid", without)
	made("Import of a conversation over itself", exported())
	copied := exported()
	copied.Conversation.Id = "copy"
	made("Import of a conversation beside itself", copied)
	deleted := exported()
	f.do(&store.Delete{ConversationID: "a"})
	f.seen.take()
	made("Import after a delete", deleted)
	f.do(&store.Delete{ConversationID: "a"})
	made("Append after a delete", &store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("hello")}})
	expired := exported()
	expired.Conversation.Retention.Ttl.Seconds += 60
	f.clock.Advance(time.Hour)
	made("Import after it expired", expired)
	if s.Durable {
		uid := f.header("a").GetUid()
		f.reopen(nil)
		same(t, "uid after the store was opened again", f.header("a").GetUid(), uid)
	}
}

// identityOfImport overwrites a conversation with an earlier state of itself. Its uid, versions and
// tokens are invalid for the new one, even at the same version.
func (s Subject) identityOfImport(t *testing.T) {
	f := s.open(t, nil)
	f.append("a", user("one"))
	exported := f.read("a")
	old := f.append("a", user("two")).Conversation
	known := store.Known{Version: old.GetVersion(), UID: old.GetUid()}
	f.seen.take()
	imported := f.do(&store.Import{Conversation: proto.CloneOf(exported.Conversation), Messages: exported.Messages, Overwrite: true})
	changes := f.seen.take()
	same(t, "changes", brief(changes), []string{"DELETED a version 2 count 2 trimmed 0", "CREATED a version 1 count 1 trimmed 0"})
	if changes[0].UID != old.GetUid() || changes[1].UID != imported.Conversation.GetUid() {
		t.Errorf("uids of the changes = %q and %q, want %q and %q", changes[0].UID, changes[1].UID, old.GetUid(), imported.Conversation.GetUid())
	}
	f.append("a", user("another two"))
	got, err := f.store.Read(t.Context(), &store.Read{Tenant: tenant, ConversationID: "a", Newest: -1, Known: known})
	if err != nil || got.Unchanged || got.Conversation.GetVersion() != known.Version {
		t.Errorf("Read, known %+v: %+v, %v; want the other history at the same version", known, got, err)
	}
	f.refuse(&store.Append{ConversationID: "a", UID: old.GetUid(), Messages: []*parleyv1.Message{user("three")}}, store.ErrNotFound)
	f.do(&store.Append{ConversationID: "a", UID: imported.Conversation.GetUid(), Messages: []*parleyv1.Message{user("three")}})
}
