package storetest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// law18Replacing replaces the end of a history.
func (s Subject) law18Replacing(t *testing.T) {
	t.Run("one step", s.replaceInOneStep)
	t.Run("with other writers and readers", s.replaceConcurrently)
}

func (s Subject) replaceInOneStep(t *testing.T) {
	f := s.open(t, nil)
	f.append("a", user("q1"), assistant("m2", "t2"), user("q3"), assistant("m4", "t4"))
	f.clock.Advance(time.Second)
	f.observer.drain()
	replacement := &store.Append{
		ConversationID: "a", ReplaceAfter: new(int32(2)), Request: request("r", "replace"), IfVersion: new(int32(1)),
		Messages: []*parleyv1.Message{user("q5"), assistant("m6", "t6")},
	}
	first := f.do(replacement)
	for i, want := range []*parleyv1.AppendedMessage{{Sequence: 5, Exchange: 3}, {Sequence: 6, Exchange: 3}} {
		if got := first.Appended[i]; got.GetSequence() != want.GetSequence() || got.GetExchange() != want.GetExchange() {
			t.Errorf("appended %d = %v, want %v", i, got, want)
		}
	}
	same(t, "header", f.header("a"), first.Conversation)
	f.wantSequences(1, 2, 5, 6)
	if c := first.Conversation; c.GetVersion() != 2 || c.GetLastSequence() != 6 || c.GetMessageCount() != 4 {
		t.Errorf("header = %v, want version 2, last_sequence 6 and 4 messages", c)
	}
	if got := f.entry("a").GetPreview(); got != "m6" {
		t.Errorf("preview = %q, want m6", got)
	}
	f.wantTypes("t2", "t6")
	changes := f.observer.drain()
	same(t, "changes", summaries(changes), []string{
		"CLEARED a version 2 count 2 trimmed 0, removed after 2",
		"MESSAGE_APPENDED a version 2 count 3 trimmed 0", "MESSAGE_APPENDED a version 2 count 4 trimmed 0",
	})
	same(t, "header of CLEARED", changes[0].Conversation, first.Conversation)

	// A retry after another append removes nothing.
	f.append("a", user("q7"))
	f.observer.drain()
	if s.Durable {
		f.reopen(nil)
	}
	retry := f.do(replacement)
	if !retry.Replayed {
		t.Error("the retry is not marked as replayed")
	}
	same(t, "appended by the retry", retry.Appended, first.Appended)
	f.wantSequences(1, 2, 5, 6, 7)
	if changes := f.observer.drain(); len(changes) > 0 {
		t.Errorf("the retry reported %v", summaries(changes))
	}
	f.expectError(&store.Append{ConversationID: "a", ReplaceAfter: new(int32), Request: request("r", "other")},
		store.ErrRequestReused)
}

// replaceConcurrently replaces a history of three messages while others append to it and read it. Each read returns the
// messages of one replacement, and those that were appended after it.
func (s Subject) replaceConcurrently(t *testing.T) {
	const workers, writes = 4, 30
	f := s.open(t, func(o *store.Options) { o.MaxMessages = 1000 })
	replace := func(name string) error {
		_, err := f.store.Append(t.Context(), &store.Append{
			Tenant: tenant, ConversationID: "a", ReplaceAfter: new(int32),
			Messages: []*parleyv1.Message{user(name), assistant(name), assistant(name)},
		})
		return err
	}
	if err := replace("first"); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for worker := range workers {
		group.Go(func() {
			for n := range writes {
				if err := replace(fmt.Sprint(worker, " ", n)); err != nil {
					t.Errorf("replace: %v", err)
				}
			}
		})
		group.Go(func() {
			for range writes {
				_, err := f.store.Append(t.Context(), &store.Append{
					Tenant: tenant, ConversationID: "a", Messages: []*parleyv1.Message{user("appended")},
				})
				if err != nil {
					t.Errorf("append: %v", err)
				}
			}
		})
		group.Go(func() {
			for range writes {
				snapshot, err := f.store.Read(t.Context(), &store.Read{Tenant: tenant, ConversationID: "a", Newest: -1})
				if err != nil {
					t.Errorf("Read: %v", err)
					return
				}
				checkReplaced(t, snapshot)
			}
		})
	}
	group.Wait()
	const total = 3 + workers*writes*(3+1)
	c := f.header("a")
	if c.GetLastSequence() != total || c.GetVersion() != 1+2*workers*writes {
		t.Errorf("header = %v, want last_sequence %d and version %d", c, total, 1+2*workers*writes)
	}
	sequence, version, cleared := int32(0), int32(0), 0
	for _, change := range f.observer.drain() {
		if change.Version < version {
			t.Errorf("change of version %d after %d", change.Version, version)
		}
		version = change.Version
		if change.Kind == parleyv1.ChangeKind_CHANGE_KIND_CLEARED {
			cleared++
		}
		if change.Message == nil {
			continue
		}
		sequence++
		if change.Message.Sequence() != sequence {
			t.Errorf("observed sequence %d, want %d", change.Message.Sequence(), sequence)
		}
	}
	if cleared != workers*writes {
		t.Errorf("observed %d CLEARED, want %d", cleared, workers*writes)
	}
}

