package agui

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/gateway"
)

const (
	// maxBatch is the maximum number of messages in a call of AppendMessages.
	maxBatch = 100
	// maxAttempts is how often messages are compared with the conversation again because it has changed.
	maxAttempts = 10
)

// request is one request of a client.
type request struct {
	api         parleyv1.ConversationServiceClient
	agent       string
	query       url.Values
	lastEventID string
	input       *input
	refuse      func(error) error // Reports an error without a call, and returns it.
	out         *stream
	isUnread    bool   // The rest of the body is unread.
	release     func() // Releases the memory of the body. May be called several times.
	known       *tail
	parts       []part // The names of fields of the last call.
}

// run runs the agent, or resumes the run if the request is a retry.
func (c *request) run(ctx context.Context) error {
	in := c.input
	if c.lastEventID != "" {
		c.release()
		return c.resume(ctx, in.threadID, in.runID)
	}
	for range maxAttempts {
		known, err := c.tail(ctx, in.threadID)
		if err != nil {
			return err
		}
		first := len(in.messages) // The index of the first message that the conversation lacks.
		for first > 0 && !known.hasMessage(in.messages[first-1]) {
			first--
		}
		if first == len(in.messages) {
			return c.answerStored(ctx)
		}
		if err := c.check(in.messages[first:]); err != nil {
			return c.refuse(err)
		}
		c.known = known
		chat, rest := c.chatRequest(first)
		if rest == 0 {
			return c.chat(ctx, chat)
		}
		err = c.append(ctx, first, known.version)
		if gateway.Reason(status.Convert(err)) == "VERSION_MISMATCH" {
			continue // Another client has changed the conversation.
		}
		if err != nil {
			return err
		}
		return c.chat(ctx, &parleyv1.ChatRequest{AnswerPending: true})
	}
	return c.refuse(gateway.NewStatus(codes.Aborted, "CONVERSATION_BUSY",
		"other requests keep changing the conversation; try again").Err())
}

// check returns an error if messages cannot be stored and answered.
func (c *request) check(messages []inputMessage) error {
	var f faults
	for _, m := range messages {
		for _, v := range m.unsupported.unsupported {
			f.unsupport(v.GetField(), v.GetDescription())
		}
	}
	last := messages[len(messages)-1]
	if len(f.unsupported) == 0 && last.role != "user" && last.role != "tool" {
		f.add(fmt.Sprintf("messages[%d].role", len(c.input.messages)-1),
			"must be user or tool: the agent answers the last message")
	}
	return f.err()
}

// chatRequest returns the request that stores and answers the last messages, from the index first on. rest is the
// number of messages before them that the request cannot contain.
func (c *request) chatRequest(first int) (chat *parleyv1.ChatRequest, rest int) {
	messages := c.input.messages[first:]
	chat = new(parleyv1.ChatRequest)
	end := len(messages) - 1
	last := messages[end]
	chat.Metadata = map[string]string{idKey: last.id}
	maps.Copy(chat.Metadata, last.message.GetMetadata())
	c.parts = []part{{`metadata["` + idKey + `"]`, fmt.Sprintf("messages[%d].id", first+end)}}
	if last.role == "user" {
		chat.Content, chat.Attachments = last.message.GetContent(), last.message.GetAttachments()
		c.parts = append(c.parts, last.fields[:len(last.fields)-1]...)
		c.parts = append(c.parts, part{"content", fmt.Sprintf("messages[%d].content", first+end)})
		end--
	}
	start := end + 1
	for start > 0 && messages[start-1].role == "tool" {
		start--
	}
	ids := make([]string, 0, end+1-start)
	for i, m := range messages[start : end+1] {
		if len(m.message.GetMetadata()) > 0 && last.role == "user" {
			return nil, len(messages) // A call of Chat stores the metadata of one message.
		}
		result := proto.CloneOf(m.message.GetToolResult())
		result.CallId = c.known.callID(result.GetCallId())
		chat.ToolResults = append(chat.ToolResults, result)
		called, named := fmt.Sprintf("tool_results[%d]", i), fmt.Sprintf("messages[%d]", first+start+i)
		c.parts = append(c.parts, part{called + ".call_id", named + ".toolCallId"}, part{called, named})
		if start+i < len(messages)-1 {
			ids = append(ids, m.id)
		}
	}
	if len(ids) > 0 {
		text, err := json.Marshal(ids)
		if err != nil || len(text) > maxMetadataBytes {
			return nil, len(messages)
		}
		chat.Metadata[idsKey] = string(text)
	}
	chat.StructuredData = c.data()
	return chat, start
}

