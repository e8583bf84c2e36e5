package storetest

import (
	"crypto/sha256"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// law02NoSharedMemory modifies all arguments after each call and all results.
func (s Subject) law02NoSharedMemory(t *testing.T) {
	t.Run("arguments", func(t *testing.T) {
		f, twin := s.open(t, nil), s.open(t, nil)
		for _, f := range []*fixture{f, twin} {
			for _, write := range writes(f) {
				f.do(write)
				if f != twin {
					modifyWrite(write)
				}
			}
		}
		if again := f.do(writes(f)[4]); !again.Replayed {
			t.Error("a request was not replayed after the argument was modified")
		}
		same(t, "after the arguments were modified", withoutUIDs(f.all()), withoutUIDs(twin.all()))
	})
	t.Run("results", func(t *testing.T) {
		f := s.open(t, nil)
		for _, write := range writes(f) {
			result := f.do(write)
			before := f.all()
			modifyResult(result)
			same(t, "after a result was modified", f.all(), before)
		}
		before, page := f.all(), f.list(store.List{PageSize: 10})
		for _, entry := range page.Entries {
			modify(entry)
		}
		for id := range before {
			snapshot := f.read(id)
			modify(snapshot.Conversation)
			clear(snapshot.Messages)
			for _, turn := range snapshot.Turns {
				modify(turn)
			}
			for _, events := range snapshot.Events {
				modify(events)
			}
		}
		same(t, "after snapshots were modified", f.all(), before)
		for _, change := range f.observer.drain() {
			clear(change.Message)
			if change.Conversation != nil {
				modify(change.Conversation)
			}
		}
		same(t, "after changes were modified", f.all(), before)
	})
	t.Run("snapshots do not change", func(t *testing.T) {
		f := s.open(t, nil)
		f.append("a", user("hello"), assistant("hi", "greeting"))
		old := f.read("a")
		header, messages := proto.CloneOf(old.Conversation), string(old.Messages)
		for range 50 {
			f.append("a", user("again"), assistant("and again"))
		}
		f.do(&store.Delete{ConversationID: "a"})
		for range 50 {
			f.append("b", user("something else"))
		}
		same(t, "header", old.Conversation, header)
		same(t, "messages", string(old.Messages), messages)
	})
}

// writes returns writes that together contain every kind of data.
func writes(f *fixture) []any {
	if _, err := f.try(&store.Create{Conversation: &parleyv1.Conversation{Id: "source"}}); err == nil {
		f.append("source", user("to be copied"), assistant("copied", "copy"))
	}
	return []any{
		&store.Create{
			Conversation: &parleyv1.Conversation{
				Id: "fork", Title: "title", Labels: map[string]string{"team": "blue"},
				Retention:  &parleyv1.Retention{Ttl: durationpb.New(time.Minute)},
				ForkedFrom: &parleyv1.ForkOrigin{ConversationId: "source", Sequence: 2},
			},
			Messages: f.read("source").Messages,
			Request:  &store.Request{ID: "forking", Method: "ForkConversation", Digest: sha256.Sum256(nil)},
		},
		&store.Append{
			ConversationID: "a", Messages: []*parleyv1.Message{user("question"), assistant("answer", "list")},
			Begin:   &parleyv1.Turn{Id: "turn", Agent: "writer", RequestId: "r", CreateTime: timestamppb.New(f.clock.Now())},
			Request: request("r", "question"), Events: turnEvents(1),
		},
		&store.Append{
			ConversationID: "a", Messages: []*parleyv1.Message{assistant("answer")},
			End: &parleyv1.Turn{
				Id: "turn", State: parleyv1.TurnState_TURN_STATE_FAILED, Error: &parleyv1.TurnError{Reason: "AGENT_FAILED"},
			},
			Events: turnEvents(2),
		},
		&store.Update{
			ConversationID: "a",
			Values: &parleyv1.Conversation{
				Title: "title", Labels: map[string]string{"team": "red"},
				Retention: &parleyv1.Retention{Ttl: durationpb.New(time.Minute)},
			},
			Fields: []string{"title", "labels", "retention.ttl"},
			Lease:  &store.Lease{Agent: "writer", Reason: "asked for", Duration: time.Minute},
		},
		&store.Append{
			ConversationID: "a", Messages: []*parleyv1.Message{user("question")}, Request: request("r2", "question"),
		},
		f.newImport("imported", time.Minute),
	}
}

// withoutUIDs clears the uids of snapshots, which differ between any two stores.
func withoutUIDs(all map[string]*store.Snapshot) map[string]*store.Snapshot {
	for _, snapshot := range all {
		snapshot.Conversation.Uid = ""
	}
	return all
}

func modifyWrite(write any) {
	switch w := write.(type) {
	case *store.Create:
		modify(w.Conversation)
		clear(w.Messages)
		*w.Request = store.Request{}
	case *store.Append:
		for _, m := range w.Messages {
			modify(m)
		}
		modify(w.Begin)
		modify(w.End)
		modify(w.Events)
		if w.Request != nil {
			*w.Request = store.Request{}
		}
	case *store.Import:
		modify(w.Conversation)
		clear(w.Messages)
	case *store.Update:
		modify(w.Values)
		*w.Lease = store.Lease{}
		clear(w.Fields)
	}
}

func modifyResult(r *store.Result) {
	modify(r.Conversation)
	modify(r.Turn)
	for _, a := range r.Appended {
		modify(a)
	}
}

// modify changes every field of a message in place, at every depth.
func modify(m proto.Message) {
	r := m.ProtoReflect()
	if !r.IsValid() {
		return
	}
	r.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap():
			v.Map().Range(func(key protoreflect.MapKey, _ protoreflect.Value) bool {
				v.Map().Set(key, protoreflect.ValueOfString("modified"))
				return true
			})
		case field.IsList() && field.Message() == nil:
			v.List().Set(0, v.List().Get(v.List().Len()-1))
		case field.IsList():
			for i := range v.List().Len() {
				modify(v.List().Get(i).Message().Interface())
			}
		case field.Message() != nil:
			modify(v.Message().Interface())
		case field.Kind() == protoreflect.StringKind:
			r.Set(field, protoreflect.ValueOfString("modified"))
		default:
			r.Clear(field)
		}
		return true
	})
}