// checkReplaced checks that a conversation begins with the three messages of one replacement, and that its sequences
// rise by one.
func checkReplaced(t *testing.T, snapshot *store.Snapshot) {
	t.Helper()
	messages, err := snapshot.Messages.Messages()
	if err != nil || len(messages) < 3 {
		t.Errorf("Read returned %d messages, %v, want at least 3", len(messages), err)
		return
	}
	for i, m := range messages {
		if m.GetSequence() != messages[0].GetSequence()+int32(i) {
			t.Errorf("message %d has the sequence %d, want %d", i, m.GetSequence(), messages[0].GetSequence()+int32(i))
		}
		if (m.GetContent() == messages[0].GetContent()) != (i < 3) {
			t.Errorf("message %d is %q, after a replacement by %q", i, m.GetContent(), messages[0].GetContent())
		}
	}
}

// replace tests what Append.ReplaceAfter removes, and its errors.
func (s Subject) replace(t *testing.T) {
	for _, test := range []struct {
		name     string
		after    int32
		messages []*parleyv1.Message
		want     []int32
		changes  []string
	}{
		{"all", 0, []*parleyv1.Message{user("q4")}, []int32{4}, []string{
			"CLEARED a version 2 count 3 trimmed 0, removed after 0", "MESSAGE_APPENDED a version 2 count 1 trimmed 0",
		}},
		{"nothing", 3, []*parleyv1.Message{user("q4")}, []int32{1, 2, 3, 4}, []string{
			"MESSAGE_APPENDED a version 2 count 4 trimmed 0",
		}},
		{"after the end", 9, []*parleyv1.Message{user("q4")}, []int32{1, 2, 3, 4}, []string{
			"MESSAGE_APPENDED a version 2 count 4 trimmed 0",
		}},
		{"by nothing", 1, nil, []int32{1}, []string{"CLEARED a version 2 count 2 trimmed 0, removed after 1"}},
		{"nothing by nothing", 3, nil, []int32{1, 2, 3}, nil},
	} {
		f := s.open(t, nil)
		f.append("a", user("q1"), assistant("m2"), user("q3"))
		before := f.header("a")
		f.observer.drain()
		f.clock.Advance(time.Second)
		result := f.do(&store.Append{ConversationID: "a", ReplaceAfter: &test.after, Messages: test.messages})
		f.wantSequences(test.want...)
		same(t, test.name+": header", f.header("a"), result.Conversation)
		same(t, test.name+": changes", summaries(f.observer.drain()), test.changes)
		if test.changes == nil {
			same(t, test.name+": unchanged header", result.Conversation, before)
		}
		renewed := !proto.Equal(result.Conversation.GetLastAppendTime(), before.GetLastAppendTime())
		if renewed != (len(test.messages) > 0) {
			t.Errorf("%s: the ttl starts again = %t, want %t", test.name, renewed, len(test.messages) > 0)
		}
	}
	t.Run("a request is stored even if nothing is removed", func(t *testing.T) {
		f := s.open(t, nil)
		f.append("a", user("q1"))
		empty := &store.Append{ConversationID: "a", ReplaceAfter: new(int32(1)), Request: request("r", "")}
		f.do(empty)
		f.append("a", user("q2"))
		if result := f.do(empty); !result.Replayed || result.Conversation.GetVersion() != 3 {
			t.Errorf("retry = %+v, want it replayed at version 3", result)
		}
		f.wantSequences(1, 2)
	})
	t.Run("a missing conversation", func(t *testing.T) {
		f := s.open(t, nil)
		f.expectError(&store.Append{ConversationID: "a", ReplaceAfter: new(int32), MustExist: true}, store.ErrNotFound)
		f.do(&store.Append{ConversationID: "a", ReplaceAfter: new(int32(7)), Messages: []*parleyv1.Message{user("q1")}})
		f.wantSequences(1)
	})
	t.Run("turns", func(t *testing.T) {
		f := s.open(t, nil)
		f.beginTurn("a", "turn")
		f.expectError(&store.Append{ConversationID: "a", ReplaceAfter: new(int32), IfVersion: new(int32(9))},
			&store.BusyError{TurnID: "turn"})
		f.endTurn("a", "turn")
		f.expectError(&store.Append{ConversationID: "a", ReplaceAfter: new(int32), IfVersion: new(int32(9))},
			&store.VersionError{Current: 2, Required: 9})
		turn := f.do(&store.Append{
			ConversationID: "a", ReplaceAfter: new(int32), Messages: []*parleyv1.Message{user("again")},
			Begin: &parleyv1.Turn{Id: "next"},
		}).Turn
		if turn.GetInputSequence() != 3 {
			t.Errorf("turn = %v, want input_sequence 3", turn)
		}
	})
	t.Run("limits", func(t *testing.T) {
		f := s.open(t, func(o *store.Options) { o.MaxMessages = 3 })
		f.append("a", user("q1"), assistant("m2"), user("q3"))
		f.observer.drain()
		f.do(&store.Append{
			ConversationID: "a", ReplaceAfter: new(int32(1)),
			Messages: []*parleyv1.Message{assistant("m4"), assistant("m5"), assistant("m6")},
		})
		f.wantSequences(4, 5, 6)
		same(t, "changes", summaries(f.observer.drain()), []string{
			"CLEARED a version 2 count 2 trimmed 0, removed after 1", "MESSAGE_APPENDED a version 2 count 2 trimmed 0",
			"MESSAGE_APPENDED a version 2 count 3 trimmed 0", "MESSAGE_APPENDED a version 2 count 3 trimmed 1",
		})
	})
	t.Run("tool calls", s.replaceCalls)
}

