package rpc

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func drawWindow(t *rapid.T) *parleyv1.ContextWindow {
	bound := func(most int32, name string) int32 {
		return rapid.OneOf(rapid.Just(int32(0)), rapid.Int32Range(1, most)).Draw(t, name)
	}
	return &parleyv1.ContextWindow{
		MaxMessages: bound(30, "messages"), MaxExchanges: bound(12, "exchanges"), MaxBytes: bound(10_000, "bytes"),
		CacheStable: rapid.Bool().Draw(t, "cache_stable"),
	}
}

// checkWindow compares a random window with the longest that keeps the laws.
func (w *world) checkWindow(t *rapid.T) {
	w.exists(t)
	window := drawWindow(t)
	reply, err := w.f.GetContext(t.Context(), &parleyv1.GetContextRequest{ConversationId: w.id, Window: window})
	if err != nil {
		t.Fatal(err)
	}
	got := reply.GetMessages()
	start := len(w.kept) - len(got)
	if int(reply.GetOmittedCount()) != start || reply.GetVersion() != w.header.GetVersion() {
		t.Fatalf("%v: %d messages of %d, %d left out, version %d", window, len(got), len(w.kept), reply.GetOmittedCount(), reply.GetVersion())
	}
	for i, m := range got {
		if !proto.Equal(w.kept[start+i], m) {
			t.Fatalf("%v: message %d of the window (-want +got):\n%s", window, i, cmp.Diff(w.kept[start+i], m, protocmp.Transform()))
		}
	}
	if fault := windowFault(w.kept, start, window); fault != "" {
		t.Fatalf("%v: a window of %d messages of %d: %s", window, len(got), len(w.kept), fault)
	}
	longest := 0
	for windowFault(w.kept, longest, window) != "" {
		longest++
	}
	if start != longest && tooShort(got, w.kept[longest:], window) {
		t.Fatalf("%v: the window has %d messages and %d exchanges, %d and %d fit",
			window, len(got), exchangesIn(got), len(w.kept)-longest, exchangesIn(w.kept[longest:]))
	}
}

// tooShort reports whether a window is too short in place of the longest. With cache_stable
// half of it will do, in exchanges, or under max_bytes alone in bytes, of which a quarter of
// the bound is enough. As it is kept a message may be two bytes longer than need be.
func tooShort(got, longest []*parleyv1.Message, w *parleyv1.ContextWindow) bool {
	switch {
	case !w.GetCacheStable():
		return true
	case w.GetMaxMessages()+w.GetMaxExchanges() > 0:
		return 2*exchangesIn(got) < exchangesIn(longest)
	default:
		has := bytesIn(got) + 2*len(longest)
		return 2*has < bytesIn(longest) && 4*has < int(w.GetMaxBytes()) || w.GetMaxBytes() == 0
	}
}

func bytesIn(messages []*parleyv1.Message) int {
	size := 0
	for _, m := range messages {
		size += proto.Size(m)
	}
	return size
}

// windowFault says which law the window that begins at start breaks, "" for none.
func windowFault(kept []*parleyv1.Message, start int, w *parleyv1.ContextWindow) string {
	window := kept[start:]
	if len(window) == 0 {
		return ""
	}
	for i, m := range kept {
		if m.GetToolResult() == nil {
			continue
		}
		call := callOf(kept, i)
		switch {
		case call < 0 && i >= start:
			return "a result whose call is not kept"
		case call >= 0 && (call >= start) != (i >= start):
			return "a result is parted from its call"
		}
	}
	switch {
	case window[0].GetRole() != parleyv1.Role_ROLE_USER:
		return "the first message is not the user's"
	case w.GetMaxMessages() > 0 && len(window) > int(w.GetMaxMessages()):
		return "too many messages"
	case w.GetMaxExchanges() > 0 && exchangesIn(window) > int(w.GetMaxExchanges()):
		return "too many exchanges"
	case w.GetMaxBytes() > 0 && bytesIn(window) > int(w.GetMaxBytes()):
		return "too many bytes"
	}
	return ""
}

