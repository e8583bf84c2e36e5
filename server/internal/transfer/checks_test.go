package transfer

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

func TestImportFailures(t *testing.T) {
	f := open(t)
	now := f.clock.Now()
	x := func(n int) string { return strings.Repeat("x", n) }
	at := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(d)) }
	type file = parleyv1.ExportConversationsResponse
	header := func(change func(c *parleyv1.Conversation)) func(*file) {
		return func(f *file) { change(f.GetConversation()) }
	}
	message := func(change func(m *parleyv1.Message)) func(*file) {
		return func(f *file) { change(f.GetMessages()[0]) }
	}
	lease := func(a *parleyv1.ActiveAgent) func(*file) {
		return header(func(c *parleyv1.Conversation) { c.ActiveAgent = a })
	}
	tests := []struct {
		name, want string
		change     func(f *file)
	}{
		{"no header", "conversation: value is required", func(f *file) { f.Conversation = nil }},
		{"no id", "conversation.id: is required", header(func(c *parleyv1.Conversation) { c.Id = "" })},
		{"invalid id", "conversation.id: must have 1 to 256 bytes", header(func(c *parleyv1.Conversation) { c.Id = " " + c.Id })},
		{"long title", "conversation.title: ", header(func(c *parleyv1.Conversation) { c.Title = x(513) })},
		{"many labels", "conversation.labels: ", header(func(c *parleyv1.Conversation) { c.Labels = entries(65, 3, 1) })},
		{"long prompt", "conversation.system_prompt: ", header(func(c *parleyv1.Conversation) { c.SystemPrompt = x(65537) })},
		{
			"large max_messages", "conversation.retention.max_messages: ",
			header(func(c *parleyv1.Conversation) { c.Retention.MaxMessages = 1000001 }),
		},
		{
			"short ttl", "conversation.retention.ttl: ",
			header(func(c *parleyv1.Conversation) { c.Retention.Ttl = durationpb.New(1) }),
		},
		{
			"invalid ttl", "conversation.retention.ttl: ",
			header(func(c *parleyv1.Conversation) { c.Retention.Ttl = &durationpb.Duration{Seconds: 5, Nanos: -7} }),
		},
		{
			"no version", "conversation.version: must be between 1 and 1073741824",
			header(func(c *parleyv1.Conversation) { c.Version = 0 }),
		},
		{"large version", "conversation.version: ", header(func(c *parleyv1.Conversation) { c.Version = math.MaxInt32 })},
		{
			"negative sequence", "conversation.last_sequence: must be between 0 and 1073741824; messages[0].sequence: is 5",
			header(func(c *parleyv1.Conversation) { c.LastSequence = -1 }),
		},
		{
			"large sequence", "conversation.last_sequence: ",
			header(func(c *parleyv1.Conversation) { c.LastSequence = math.MaxInt32 }),
		},
		{
			"no create_time", "conversation.create_time: is required",
			header(func(c *parleyv1.Conversation) { c.CreateTime = nil }),
		},
		{
			"no update_time", "conversation.update_time: is required",
			header(func(c *parleyv1.Conversation) { c.UpdateTime = nil }),
		},
		{
			"no last_append_time", "conversation.last_append_time: is required",
			header(func(c *parleyv1.Conversation) { c.LastAppendTime = nil }),
		},
		{
			"invalid time", "conversation.update_time: must be between",
			header(func(c *parleyv1.Conversation) { c.UpdateTime = &timestamppb.Timestamp{Nanos: -1} }),
		},
		{
			"created before 1970", "conversation.create_time: must not be before 1970",
			header(func(c *parleyv1.Conversation) { c.CreateTime = &timestamppb.Timestamp{Seconds: -1} }),
		},
		{
			"appended before it was created", "conversation.last_append_time: must not be before create_time",
			header(func(c *parleyv1.Conversation) { c.LastAppendTime = at(-11 * time.Minute) }),
		},
		{
			"changed before its last append", "conversation.update_time: must not be before last_append_time",
			header(func(c *parleyv1.Conversation) { c.UpdateTime = at(-11 * time.Minute) }),
		},
		{
			"changed in the future", "conversation.update_time: is more than 1m0s ahead",
			header(func(c *parleyv1.Conversation) { c.UpdateTime = at(time.Minute + 1) }),
		},
		{
			"lease without agent", "conversation.active_agent.agent: is required",
			lease(&parleyv1.ActiveAgent{StartTime: at(0)}),
		},
		{
			"lease with a long agent", "conversation.active_agent.agent: must be at most 128",
			lease(&parleyv1.ActiveAgent{Agent: x(129), StartTime: at(0)}),
		},
		{
			"lease with a long reason", "conversation.active_agent.reason: ",
			lease(&parleyv1.ActiveAgent{Agent: "a", Reason: x(1025), StartTime: at(0)}),
		},
		{
			"lease without start_time", "conversation.active_agent.start_time: is required",
			lease(&parleyv1.ActiveAgent{Agent: "a"}),
		},
		{
			"lease with an invalid end", "conversation.active_agent.lease_expire_time: ",
			lease(&parleyv1.ActiveAgent{
				Agent: "a", StartTime: at(0), LeaseExpireTime: &timestamppb.Timestamp{Seconds: math.MaxInt64},
			}),
		},
		{
			"fork of a long id", "conversation.forked_from.conversation_id: ",
			header(func(c *parleyv1.Conversation) { c.ForkedFrom = &parleyv1.ForkOrigin{ConversationId: x(257)} }),
		},
		{
			"fork of a later sequence",
			"conversation.forked_from.sequence: is 10, must be at most 9, the conversation's last_sequence",
			header(func(c *parleyv1.Conversation) { c.ForkedFrom = &parleyv1.ForkOrigin{Sequence: 10} }),
		},
		{
			"fork of a negative sequence", "conversation.forked_from.sequence: ",
			header(func(c *parleyv1.Conversation) { c.ForkedFrom = &parleyv1.ForkOrigin{Sequence: -1} }),
		},
		{
			"message missing", "conversation.message_count: is 2, but 1 messages arrived",
			header(func(c *parleyv1.Conversation) { c.MessageCount = 2 }),
		},
		{
			"negative message_count", "conversation.message_count: is -1, but 1 messages arrived",
			header(func(c *parleyv1.Conversation) { c.MessageCount = -1 }),
		},
		{"more messages than message_count", "conversation.message_count: is 1, but 2 messages arrived", func(f *file) {
			next := proto.CloneOf(f.GetMessages()[0])
			next.Sequence++
			f.Conversation.MessageCount, f.Messages = 1, append(f.Messages, next)
		}},

		{"no role", "messages[0].role: is required", message(func(m *parleyv1.Message) { m.Role = 0 })},
		{
			"tool message without result", "messages[0].tool_result: ",
			message(func(m *parleyv1.Message) { m.Role = parleyv1.Role_ROLE_TOOL }),
		},
		{
			"number that is not finite", "messages[0].structured_data[0].value: contains a number that is not finite",
			message(func(m *parleyv1.Message) { m.StructuredData = data("t", structpb.NewNumberValue(math.NaN())) }),
		},
		{"no message id", "messages[0].id: is required", message(func(m *parleyv1.Message) { m.Id = "" })},
		{"long message id", "messages[0].id: ", message(func(m *parleyv1.Message) { m.Id = x(257) })},
		{
			"no sequence", "messages[0].sequence: is 0, must be more than 0",
			message(func(m *parleyv1.Message) { m.Sequence = 0 }),
		},
		{
			"sequence above last_sequence", "messages[0].sequence: is 10, must be at most 9",
			message(func(m *parleyv1.Message) { m.Sequence = 10 }),
		},
		{
			"same message twice", "messages[1].sequence: is 5, must be more than 5",
			func(f *file) { f.Messages = append(f.Messages, f.GetMessages()[0]) },
		},
		{"negative exchange", "messages[0].exchange: ", message(func(m *parleyv1.Message) { m.Exchange = -1 })},
		{"long turn_id", "messages[0].turn_id: ", message(func(m *parleyv1.Message) { m.TurnId = x(65) })},
		{
			"no time of the message", "messages[0].create_time: is required",
			message(func(m *parleyv1.Message) { m.CreateTime = nil }),
		},
		{
			"message in the future", "messages[0].create_time: is more than 1m0s ahead",
			message(func(m *parleyv1.Message) { m.CreateTime = at(time.Hour) }),
		},
		{"large message", "messages[0]: has 3145", message(func(m *parleyv1.Message) { m.Content = x(3 << 20) })},
		{"several faults", "conversation.version: must be between 1 and 1073741824; messages[0].sequence: is 77, must be " +
			"at most 9, the conversation's last_sequence; messages[0].exchange: must be between 0 and " +
			"1073741824", func(f *file) {
			f.Conversation.Version, f.Messages[0].Sequence, f.Messages[0].Exchange = 0, 77, -1
		}},
	}
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			id := fmt.Sprint("c", i)
			bad := exportOf(id, now)
			test.change(bad)
			failures := f.wantImport(t, false, 2, 0, exportOf("before"+id, now), bad, exportOf("after"+id, now))
			if len(failures) != 1 || failures[0].GetConversationId() != bad.GetConversation().GetId() ||
				!strings.HasPrefix(failures[0].GetReason(), test.want) {
				t.Errorf("failures = %v, want %q", failures, test.want)
			}
			if _, err := f.export(t, id); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("export of the failed conversation = %v, want ErrNotFound", err)
			}
		})
	}
}

