package rpc

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// TestUnknownFieldsAreNotStored makes every call that stores data, with unknown fields in random messages
// of the request. Neither the store nor its changes may contain them.
func TestUnknownFieldsAreNotStored(t *testing.T) {
	f := open(t, nil)
	clients := []parleyv1.ConversationServiceClient{
		f.ConversationServiceClient, parleyv1.NewConversationServiceClient(f.direct(t)),
	}
	rounds := 0
	rapid.Check(t, func(r *rapid.T) {
		rounds++
		p := &padder{
			T:      r,
			test:   t,
			client: rapid.SampledFrom(clients).Draw(r, "client"),
			prefix: fmt.Sprint("round", rounds, "."),
		}
		for _, step := range []struct {
			name string
			call func() error
		}{{"create", p.create}, {"append", p.append}, {"chat", p.chat}, {"update", p.update}, {"lease", p.lease}, {"import", p.imports}, {"fork", p.fork}} {
			if err := step.call(); err != nil {
				r.Fatalf("%s: %v", step.name, err)
			}
		}
		for _, id := range []string{"a", "imported", "forked"} {
			snapshot, err := f.store.Read(
				t.Context(),
				&store.Read{Tenant: "default", ConversationID: p.prefix + id, Newest: -1, Turns: true},
			)
			if err != nil {
				r.Fatal(err)
			}
			p.wantKnown(snapshot.Conversation)
			for _, turn := range snapshot.Turns {
				p.wantKnown(turn)
			}
			p.wantKnownFrames(snapshot.Messages)
			if got := snapshot.Conversation.GetMessageCount(); got == 0 {
				r.Fatalf("%s has no message", id)
			}
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, change := range f.changes {
			if change.Conversation != nil {
				p.wantKnown(change.Conversation)
			}
			p.wantKnownFrames(store.Frames(change.Message))
		}
		f.changes = nil
	})
}

// TestUnknownFieldsAreNotCompared checks that a retry may have other unknown fields than the first request.
func TestUnknownFieldsAreNotCompared(t *testing.T) {
	f := open(t, nil)
	request := &parleyv1.CreateConversationRequest{RequestId: "r", Conversation: header("a")}
	padded := proto.CloneOf(request)
	padded.GetConversation().GetRetention().GetTtl().ProtoReflect().SetUnknown(unknownBytes(100))
	for i, r := range []*parleyv1.CreateConversationRequest{padded, request, padded} {
		reply, err := f.CreateConversation(t.Context(), r)
		if err != nil || reply.GetReplayed() != (i > 0) {
			t.Errorf("CreateConversation %d = replayed %t, %v", i, reply.GetReplayed(), err)
		}
	}
}

// padder makes calls with unknown fields in their requests.
type padder struct {
	*rapid.T
	test   *testing.T
	client parleyv1.ConversationServiceClient
	prefix string // of ids
}

// padded adds unknown fields to some of the messages in a request and returns it.
func padded[M proto.Message](p *padder, request M) M {
	p.pad(request.ProtoReflect())
	return request
}

func (p *padder) pad(m protoreflect.Message) {
	if rapid.Bool().Draw(p.T, "pad") {
		m.SetUnknown(p.unknown())
	}
	for inner := range innerMessages(m) {
		p.pad(inner)
	}
}

// unknown returns a field of a random wire type.
func (p *padder) unknown() protoreflect.RawFields {
	number := protowire.Number(rapid.Int32Range(1000, 2000).Draw(p.T, "number"))
	switch rapid.IntRange(0, 3).Draw(p.T, "kind") {
	case 0:
		return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), 1)
	case 1:
		return protowire.AppendFixed64(protowire.AppendTag(nil, number, protowire.Fixed64Type), 1)
	case 2:
		return protowire.AppendGroup(
			protowire.AppendTag(nil, number, protowire.StartGroupType),
			number,
			unknownBytes(3),
		)
	default:
		return unknownBytes(rapid.IntRange(0, 300).Draw(p.T, "bytes"))
	}
}

