package rpc

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// opaque returns a message with a native form and reasoning. The value is no text, and its bytes look like fields
// that the server does not know.
func opaque(content string) *parleyv1.Message {
	m := assistant(content)
	m.Reasoning = "Thought about " + content + "."
	m.Native = &parleyv1.Native{
		Type: "acme.item", Value: []byte("\xff\x00\xc0\x3e\x01" + strings.Repeat("[", 5000) + content),
	}
	return m
}

// without returns copies of messages without reasoning and, if native is set, without native forms.
func without(messages []*parleyv1.Message, native bool) []*parleyv1.Message {
	var all []*parleyv1.Message
	for _, m := range messages {
		m = proto.CloneOf(m)
		m.Reasoning = ""
		if native {
			m.Native = nil
		}
		all = append(all, m)
	}
	return all
}

// TestNative: a native form is returned byte for byte by every call that returns messages, over both ways to
// call the server, and so is the reasoning. GetContext returns the reasoning only if asked, the routing summary
// neither of them.
func TestNative(t *testing.T) {
	f := open(t, nil)
	sent := []*parleyv1.Message{user("one"), opaque("two"), user("three"), opaque("four")}
	reply := f.append(t, "c", sent...)
	for i, n := range reply.GetAppended() {
		sent[i].Id, sent[i].Sequence, sent[i].Exchange, sent[i].CreateTime = n.Id, n.Sequence, n.Exchange, n.CreateTime
		sent[i].Status = parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE
	}
	for way, client := range map[string]parleyv1.ConversationServiceClient{
		"gRPC": f.ConversationServiceClient, "direct": parleyv1.NewConversationServiceClient(f.direct(t)),
	} {
		want := func(call string, want, got []*parleyv1.Message, err error) {
			t.Helper()
			if diff := cmp.Diff(want, got, protocmp.Transform()); err != nil || diff != "" {
				t.Errorf("%s over %s: %v (-want +got):\n%s", call, way, err, diff)
			}
		}
		loaded, err := client.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: "c"})
		want("LoadConversation", sent, loaded.GetMessages(), err)
		listed, err := client.ListMessages(t.Context(),
			&parleyv1.ListMessagesRequest{ConversationId: "c", Ascending: true})
		want("ListMessages", sent, listed.GetMessages(), err)
		window, err := client.GetContext(t.Context(), &parleyv1.GetContextRequest{ConversationId: "c"})
		want("GetContext", without(sent, false), window.GetMessages(), err)
		window, err = client.GetContext(t.Context(),
			&parleyv1.GetContextRequest{ConversationId: "c", IncludeReasoning: true})
		want("GetContext with include_reasoning", sent, window.GetMessages(), err)
		limit := int32(4)
		summary, err := client.GetRoutingSummary(t.Context(),
			&parleyv1.GetRoutingSummaryRequest{ConversationId: "c", MessageLimit: &limit})
		want("GetRoutingSummary", without(sent, true), summary.GetSummary().GetRecentMessages(), err)
	}

	exported := f.mustExport(t, "c")
	if diff := cmp.Diff(sent, exported[0].GetMessages(), protocmp.Transform()); diff != "" {
		t.Errorf("export (-want +got):\n%s", diff)
	}
	exported[0].GetConversation().Id = "imported"
	if failures := f.wantImport(t, false, 1, 0, exported...); len(failures) > 0 {
		t.Fatalf("import: %v", failures)
	}
	fork := &parleyv1.ForkConversationRequest{ConversationId: "imported", NewConversationId: "forked"}
	if _, err := f.ForkConversation(t.Context(), fork); err != nil {
		t.Fatal(err)
	}
	copied, err := f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: "forked"})
	if diff := cmp.Diff(sent, copied.GetMessages(), protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("fork of an import: %v (-want +got):\n%s", err, diff)
	}
}

// TestWindowCountsWhatItReturns: max_bytes counts native forms, and reasoning only if it is returned.
func TestWindowCountsWhatItReturns(t *testing.T) {
	f := open(t, nil)
	answer := assistant("answer")
	answer.Reasoning = strings.Repeat("x", 10_000)
	f.append(t, "reasoning", user("first"), answer, user("second"))
	answer = assistant("answer")
	answer.Native = &parleyv1.Native{Type: "t", Value: make([]byte, 10_000)}
	f.append(t, "native", user("first"), answer, user("second"))
	for _, test := range []struct {
		id      string
		include bool
		want    int
	}{{"reasoning", false, 3}, {"reasoning", true, 1}, {"native", false, 1}, {"native", true, 1}} {
		for _, cacheStable := range []bool{false, true} {
			reply, err := f.GetContext(t.Context(), &parleyv1.GetContextRequest{
				ConversationId: test.id, IncludeReasoning: test.include,
				Window: &parleyv1.ContextWindow{MaxBytes: 5000, CacheStable: cacheStable},
			})
			got, least := len(reply.GetMessages()), test.want
			if cacheStable {
				least = 1 // The reasoning counts in the choice of the first message.
			}
			if err != nil || got > test.want || got < least {
				t.Errorf("GetContext(%s, include_reasoning %t, cache_stable %t) = %d messages, %v, want %d",
					test.id, test.include, cacheStable, got, err, test.want)
			}
		}
	}
}

// TestNativeCountsForTheLimit: a native form counts towards --max-message-bytes, and a message that is too large
// for it is not stored.
func TestNativeCountsForTheLimit(t *testing.T) {
	f := open(t, func(s *setup) { s.MaxMessageBytes = 2000 })
	m := user("hello")
	for size, large := range map[int]bool{1900: false, 2000: true} {
		m.Native = &parleyv1.Native{Type: "t", Value: make([]byte, size)}
		before := f.changeCount()
		_, err := f.AppendMessages(t.Context(),
			&parleyv1.AppendMessagesRequest{ConversationId: "c", Messages: []*parleyv1.Message{m}})
		if !large {
			if err != nil {
				t.Errorf("append with %d bytes: %v", size, err)
			}
			continue
		}
		wantError(t, err, codes.ResourceExhausted, "MESSAGE_TOO_LARGE")
		if f.changeCount() != before {
			t.Error("a message that is too large was stored")
		}
	}
}

// TestNativeIsNotInTheLog: the interaction log has type and size of a native form. A search finds neither the value
// nor the reasoning.
func TestNativeIsNotInTheLog(t *testing.T) {
	_, withLog := withInteractionLog(t, nil)
	f := open(t, withLog)
	m := assistant("the answer")
	m.Native, m.Reasoning = &parleyv1.Native{Type: "acme.item", Value: []byte("quarterly goals")}, "quarterly thoughts"
	f.append(t, "c", m)
	for query, want := range map[string]int{"quarterly": 0, "the answer": 1} {
		found, err := f.SearchInteractions(t.Context(), &parleyv1.SearchInteractionsRequest{Query: query, Days: 3})
		if err != nil || len(found.GetInteractions()) != want {
			t.Fatalf("SearchInteractions(%q) = %v, %v, want %d entries", query, found, err, want)
		}
		if want == 0 {
			continue
		}
		logged := found.GetInteractions()[0].GetMetadata().GetFields()["native"].GetStructValue().AsMap()
		if diff := cmp.Diff(map[string]any{"type": "acme.item", "bytes": 15.0}, logged); diff != "" {
			t.Errorf("native in the entry (-want +got):\n%s", diff)
		}
		if text := found.String(); strings.Contains(text, "goals") || strings.Contains(text, "thoughts") {
			t.Errorf("entry = %s, want neither the value nor the reasoning", text)
		}
	}
}
