package rpc

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestTransferRoundTrip exports random conversations, imports them into another tenant, and exports them
// again. They are the same, in the same order, except for their uids.
func TestTransferRoundTrip(t *testing.T) {
	clock := newManualClock()
	f := open(t, func(s *setup) {
		onClock(clock)(s)
		s.Auth, s.MaxMessageBytes = byMetadata(), 3<<20
	})
	rounds := 0
	rapid.Check(t, func(r *rapid.T) {
		rounds++
		from := &randomCaller{
			T: r, fixture: f, ctx: withMetadata(t, "tenant", fmt.Sprint("from", rounds)), clock: clock,
		}
		for range rapid.IntRange(0, 12).Draw(r, "calls") {
			from.call()
		}
		exported := from.export()
		other := withMetadata(t, "tenant", fmt.Sprint("other", rounds))
		reply, err := f.tryImport(other, rapid.Bool().Draw(r, "overwrite"), exported...)
		want := joined(exported)
		if err != nil || int(reply.GetImportedCount()) != len(want) || reply.GetSkippedCount() != 0 ||
			len(reply.GetFailures()) > 0 {
			r.Fatalf("import of %d conversations = %v, %v", len(want), reply, err)
		}
		again, err := f.export(other)
		if err != nil {
			r.Fatal(err)
		}
		if diff := cmp.Diff(want, joined(again), protocmp.Transform(), ignoreUID()); diff != "" {
			r.Fatalf("export after the import (-want +got):\n%s", diff)
		}
		if len(want) > 0 {
			if reply, err := f.tryImport(other, false, exported...); err != nil ||
				int(reply.GetSkippedCount()) != len(want) {
				r.Fatalf("second import = %v, %v, want %d skipped", reply, err, len(want))
			}
		}
	})
}

// joined returns one response for each conversation, with all its messages.
func joined(parts []*parleyv1.ExportConversationsResponse) []*parleyv1.ExportConversationsResponse {
	var all []*parleyv1.ExportConversationsResponse
	for _, part := range parts {
		if n := len(all); n > 0 && all[n-1].GetConversation().GetId() == part.GetConversation().GetId() {
			all[n-1].Messages = append(all[n-1].Messages, part.GetMessages()...)
			continue
		}
		all = append(all, proto.CloneOf(part))
	}
	return all
}

// randomCaller makes random calls that change conversations.
type randomCaller struct {
	*rapid.T
	*fixture
	ctx   context.Context
	clock *manualClock
	ids   []string
}

func (a *randomCaller) must(err error) {
	a.Helper()
	if err != nil {
		a.Fatal(err)
	}
}

func (a *randomCaller) export() []*parleyv1.ExportConversationsResponse {
	parts, err := a.fixture.export(a.ctx)
	a.must(err)
	for _, part := range parts {
		size := proto.Size(&parleyv1.ExportConversationsResponse{Messages: part.GetMessages()})
		if size > maxPartBytes && len(part.GetMessages()) > 1 {
			a.Fatalf(
				"response has %d bytes and %d messages, want at most %d bytes",
				size,
				len(part.GetMessages()),
				maxPartBytes,
			)
		}
	}
	if ids := exportedIDs(parts); !slices.Equal(ids, a.ids) {
		a.Fatalf("exported %v, want %v", ids, a.ids)
	}
	return parts
}

// call makes one call. It advances the clock before half of the calls, so that some create times are
// equal.
func (a *randomCaller) call() {
	if rapid.Bool().Draw(a.T, "later") {
		a.clock.advance(time.Duration(rapid.Int64Range(1, 3e9).Draw(a.T, "by")))
	}
	calls := []func(){a.create}
	if len(a.ids) > 0 {
		calls = append(calls, a.append, a.append, a.append, a.clear, a.update, a.lease, a.fork)
	}
	calls[rapid.IntRange(0, len(calls)-1).Draw(a.T, "call")]()
}

// id draws the id of an existing conversation.
func (a *randomCaller) id() string { return rapid.SampledFrom(a.ids).Draw(a.T, "id") }

