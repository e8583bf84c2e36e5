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
	limit := func(highest int32, name string) int32 {
		return rapid.OneOf(rapid.Just(int32(0)), rapid.Int32Range(1, highest)).Draw(t, name)
	}
	return &parleyv1.ContextWindow{
		MaxMessages: limit(30, "messages"), MaxExchanges: limit(12, "exchanges"), MaxBytes: limit(10_000, "bytes"),
		CacheStable: rapid.Bool().Draw(t, "cache_stable"),
	}
}

// checkWindow compares the reply for a random window with the longest window that obeys the laws.
func (w *model) checkWindow(t *rapid.T) {
	w.mustExist(t)
	window := drawWindow(t)
	reply, err := w.f.GetContext(t.Context(), &parleyv1.GetContextRequest{ConversationId: w.id, Window: window})
	if err != nil {
		t.Fatal(err)
	}
	got := reply.GetMessages()
	start := len(w.stored) - len(got)
	if int(reply.GetOmittedCount()) != start || reply.GetVersion() != w.header.GetVersion() {
		t.Fatalf("%v: %d messages of %d, %d omitted, version %d",
			window, len(got), len(w.stored), reply.GetOmittedCount(), reply.GetVersion())
	}
	for i, m := range got {
		if !proto.Equal(w.stored[start+i], m) {
			t.Fatalf(
				"%v: message %d of the window (-want +got):\n%s",
				window,
				i,
				cmp.Diff(w.stored[start+i], m, protocmp.Transform()),
			)
		}
	}
	if fault := windowFault(w.stored, start, window); fault != "" {
		t.Fatalf("%v: a window of %d messages of %d: %s", window, len(got), len(w.stored), fault)
	}
	longest := 0
	for windowFault(w.stored, longest, window) != "" {
		longest++
	}
	if start != longest && tooShort(got, w.stored[longest:], window) {
		t.Fatalf("%v: the window has %d messages and %d exchanges, %d and %d fit",
			window, len(got), exchangesIn(got), len(w.stored)-longest, exchangesIn(w.stored[longest:]))
	}
}

// tooShort reports whether a window is too short compared with the longest. Without cache_stable, only the
// longest is long enough. With cache_stable, half of its exchanges are enough. If only max_bytes is set,
// half of its bytes or a quarter of max_bytes are enough. A stored message may be two bytes longer than
// the shortest encoding.
func tooShort(got, longest []*parleyv1.Message, w *parleyv1.ContextWindow) bool {
	switch {
	case !w.GetCacheStable():
		return true
	case w.GetMaxMessages()+w.GetMaxExchanges() > 0:
		return 2*exchangesIn(got) < exchangesIn(longest)
	default:
		size := bytesIn(got) + 2*len(longest)
		return 2*size < bytesIn(longest) && 4*size < int(w.GetMaxBytes()) || w.GetMaxBytes() == 0
	}
}

func bytesIn(messages []*parleyv1.Message) int {
	size := 0
	for _, m := range messages {
		size += proto.Size(m)
	}
	return size
}

// windowFault returns the law that the window stored[start:] breaks, or "" if it breaks none.
func windowFault(stored []*parleyv1.Message, start int, w *parleyv1.ContextWindow) string {
	window := stored[start:]
	if len(window) == 0 {
		return ""
	}
	for i, m := range stored {
		if m.GetToolResult() == nil {
			continue
		}
		call := callOf(stored, i)
		switch {
		case call < 0 && i >= start:
			return "a result without its call"
		case call >= 0 && (call >= start) != (i >= start):
			return "a result is separated from its call"
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

// callOf returns the index of the message with the call that the result in message i answers: the nearest
// one before it. If there is none, it returns -1.
func callOf(stored []*parleyv1.Message, result int) int {
	id := stored[result].GetToolResult().GetCallId()
	for i, m := range slices.Backward(stored[:result]) {
		if slices.ContainsFunc(m.GetToolCalls(), func(c *parleyv1.ToolCall) bool { return c.GetId() == id }) {
			return i
		}
	}
	return -1
}

// exchangesIn returns the number of exchanges. Each has one user message.
func exchangesIn(messages []*parleyv1.Message) int {
	n := 0
	for _, m := range messages {
		if m.GetRole() == parleyv1.Role_ROLE_USER {
			n++
		}
	}
	return n
}

// TestCacheStable appends one exchange at a time. The beginning of the window stays the same for at least
// half a window.
func TestCacheStable(t *testing.T) {
	f, count := open(t, nil), 0
	rapid.Check(t, func(t *rapid.T) {
		count++
		exchange := []*parleyv1.Message{user("question"), assistant("answer")}
		if rapid.Bool().Draw(t, "tools") {
			call, result := assistant(
				"",
			), &parleyv1.Message{
				Role:       parleyv1.Role_ROLE_TOOL,
				ToolResult: &parleyv1.ToolResult{CallId: "1"},
			}
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
			size := windowSize(t, f, fmt.Sprint("m", count), exchange)
			// Encoded times differ in length, so the limit is not close to a multiple of size.
			window.MaxBytes = bound*size + rapid.Int32Range(size/2, size*9/10).Draw(t, "and bytes")
			bound *= length
		}
		c := &parleyv1.Conversation{Id: fmt.Sprint("c", count), Retention: &parleyv1.Retention{
			MaxMessages: rapid.SampledFrom([]int32{bound, 2 * bound, 1000}).Draw(t, "stored"),
		}}
		if _, err := f.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{Conversation: c}); err != nil {
			t.Fatal(err)
		}
		var before []*parleyv1.Message
		stays := []int{0} // number of exchanges for which each beginning stayed the same
		for range 4*bound/length + 2 {
			if _, err := f.AppendMessages(t.Context(),
				&parleyv1.AppendMessagesRequest{ConversationId: c.GetId(), Messages: exchange}); err != nil {
				t.Fatal(err)
			}
			reply, err := f.GetContext(
				t.Context(),
				&parleyv1.GetContextRequest{ConversationId: c.GetId(), Window: window},
			)
			if err != nil || len(reply.GetMessages()) == 0 {
				t.Fatalf("GetContext = %v, %v, want messages", reply, err)
			}
			if now := reply.GetMessages(); len(before) > len(now) ||
				!slices.EqualFunc(before, now[:len(before)], equalMessages) {
				stays = append(stays, 0)
			}
			stays[len(stays)-1]++
			before = reply.GetMessages()
		}
		if len(stays) < 4 || slices.Min(stays[:len(stays)-1]) < max(1, half) {
			t.Fatalf("%v: beginnings stay for %v exchanges, want at least %d", window, stays, half)
		}
	})
}

// windowSize appends messages to a new conversation and returns their size in its window.
func windowSize(t *rapid.T, f *fixture, id string, messages []*parleyv1.Message) int32 {
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