// callOf is where the call is that a result answers, the nearest ahead of it; -1 is nowhere.
func callOf(kept []*parleyv1.Message, result int) int {
	id := kept[result].GetToolResult().GetCallId()
	for i, m := range slices.Backward(kept[:result]) {
		if slices.ContainsFunc(m.GetToolCalls(), func(c *parleyv1.ToolCall) bool { return c.GetId() == id }) {
			return i
		}
	}
	return -1
}

// exchangesIn counts exchanges: each has one message of the user.
func exchangesIn(messages []*parleyv1.Message) int {
	n := 0
	for _, m := range messages {
		if m.GetRole() == parleyv1.Role_ROLE_USER {
			n++
		}
	}
	return n
}

// TestCacheStable lets a conversation grow by one exchange at a time: the window goes on
// from what it was, so that its beginning stays the same, for at least half a window.
func TestCacheStable(t *testing.T) {
	f, made := open(t, nil), 0
	rapid.Check(t, func(t *rapid.T) {
		made++
		exchange := []*parleyv1.Message{user("question"), assistant("answer")}
		if rapid.Bool().Draw(t, "tools") {
			call, result := assistant(""), &parleyv1.Message{Role: parleyv1.Role_ROLE_TOOL, ToolResult: &parleyv1.ToolResult{CallId: "1"}}
			call.ToolCalls = []*parleyv1.ToolCall{{Id: "1", Name: "tool"}}
			exchange = slices.Insert(exchange, 1, call, result)
		}
		length := int32(len(exchange))
		bound := rapid.Int32Range(1, 6).Draw(t, "exchanges")
		window, half := &parleyv1.ContextWindow{CacheStable: true}, int(bound/2)
		switch unit := rapid.SampledFrom([]string{"exchanges", "messages", "bytes"}).Draw(t, "unit"); unit {
		case "exchanges":
			window.MaxExchanges, half = bound, int(bound+1)/2
			bound *= length
		case "messages":
			bound = bound*length + rapid.Int32Range(0, length-1).Draw(t, "and messages")
			window.MaxMessages, half = bound, int((bound+1)/2/length)
		case "bytes":
			size := sizeKept(t, f, fmt.Sprint("m", made), exchange)
			// Times differ in length: no bound that a few bytes more or less would make another.
			window.MaxBytes = bound*size + rapid.Int32Range(size/2, size*9/10).Draw(t, "and bytes")
			bound *= length
		}
		c := &parleyv1.Conversation{Id: fmt.Sprint("c", made), Retention: &parleyv1.Retention{
			MaxMessages: rapid.SampledFrom([]int32{bound, 2 * bound, 1000}).Draw(t, "kept"),
		}}
		if _, err := f.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{Conversation: c}); err != nil {
			t.Fatal(err)
		}
		var before []*parleyv1.Message
		stays := []int{0} // exchanges, by beginning
		for range 4*bound/length + 2 {
			if _, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{ConversationId: c.GetId(), Messages: exchange}); err != nil {
				t.Fatal(err)
			}
			reply, err := f.GetContext(t.Context(), &parleyv1.GetContextRequest{ConversationId: c.GetId(), Window: window})
			if err != nil || len(reply.GetMessages()) == 0 {
				t.Fatalf("window %v: %v", reply, err)
			}
			if now := reply.GetMessages(); len(before) > len(now) || !slices.EqualFunc(before, now[:len(before)], equalMessages) {
				stays = append(stays, 0)
			}
			stays[len(stays)-1]++
			before = reply.GetMessages()
		}
		if len(stays) < 4 || slices.Min(stays[:len(stays)-1]) < max(1, half) {
			t.Fatalf("%v: beginnings stay for %v exchanges, want %d at least", window, stays, half)
		}
	})
}

// sizeKept returns how many bytes messages take in a window.
func sizeKept(t *rapid.T, f *fixture, id string, messages []*parleyv1.Message) int32 {
	if _, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{ConversationId: id, Messages: messages}); err != nil {
		t.Fatal(err)
	}
	reply, err := f.GetContext(t.Context(), &parleyv1.GetContextRequest{ConversationId: id})
	if err != nil {
		t.Fatal(err)
	}
	return int32(bytesIn(reply.GetMessages()))
}

func equalMessages(a, b *parleyv1.Message) bool { return proto.Equal(a, b) }
