package rpc

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/window"
	"github.com/parleyhq/parley/store"
)

const (
	defaultMessagePage = 20
	// maxPageBytes bounds the messages of a page, so that a client's limit of 4 MiB holds
	// the page and the header.
	maxPageBytes = 3 << 20
)

// splice gives a reply its messages as they are stored: they go out as they came in,
// without being decoded and encoded. The reply's own field for them stays empty.
func splice(reply proto.Message, messages store.Frames) {
	reply.ProtoReflect().SetUnknown(protoreflect.RawFields(messages))
}

// AppendMessages adds messages in one atomic step.
func (s *Server) AppendMessages(ctx context.Context, r *parleyv1.AppendMessagesRequest) (*parleyv1.AppendMessagesResponse, error) {
	const method = "AppendMessages"
	id := r.GetConversationId()
	for i, m := range r.GetMessages() {
		// The server's own fields, ignored on input.
		m.Sequence, m.TurnId, m.Exchange, m.CreateTime = 0, "", 0, nil
		if err := s.checkSize(fmt.Sprintf("messages[%d]", i), m); err != nil {
			return nil, err
		}
	}
	q, err := newRequest(r.GetRequestId(), method, &parleyv1.AppendMessagesRequest{Messages: r.GetMessages()})
	if err != nil {
		return nil, err
	}
	for i, m := range r.GetMessages() {
		if m.GetId() == "" {
			m.Id = newID(r.GetRequestId(), tenant(ctx), id, method, strconv.Itoa(i))
		}
	}
	result, err := s.store.Append(ctx, &store.Append{
		Tenant: tenant(ctx), ConversationID: id, Messages: r.GetMessages(),
		Request: q, IfVersion: r.IfVersion, MustExist: r.GetMustExist(),
	})
	if err != nil {
		return nil, inConversation(id, err)
	}
	return &parleyv1.AppendMessagesResponse{
		Conversation: withoutPrompt(result.Conversation), Appended: result.Appended,
		Replayed: result.Replayed, Created: result.Created,
	}, nil
}

// checkSize refuses a message that is too large; name is what the request calls it.
func (s *Server) checkSize(name string, m *parleyv1.Message) error {
	if size := proto.Size(m); size > s.maxMessageBytes {
		return &tooLargeError{message: name, size: size, limit: s.maxMessageBytes}
	}
	return nil
}

// ListMessages pages through the kept messages in either direction.
func (s *Server) ListMessages(ctx context.Context, r *parleyv1.ListMessagesRequest) (*parleyv1.ListMessagesResponse, error) {
	id := r.GetConversationId()
	snapshot, err := s.store.Read(ctx, &store.Read{Tenant: tenant(ctx), ConversationID: id, Newest: -1})
	if err != nil {
		return nil, inConversation(id, err)
	}
	// The uid too: in a later conversation of the same id, a sequence is another message.
	scope := []string{
		"messages", tenant(ctx), id, snapshot.Conversation.GetUid(),
		strconv.FormatBool(r.GetAscending()), strconv.Itoa(int(r.GetAfterSequence())),
	}
	page := messagePage{request: r}
	if r.GetPageToken() != "" {
		position, err := store.OpenToken(r.GetPageToken(), scope...)
		if err != nil || len(position) != 4 {
			return nil, store.ErrPageToken
		}
		page.last = int32(binary.BigEndian.Uint32(position))
	}
	reply := &parleyv1.ListMessagesResponse{
		Conversation: snapshot.Conversation, OldestSequence: snapshot.Conversation.GetLastSequence() + 1,
	}
	for frame := range snapshot.Messages.All() {
		reply.OldestSequence = frame.Sequence()
		break
	}
	if page.fill(snapshot.Messages) {
		reply.NextPageToken = store.SealToken(binary.BigEndian.AppendUint32(nil, uint32(page.last)), scope...)
	}
	splice(reply, page.messages)
	return reply, nil
}

// messagePage is one page of ListMessages.
type messagePage struct {
	request *parleyv1.ListMessagesRequest
	// last is the sequence that the page before ended with, 0 for none; then this page's.
	last     int32
	messages store.Frames
}

// fill takes what belongs on the page, and reports whether more follows.
func (p *messagePage) fill(kept store.Frames) (more bool) {
	frames := slices.Collect(kept.All())
	if !p.request.GetAscending() {
		slices.Reverse(frames)
	}
	left := int(p.request.GetPageSize())
	if left == 0 {
		left = defaultMessagePage
	}
	for _, frame := range frames {
		sequence := frame.Sequence()
		if sequence <= p.request.GetAfterSequence() || p.passed(sequence) {
			continue
		}
		full := left == 0 || len(p.messages)+len(frame) > maxPageBytes
		if len(p.messages) > 0 && full {
			return true
		}
		p.messages = append(p.messages, frame...)
		p.last = sequence
		left--
	}
	return false
}

// passed reports whether a message was on an earlier page.
func (p *messagePage) passed(sequence int32) bool {
	switch {
	case p.last == 0:
		return false
	case p.request.GetAscending():
		return sequence <= p.last
	default:
		return sequence >= p.last
	}
}

// GetContext returns the system prompt and the history window for a model call.
func (s *Server) GetContext(ctx context.Context, r *parleyv1.GetContextRequest) (*parleyv1.GetContextResponse, error) {
	id := r.GetConversationId()
	snapshot, err := s.store.Read(ctx, &store.Read{Tenant: tenant(ctx), ConversationID: id, Newest: -1})
	if err != nil {
		return nil, inConversation(id, err)
	}
	messages, err := snapshot.Messages.Messages()
	if err != nil {
		return nil, inConversation(id, err)
	}
	start := window.Start(messages, snapshot.Offsets(), r.GetWindow())
	reply := &parleyv1.GetContextResponse{
		SystemPrompt: snapshot.Conversation.GetSystemPrompt(), OmittedCount: int32(start), Version: snapshot.Conversation.GetVersion(),
	}
	splice(reply, snapshot.Messages.Skip(start))
	return reply, nil
}