// TestImportAtLimits imports a conversation whose fields are at their limits.
func TestImportAtLimits(t *testing.T) {
	f := open(t)
	clock := f.clock
	file := exportOf("a", clock.Now())
	c, m := file.GetConversation(), file.GetMessages()[0]
	ahead := timestamppb.New(clock.Now().Add(time.Minute))
	c.Version, c.LastSequence, c.UpdateTime, c.LastAppendTime, c.Uid = 1<<30, 1<<30, ahead, ahead, strings.Repeat("x", 65)
	c.ActiveAgent = &parleyv1.ActiveAgent{
		Agent: strings.Repeat("x", 128), Reason: strings.Repeat("x", 1024), StartTime: ahead,
		LeaseExpireTime: timestamppb.New(clock.Now().Add(time.Hour)),
	}
	c.Retention, c.ForkedFrom = nil, &parleyv1.ForkOrigin{ConversationId: strings.Repeat("x", 256), Sequence: 1 << 30}
	m.Sequence, m.Exchange, m.CreateTime, m.Status, m.TurnId = 1<<30, 1<<30, ahead, 0, strings.Repeat("x", 64)
	m.Content = strings.Repeat("x", 300<<10) // More than AppendMessages accepts.
	f.wantImport(t, false, 1, 0, file)
	got := f.mustExport(t, "a")[0]
	if uuid.Validate(got.GetConversation().GetUid()) != nil ||
		got.GetMessages()[0].GetStatus() != parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE {
		t.Errorf("uid = %q, status = %v, want a UUID and COMPLETE", got.GetConversation().GetUid(),
			got.GetMessages()[0].GetStatus())
	}
	if r := got.GetConversation().GetRetention(); r.GetMaxMessages() != 20 || r.GetTtl().AsDuration() != time.Hour {
		t.Errorf("retention = %v, want the default", r)
	}
	result, err := f.hooks.Append(t.Context(), &store.Append{
		Tenant: tenant, ConversationID: "a", Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := result.Appended[0]; n.GetSequence() != 1<<30+1 || n.GetExchange() != 1<<30+1 {
		t.Errorf("next message = %v, want sequence and exchange %d", n, 1<<30+1)
	}
}

// TestImportDropsOldMessages checks that an import holds only messages that a store would store.
func TestImportDropsOldMessages(t *testing.T) {
	for _, test := range []struct{ maxMessages, size, want int }{
		{3, 10, 3}, {1000, 10, 1000}, {1000, 1 << 20, 2}, {1000, 4 << 20, 1},
	} {
		retention := &parleyv1.Retention{MaxMessages: int32(test.maxMessages)}
		a := &incoming{header: &parleyv1.Conversation{Retention: retention}, limit: store.MaxMessageBytes}
		sent := 3 * max(test.want, 2)
		for i := range sent {
			if err := a.addMessage(&parleyv1.Message{Sequence: int32(i + 1), Content: strings.Repeat("x", test.size)}); err != nil {
				t.Fatal(err)
			}
		}
		size := 0
		for _, frame := range a.frames {
			size += len(frame)
		}
		last := store.Frame(a.frames[len(a.frames)-1]).Sequence()
		if len(a.frames) != test.want || a.size != size || last != int32(sent) {
			t.Errorf("%+v: %d of %d messages are held, size = %d, want %d, last sequence = %d",
				test, len(a.frames), sent, a.size, size, last)
		}
	}
}
