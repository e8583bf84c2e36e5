package storetest

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// update tests the fields of Update.
func (s Subject) update(t *testing.T) {
	full := &parleyv1.Conversation{
		Title: "title", Labels: map[string]string{"team": "blue", "tier": "gold"}, Agent: "writer", SystemPrompt: "be brief",
		Retention: &parleyv1.Retention{MaxMessages: 7, Ttl: durationpb.New(2 * time.Hour)},
	}
	other := &parleyv1.Conversation{
		Title: "other", Labels: map[string]string{"team": "red"}, Agent: "reviewer", SystemPrompt: "be long",
		Retention: &parleyv1.Retention{MaxMessages: 8, Ttl: durationpb.New(3 * time.Hour)},
	}
	for _, test := range []struct {
		name   string
		fields []string
		values *parleyv1.Conversation
		want   func(c *parleyv1.Conversation)
	}{
		{"title", []string{"title"}, other, func(c *parleyv1.Conversation) { c.Title = "other" }},
		{
			"labels, replaced completely",
			[]string{"labels"},
			other,
			func(c *parleyv1.Conversation) { c.Labels = other.GetLabels() },
		},
		{"agent", []string{"agent"}, other, func(c *parleyv1.Conversation) { c.Agent = "reviewer" }},
		{"system_prompt", []string{"system_prompt"}, other, func(c *parleyv1.Conversation) { c.SystemPrompt = "be long" }},
		{
			"max_messages",
			[]string{"retention.max_messages"},
			other,
			func(c *parleyv1.Conversation) { c.Retention.MaxMessages = 8 },
		},
		{
			"ttl",
			[]string{"retention.ttl"},
			other,
			func(c *parleyv1.Conversation) { c.Retention.Ttl = durationpb.New(3 * time.Hour) },
		},
		{
			"several",
			[]string{"agent", "title"},
			other,
			func(c *parleyv1.Conversation) { c.Title, c.Agent = "other", "reviewer" },
		},
		{
			"all cleared",
			[]string{"title", "labels", "agent", "system_prompt", "retention.max_messages", "retention.ttl"},
			nil,
			func(c *parleyv1.Conversation) {
				c.Title, c.Labels, c.Agent, c.SystemPrompt = "", nil, "", ""
				c.Retention = &parleyv1.Retention{MaxMessages: 20, Ttl: durationpb.New(time.Hour)}
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := s.open(t, nil)
			chosen := proto.CloneOf(full)
			chosen.Id = "a"
			want := f.do(&store.Create{Conversation: chosen}).Conversation
			f.clock.Advance(time.Second)
			test.want(want)
			want.Version, want.UpdateTime = 2, timestamppb.New(f.clock.Now())
			want.ExpireTime = timestamppb.New(want.GetCreateTime().AsTime().Add(want.GetRetention().GetTtl().AsDuration()))
			result := f.do(&store.Update{ConversationID: "a", Fields: test.fields, Values: test.values})
			withoutPrompt := proto.CloneOf(want)
			withoutPrompt.SystemPrompt = ""
			same(t, "result", result, &store.Result{Conversation: withoutPrompt})
			same(t, "header", f.header("a"), want)

			f.observer.drain()
			f.clock.Advance(time.Second)
			result = f.do(&store.Update{ConversationID: "a", Fields: test.fields, Values: test.values})
			same(t, "repeated update", result, &store.Result{Conversation: withoutPrompt})
			same(t, "header after the repeated update", f.header("a"), want)
			if changes := f.observer.drain(); len(changes) > 0 {
				t.Errorf("repeated update reported %v", summaries(changes))
			}
		})
	}
	t.Run("all parts in one step", func(t *testing.T) {
		f := s.open(t, nil)
		f.append("a", user("one"), user("two"), user("three"), user("four"))
		f.observer.drain()
		c := f.do(&store.Update{
			ConversationID: "a", IfVersion: new(int32(1)), KeepThrough: new(int32(3)), Lease: &store.Lease{Agent: "writer"},
			Fields: []string{"title", "retention.max_messages"},
			Values: &parleyv1.Conversation{Title: "title", Retention: &parleyv1.Retention{MaxMessages: 2}},
		}).Conversation
		if c.GetVersion() != 2 || c.GetTitle() != "title" || c.GetActiveAgent().GetAgent() != "writer" ||
			c.GetMessageCount() != 2 {
			t.Errorf("Update = %v", c)
		}
		same(t, "changes", summaries(f.observer.drain()), []string{"CLEARED a version 2 count 1 trimmed 1, removed after 3"})
	})
	t.Run("errors", func(t *testing.T) {
		f := s.open(t, nil)
		f.expectError(&store.Update{ConversationID: "none", Lease: &store.Lease{Agent: "writer"}, IfVersion: new(int32)},
			store.ErrNotFound)
		f.create("a")
		title := &store.Update{ConversationID: "a", Fields: []string{"title"}, Values: other, IfVersion: new(int32(2))}
		f.expectError(title, &store.VersionError{Current: 1, Required: 2})
		f.beginTurn("a", "turn")
		f.expectError(&store.Update{ConversationID: "a", KeepThrough: new(int32), IfVersion: new(int32(9))},
			&store.BusyError{TurnID: "turn"})
		f.do(title)
	})
}