func (a *randomCaller) create() {
	in := &parleyv1.Conversation{
		Id: fmt.Sprint(
			"c",
			len(a.ids),
		), Title: a.text("title"), SystemPrompt: a.text("prompt"), Agent: rapid.SampledFrom([]string{"", "echo"}).Draw(a.T,
			"agent"),
		Labels: rapid.MapOfN(rapid.StringN(1, 5, 64), rapid.StringN(0, 5, -1), 0, 3).Draw(a.T, "labels"),
	}
	if rapid.Bool().Draw(a.T, "retention") {
		in.Retention = &parleyv1.Retention{
			MaxMessages: int32(rapid.IntRange(1, 30).Draw(a.T, "max_messages")),
			Ttl:         durationpb.New(100 * 24 * time.Hour),
		}
	}
	_, err := a.CreateConversation(a.ctx, &parleyv1.CreateConversationRequest{Conversation: in})
	a.must(err)
	a.ids = append(a.ids, in.GetId())
}

func (a *randomCaller) append() {
	messages := make([]*parleyv1.Message, rapid.IntRange(1, 6).Draw(a.T, "messages"))
	for i := range messages {
		messages[i] = a.message()
	}
	_, err := a.AppendMessages(a.ctx, &parleyv1.AppendMessagesRequest{ConversationId: a.id(), Messages: messages})
	a.must(err)
}

func (a *randomCaller) message() *parleyv1.Message {
	m := &parleyv1.Message{
		Id: a.text(
			"message id",
		), Role: parleyv1.Role(rapid.IntRange(1, 4).Draw(a.T, "role")), Content: a.text("content"),
		Agent: a.text(
			"agent",
		), Summary: a.text("summary"), Status: parleyv1.MessageStatus(rapid.IntRange(0, 2).Draw(a.T, "status")),
		Metadata: rapid.MapOfN(
			rapid.StringN(1, 5, 64),
			rapid.StringN(0, 5, -1),
			0,
			2,
		).Draw(
			a.T,
			"metadata",
		), FinishReason: a.text("finish_reason"),
	}
	if rapid.IntRange(0, 9).Draw(a.T, "large") == 0 {
		m.Content = strings.Repeat("x", rapid.IntRange(1, 600<<10).Draw(a.T, "size"))
	}
	if rapid.Bool().Draw(a.T, "data") {
		m.StructuredData = data(
			"list",
			structpb.NewListValue(
				&structpb.ListValue{
					Values: []*structpb.Value{structpb.NewNumberValue(rapid.Float64Range(-9, 9).Draw(a.T, "number"))},
				},
			),
		)
		m.Reasoning = a.text("reasoning")
		m.Native = &parleyv1.Native{Type: "form", Value: rapid.SliceOf(rapid.Byte()).Draw(a.T, "native")}
		m.Usage = &parleyv1.Usage{Model: a.text("model"), InputTokens: rapid.Int32Range(0, 9).Draw(a.T, "tokens")}
		m.Attachments = []*parleyv1.Attachment{{Uri: "file:///" + a.text("uri"), SizeBytes: 7}}
	}
	switch m.GetRole() {
	case parleyv1.Role_ROLE_ASSISTANT:
		m.ToolCalls = []*parleyv1.ToolCall{{Id: "call", Name: "tool", Arguments: a.text("arguments")}}
	case parleyv1.Role_ROLE_TOOL:
		m.ToolResult = &parleyv1.ToolResult{CallId: "call", Content: a.text("result")}
	default:
	}
	return m
}

func (a *randomCaller) clear() {
	_, err := a.ClearConversation(
		a.ctx,
		&parleyv1.ClearConversationRequest{
			ConversationId: a.id(),
			AfterSequence:  rapid.Int32Range(0, 12).Draw(a.T, "after"),
		},
	)
	a.must(err)
}

func (a *randomCaller) update() {
	_, err := a.UpdateConversation(
		a.ctx,
		&parleyv1.UpdateConversationRequest{Conversation: &parleyv1.Conversation{Id: a.id(), Title: a.text("title")}},
	)
	a.must(err)
}

func (a *randomCaller) lease() {
	_, err := a.SetActiveAgent(a.ctx, &parleyv1.SetActiveAgentRequest{
		ConversationId: a.id(), Agent: a.text("agent"), Reason: a.text("reason"),
		LeaseDuration: durationpb.New(time.Duration(rapid.IntRange(1, 3).Draw(a.T, "seconds")) * time.Second),
	})
	a.must(err)
}

func (a *randomCaller) fork() {
	id := fmt.Sprint("c", len(a.ids))
	_, err := a.ForkConversation(
		a.ctx,
		&parleyv1.ForkConversationRequest{ConversationId: a.id(), NewConversationId: id},
	)
	a.must(err)
	a.ids = append(a.ids, id)
}

// text draws a short text.
func (a *randomCaller) text(label string) string { return rapid.StringN(0, 9, -1).Draw(a.T, label) }