// data returns the values of the input as structured data, except those that the conversation has.
func (c *request) data() []*parleyv1.StructuredData {
	var all []*parleyv1.StructuredData
	for _, d := range c.input.data {
		value, err := structpb.NewValue(d.value)
		if err != nil {
			continue // It cannot be: a text is UTF-8, and JSON has no other kinds.
		}
		if proto.Equal(c.known.data[dataPrefix+d.name], value) {
			continue // A client sends its state with each run.
		}
		c.parts = append(c.parts, part{fmt.Sprintf("structured_data[%d].value", len(all)), d.name},
			part{fmt.Sprintf("structured_data[%d]", len(all)), d.name})
		all = append(all, &parleyv1.StructuredData{Type: dataPrefix + d.name, Value: value})
	}
	return all
}

// append appends the messages from the index first on, which the agent then answers.
func (c *request) append(ctx context.Context, first int, version int32) error {
	if err := c.checkAgent(ctx); err != nil {
		return err
	}
	var messages []*parleyv1.Message
	indexes := make([]int, 0, len(c.input.messages)-first) // of the messages in the input
	for i, m := range c.input.messages[first:] {
		m.setID()
		if result := m.message.GetToolResult(); result != nil {
			result.CallId = c.known.callID(result.GetCallId())
		}
		last := len(messages) - 1
		if m.role == "assistant" && last >= 0 && c.input.messages[indexes[last]].role == "reasoning" &&
			messages[last].GetContent() == "" && len(messages[last].GetToolCalls()) == 0 {
			m.message.Reasoning = messages[last].GetReasoning() // Of the message that follows it.
			messages[last], indexes[last] = m.message, first+i
			continue
		}
		messages, indexes = append(messages, m.message), append(indexes, first+i)
	}
	c.parts = nil
	data := c.data()
	for i := range c.parts {
		c.parts[i].called = fmt.Sprintf("messages[%d].", (len(messages)-1)%maxBatch) + c.parts[i].called
	}
	dataParts := c.parts
	messages[len(messages)-1].StructuredData = data
	for start := 0; start < len(messages); start += maxBatch {
		batch := messages[start:min(start+maxBatch, len(messages))]
		c.parts = nil
		if start+len(batch) == len(messages) {
			c.parts = dataParts
		}
		for i := range batch {
			for _, p := range c.input.messages[indexes[start+i]].fields {
				c.parts = append(c.parts, part{fmt.Sprintf("messages[%d].%s", i, p.called), p.named})
			}
		}
		request := &parleyv1.AppendMessagesRequest{
			ConversationId: c.input.threadID, Messages: batch, IfVersion: &version,
		}
		if err := gateway.CheckSize(request); err != nil {
			return c.refuse(err)
		}
		reply, err := c.api.AppendMessages(ctx, request)
		if err != nil {
			return err
		}
		version = reply.GetConversation().GetVersion()
	}
	c.parts = nil
	return nil
}

// checkAgent returns an error if the agent does not exist.
func (c *request) checkAgent(ctx context.Context) error {
	reply, err := c.api.ListAgents(ctx, &parleyv1.ListAgentsRequest{})
	if err != nil {
		return err
	}
	for _, a := range reply.GetAgents() {
		if a.GetName() == c.agent {
			return nil
		}
	}
	return c.refuse(gateway.NewStatus(codes.InvalidArgument, "UNKNOWN_AGENT", fmt.Sprintf(
		"agent: no agent is named %.80q; GET /v1/agents lists the agents", c.agent)).Err())
}

// answerStored resumes the run if it exists. Otherwise the agent answers the messages that are stored.
func (c *request) answerStored(ctx context.Context) error {
	turn, err := c.findTurn(ctx, c.input.threadID, c.input.runID)
	if err != nil {
		return err
	}
	if turn != nil {
		c.release()
		return c.replay(ctx, turn)
	}
	return c.chat(ctx, &parleyv1.ChatRequest{AnswerPending: true})
}

// chat runs a turn and streams its events.
func (c *request) chat(ctx context.Context, chat *parleyv1.ChatRequest) error {
	chat.ConversationId, chat.RequestId, chat.Agent = c.input.threadID, c.input.runID, c.agent
	chat.OnBusy = parleyv1.OnBusy_ON_BUSY_QUEUE
	// A client of AG-UI stops a run by closing its stream.
	chat.OnDisconnect = parleyv1.OnDisconnect_ON_DISCONNECT_CANCEL
	if c.query.Get(onDisconnectParameter) == "continue" {
		chat.OnDisconnect = parleyv1.OnDisconnect_ON_DISCONNECT_CONTINUE
	}
	if err := gateway.CheckSize(chat); err != nil {
		return c.refuse(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := c.api.Chat(ctx, chat)
	if err != nil {
		return err
	}
	c.release()
	t := c.translation(c.input.threadID, c.input.runID)
	return t.run(ctx, func() (*parleyv1.TurnEvent, error) {
		reply, err := events.Recv()
		return reply.GetEvent(), err
	})
}