// lease tests routing leases.
func (s Subject) lease(t *testing.T) {
	f := s.open(t, nil)
	f.append("a", user("hello"))
	lease := func(l store.Lease) *parleyv1.ActiveAgent {
		f.clock.Advance(time.Second)
		return f.do(&store.Update{ConversationID: "a", Lease: &l}).Conversation.GetActiveAgent()
	}
	got := lease(store.Lease{Agent: "writer", Reason: "asked for", Duration: time.Minute})
	now := f.clock.Now()
	want := &parleyv1.ActiveAgent{
		Agent: "writer", Reason: "asked for", StartTime: timestamppb.New(now),
		LeaseExpireTime: timestamppb.New(now.Add(time.Minute)),
	}
	same(t, "lease", got, want)
	same(t, "lease that is read", f.header("a").GetActiveAgent(), want)
	f.append("a", user("hello"))
	same(t, "lease after an append", f.header("a").GetActiveAgent(), want)

	// The end of a lease is not a change: from then on reads do not return it, and the version
	// stays the same.
	f.clock.Advance(time.Minute - time.Millisecond - 1)
	before := f.header("a")
	same(t, "lease before its end", before.GetActiveAgent(), want)
	f.clock.Advance(1)
	f.observer.drain()
	before.ActiveAgent = nil
	same(t, "header after the end of the lease", f.header("a"), before)
	same(t, "or get", f.do(&store.Create{Conversation: &parleyv1.Conversation{Id: "a"}, OrGet: true}).Conversation, before)
	same(t, "empty update", f.do(&store.Update{ConversationID: "a"}).Conversation, before)
	same(t, "ending an ended lease", f.do(&store.Update{ConversationID: "a", Lease: &store.Lease{}}).Conversation, before)
	if changes := f.observer.drain(); len(changes) > 0 {
		t.Errorf("reported %v, want no changes", summaries(changes))
	}
	result := f.append("a", user("hello"))
	if c := result.Conversation; c.GetActiveAgent() != nil || c.GetVersion() != before.GetVersion()+1 {
		t.Errorf("Append after the end of the lease = %v", c)
	}

	got = lease(store.Lease{Agent: "reviewer"})
	same(t, "lease without an end", got, &parleyv1.ActiveAgent{
		Agent: "reviewer", StartTime: timestamppb.New(f.clock.Now()),
	})
	f.clock.Advance(30 * time.Minute)
	same(t, "half an hour later", f.header("a").GetActiveAgent(), got)
	if got := lease(store.Lease{Reason: "ignored"}); got != nil {
		t.Errorf("ended lease = %v, want none", got)
	}
}

// clear tests Update.KeepThrough.
func (s Subject) clear(t *testing.T) {
	for _, test := range []struct {
		through int32
		kept    []int32
		preview string
		types   []string
	}{
		{-1, nil, "", nil},
		{0, nil, "", nil},
		{3, nil, "", nil},
		{4, []int32{4}, "m4", []string{"t4"}},
		{5, []int32{4, 5}, "m5", []string{"t4", "t5"}},
		{6, []int32{4, 5, 6}, "m6", []string{"t4", "t5", "t6"}},
		{7, []int32{4, 5, 6}, "m6", []string{"t4", "t5", "t6"}},
	} {
		f := s.open(t, func(o *store.Options) { o.MaxMessages = 3 })
		f.append("a", user("q1"), assistant("m2", "t2"), user("q3"), assistant("m4", "t4"), assistant("m5", "t5"),
			assistant("m6", "t6"))
		f.clock.Advance(time.Second)
		before := f.header("a")
		f.observer.drain()
		c := f.do(&store.Update{ConversationID: "a", KeepThrough: &test.through}).Conversation
		same(t, "header", f.header("a"), c)
		var kept []int32
		for _, m := range f.messages("a") {
			kept = append(kept, m.GetSequence())
		}
		same(t, "kept", kept, test.kept)
		entry := f.entry("a")
		if entry.GetPreview() != test.preview {
			t.Errorf("preview = %q, want %q", entry.GetPreview(), test.preview)
		}
		var types []string
		for _, kind := range []string{"t2", "t4", "t5", "t6"} {
			if len(f.list(store.List{PageSize: 1, StructuredDataType: kind}).Entries) > 0 {
				types = append(types, kind)
			}
		}
		same(t, "types", types, test.types)
		same(t, "unchanged times", []*timestamppb.Timestamp{c.GetExpireTime(), c.GetLastAppendTime()},
			[]*timestamppb.Timestamp{before.GetExpireTime(), before.GetLastAppendTime()})
		version, changes := before.GetVersion(), f.observer.drain()
		if len(test.kept) < 3 {
			version++
		}
		if c.GetVersion() != version || len(changes) != int(version-before.GetVersion()) {
			t.Errorf("KeepThrough %d: version = %d, changes = %v", test.through, c.GetVersion(), summaries(changes))
		}
		// Sequences and exchanges continue.
		if a := f.append("a", user("next")).Appended[0]; a.GetSequence() != 7 || a.GetExchange() != 3 {
			t.Errorf("KeepThrough %d: next message = %v, want sequence 7 and exchange 3", test.through, a)
		}
	}
}