func unknownBytes(size int) protoreflect.RawFields {
	return protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), make([]byte, size))
}

// innerMessages yields the messages that are set in m.
func innerMessages(m protoreflect.Message) func(yield func(protoreflect.Message) bool) {
	return func(yield func(protoreflect.Message) bool) {
		fields := m.Descriptor().Fields()
		for i := range fields.Len() {
			field := fields.Get(i)
			if !m.Has(field) || field.Message() == nil {
				continue
			}
			value, more := m.Get(field), true
			switch {
			case field.IsMap() && field.MapValue().Message() == nil:
			case field.IsMap():
				value.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					more = yield(v.Message())
					return more
				})
			case field.IsList():
				for n := 0; n < value.List().Len() && more; n++ {
					more = yield(value.List().Get(n).Message())
				}
			default:
				more = yield(value.Message())
			}
			if !more {
				return
			}
		}
	}
}

func (p *padder) wantKnown(m proto.Message) {
	p.Helper()
	var walk func(m protoreflect.Message)
	walk = func(m protoreflect.Message) {
		if n := len(m.GetUnknown()); n > 0 {
			p.Fatalf("a stored %s has %d bytes of unknown fields", m.Descriptor().FullName(), n)
		}
		for inner := range innerMessages(m) {
			walk(inner)
		}
	}
	walk(m.ProtoReflect())
}

func (p *padder) wantKnownFrames(frames store.Frames) {
	p.Helper()
	messages, err := frames.Messages()
	if err != nil {
		p.Fatal(err)
	}
	for _, m := range messages {
		p.wantKnown(m)
	}
}

func header(id string) *parleyv1.Conversation {
	return &parleyv1.Conversation{
		Id: id, Title: "title", Labels: map[string]string{"team": "blue"},
		Retention: &parleyv1.Retention{MaxMessages: 100, Ttl: durationpb.New(time.Hour)},
	}
}

func values() []*parleyv1.StructuredData {
	value := structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
		"list": structpb.NewListValue(
			&structpb.ListValue{Values: []*structpb.Value{structpb.NewNumberValue(1), structpb.NewBoolValue(true)}},
		),
	}})
	return []*parleyv1.StructuredData{{Type: "list", Value: value}}
}

func (p *padder) create() error {
	_, err := p.client.CreateConversation(
		p.test.Context(),
		padded(p, &parleyv1.CreateConversationRequest{Conversation: header(p.prefix + "a")}),
	)
	return err
}

func (p *padder) append() error {
	_, err := p.client.AppendMessages(p.test.Context(), padded(p, &parleyv1.AppendMessagesRequest{
		ConversationId: p.prefix + "a", RequestId: "r",
		Messages: []*parleyv1.Message{
			{
				Role:           parleyv1.Role_ROLE_USER,
				StructuredData: values(),
				Attachments:    []*parleyv1.Attachment{{Uri: "https://example.com"}},
			},
			{
				Role:      parleyv1.Role_ROLE_ASSISTANT,
				ToolCalls: []*parleyv1.ToolCall{{Id: "1", Name: "find"}},
				Usage:     &parleyv1.Usage{Model: "m"},
				Native:    &parleyv1.Native{Type: "form", Value: []byte("value")},
			},
			{Role: parleyv1.Role_ROLE_TOOL, ToolResult: &parleyv1.ToolResult{CallId: "1", Content: "found"}},
			{Role: parleyv1.Role_ROLE_ASSISTANT, ToolCalls: []*parleyv1.ToolCall{{Id: "2", Name: "find"}}},
		},
	}))
	return err
}