// replaceCalls replaces messages between tool calls and their results.
func (s Subject) replaceCalls(t *testing.T) {
	type messages = []*parleyv1.Message
	twice := &store.SeparatedError{CallID: "c", Call: 2, Result: 4, Replacing: true}
	for _, test := range []struct {
		name   string
		before messages
		after  int32
		by     messages
		want   error
	}{
		{"a call with its result", messages{user("q1"), calling("c"), result("c")}, 1, nil, nil},
		{
			"a result",
			messages{user("q1"), calling("c"), result("c")},
			2,
			messages{user("q4")},
			&store.SeparatedError{CallID: "c", Call: 2, Result: 3, Replacing: true},
		},
		{"a result by another", messages{user("q1"), calling("c"), result("c")}, 2, messages{result("c")}, nil},
		{
			"two results by one",
			messages{user("q1"), calling("c", "c"), result("c"), result("c")},
			2,
			messages{result("c")},
			twice,
		},
		{"the second of two results", messages{user("q1"), calling("c", "c"), result("c"), result("c")}, 3, nil, twice},
		{
			"a result by one of a new call",
			messages{user("q1"), calling("c"), result("c")},
			2,
			messages{calling("c"), result("c")},
			&store.SeparatedError{CallID: "c", Call: 2, Result: 3, Replacing: true},
		},
		{"messages after an open call", messages{user("q1"), calling("c"), user("q3")}, 2, nil, nil},
		{"a result without a call", messages{user("q1"), result("c")}, 1, nil, nil},
		{"a second result", messages{calling("c"), result("c"), result("c")}, 2, nil, nil},
		{"a later call with the same id", messages{calling("c"), calling("c"), result("c")}, 1, nil, nil},
	} {
		f := s.open(t, nil)
		f.append("a", test.before...)
		w := &store.Append{ConversationID: "a", ReplaceAfter: &test.after, Messages: test.by}
		if test.want != nil {
			f.expectError(w, test.want)
		} else if result, err := f.try(w); err != nil || result == nil {
			t.Errorf("%s: Append = %v, %v, want no error", test.name, result, err)
		}
	}
}

// wantSequences checks the sequences of the retained messages of conversation a.
func (f *fixture) wantSequences(want ...int32) {
	f.t.Helper()
	var got []int32
	for _, m := range f.messages("a") {
		got = append(got, m.GetSequence())
	}
	same(f.t, "sequences", got, want)
}

// wantTypes checks which of the types t1 to t9 of structured data the conversations have.
func (f *fixture) wantTypes(want ...string) {
	f.t.Helper()
	var got []string
	for i := range 9 {
		kind := fmt.Sprint("t", i+1)
		if len(f.list(store.List{PageSize: 1, StructuredDataType: kind}).Entries) > 0 {
			got = append(got, kind)
		}
	}
	same(f.t, "types", got, want)
}