func (p *padder) chat() error {
	stream, err := p.client.Chat(p.test.Context(), padded(p, &parleyv1.ChatRequest{
		ConversationId: p.prefix + "a", Content: "hello", StructuredData: values(),
		Attachments: []*parleyv1.Attachment{{Uri: "https://example.com"}},
		Window:      &parleyv1.ContextWindow{MaxMessages: 10}, Metadata: map[string]string{"from": "here"},
		ToolResults: []*parleyv1.ToolResult{{CallId: "2", Content: "found"}},
	}))
	for err == nil {
		var reply *parleyv1.ChatResponse
		reply, err = stream.Recv()
		if reply.GetEvent().GetFinished() != nil {
			return nil
		}
	}
	return err
}

func (p *padder) update() error {
	_, err := p.client.UpdateConversation(
		p.test.Context(),
		padded(p, &parleyv1.UpdateConversationRequest{Conversation: header(p.prefix + "a")}),
	)
	return err
}

func (p *padder) lease() error {
	_, err := p.client.SetActiveAgent(p.test.Context(), padded(p, &parleyv1.SetActiveAgentRequest{
		ConversationId: p.prefix + "a", Agent: "writer", LeaseDuration: durationpb.New(time.Hour),
	}))
	return err
}

func (p *padder) imports() error {
	file := exportOf(p.prefix+"imported", time.Now())
	at := file.GetConversation().GetCreateTime()
	file.Conversation.ActiveAgent = &parleyv1.ActiveAgent{Agent: "writer", StartTime: at}
	file.Conversation.ForkedFrom = &parleyv1.ForkOrigin{ConversationId: "b", Sequence: 1}
	file.Messages[0].StructuredData = values()
	// Pad before the stream starts, because a draw may end the function.
	request := padded(
		p,
		&parleyv1.ImportConversationsRequest{Conversation: file.GetConversation(), Messages: file.GetMessages()},
	)
	stream, err := p.client.ImportConversations(p.test.Context())
	if err != nil {
		return err
	}
	if err := stream.Send(request); err != nil {
		return err
	}
	reply, err := stream.CloseAndRecv()
	if err == nil && reply.GetImportedCount() != 1 {
		return fmt.Errorf("ImportConversations = %v, want 1 imported", reply)
	}
	return err
}

func (p *padder) fork() error {
	_, err := p.client.ForkConversation(p.test.Context(), padded(p, &parleyv1.ForkConversationRequest{
		ConversationId: p.prefix + "a", NewConversationId: p.prefix + "forked",
	}))
	return err
}

// TestLargeUnknownFields pads headers and messages to nearly the size that gRPC accepts. No limit counts
// the padding, and it has no effect on other calls.
func TestLargeUnknownFields(t *testing.T) {
	const size = 4<<20 - 600 // 600 bytes for the other fields of the request
	f := open(t, nil)
	f.create(t, &parleyv1.Conversation{Id: "other"})
	padded := header("padded")
	padded.GetRetention().GetTtl().ProtoReflect().SetUnknown(unknownBytes(size))
	if _, err := f.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{Conversation: padded}); err != nil {
		t.Errorf("CreateConversation: %v", err)
	}
	imported := exportOf("imported", time.Now())
	imported.GetMessages()[0].ProtoReflect().SetUnknown(unknownBytes(size - 1000))
	f.wantImport(t, false, 1, 0, imported)
	page, err := f.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{})
	if err != nil {
		t.Fatalf("ListConversations: %v", err)
	}
	var ids []string
	for _, entry := range page.GetConversations() {
		ids = append(ids, entry.GetConversation().GetId())
		if n := proto.Size(entry); n > 300 {
			t.Errorf("entry of %s has %d bytes, want at most 300", entry.GetConversation().GetId(), n)
		}
	}
	slices.Sort(ids)
	if !slices.Equal(ids, []string{"imported", "other", "padded"}) {
		t.Errorf("ListConversations = %v", ids)
	}
	m := user("hello")
	m.ProtoReflect().SetUnknown(unknownBytes(size))
	f.append(t, "padded", m)
}
