package gateway

import (
	"fmt"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// lastEventID is the header with the id of the last event that the client received. A browser that
// reconnects sends it with the original URL, so the header has precedence over parameters in the
// URL.
const lastEventID = "Last-Event-ID"

// resumption is the position in a turn's events after which a client resumes.
type resumption struct {
	after int32 // The client of a Chat call has the events up to this index. 0 if it has none.
}

// SendMsg sends the request with the position from Last-Event-ID.
func (r *replyStream) SendMsg(m any) error {
	if r.response.lastID != "" {
		if err := r.applyLastEventID(m); err != nil {
			return err
		}
	}
	if request, ok := m.(*parleyv1.ResumeTurnRequest); ok {
		r.response.ids.last = request.GetAfterIndex() // It comes from the header or the URL.
	}
	return r.ClientStream.SendMsg(m)
}

// applyLastEventID copies the Last-Event-ID to a request that can resume a stream. The error is a
// status.
func (r *replyStream) applyLastEventID(m any) error {
	id := r.response.lastID
	switch request := m.(type) {
	case *parleyv1.WatchConversationsRequest:
		request.Cursor = id
		return nil
	case *parleyv1.ChatRequest:
		if request.GetRequestId() == "" {
			return badEventID("needs a request_id, since a request without one starts a new turn; " +
				"set request_id or get /v1/conversations/{conversation_id}/turns/{turn_id}/events")
		}
	case *parleyv1.ResumeTurnRequest:
	default:
		return nil // Replies of other calls have no ids.
	}
	index, textPending, ok := ParseEventID(id)
	switch {
	case !ok:
		return badEventID(fmt.Sprintf("%.80q is not the id of an event of a turn; "+
			"send the id that was received last, or omit the header", id))
	case textPending:
		return errTextPending(id)
	}
	if request, ok := m.(*parleyv1.ResumeTurnRequest); ok {
		request.AfterIndex = index
		return nil
	}
	r.after, r.response.ids.last = index, index
	return nil
}

// receive receives the next reply.
func (r *replyStream) receive(m any) error { return r.nameHeader(r.ClientStream.RecvMsg(m)) }

// receiveFirst receives the first reply that the client does not have yet.
func (r *replyStream) receiveFirst() (proto.Message, error) {
	if r.method == parleyv1.ConversationService_Chat_FullMethodName && r.after > 0 {
		return r.receiveFirstAfter()
	}
	reply, err := replyTo(r.method)
	if err != nil {
		return nil, err
	}
	return reply, r.receive(reply)
}

// receiveFirstAfter receives the first event of a Chat call for a client that has the events up to r.after. All
// later events are new. If the client has the event started, receiveFirstAfter replaces the call by ResumeTurn,
// for two reasons: a text that Chat merges could contain a part that the client has, and the server decides from
// where a turn can be resumed. If the server was restarted or the client lost its place in the queue, the events
// are those of a new turn, and all are sent.
func (r *replyStream) receiveFirstAfter() (proto.Message, error) {
	for {
		reply := new(parleyv1.ChatResponse)
		if err := r.ClientStream.RecvMsg(reply); err != nil {
			return nil, err
		}
		event, started := reply.GetEvent(), reply.GetEvent().GetStarted()
		switch {
		case event.GetIndex() > r.after,
			started != nil && !started.GetReplayed(),
			event.GetFinished() != nil && event.GetIndex() < r.after:
			return reply, nil
		case started != nil:
			return r.resumeTurn(started.GetConversation().GetId(), event.GetTurnId())
		}
	}
}

// resumeTurn replaces a Chat call by ResumeTurn and receives the first event after r.after.
func (r *replyStream) resumeTurn(conversationID, turnID string) (proto.Message, error) {
	resumed, err := parleyv1.NewConversationServiceClient(r.conn).ResumeTurn(r.ctx, &parleyv1.ResumeTurnRequest{
		ConversationId: conversationID, TurnId: turnID, AfterIndex: r.after,
	}, r.opts...)
	if err != nil {
		return nil, err
	}
	r.ClientStream = resumed
	// The replies of Chat and ResumeTurn have the same wire format. The first reply of ResumeTurn shows
	// that the turn has a second reader, so it continues when Chat is cancelled, even with
	// ON_DISCONNECT_CANCEL.
	reply := new(parleyv1.ChatResponse)
	err = r.receive(reply)
	r.cancelChat()
	return reply, err
}

// nameHeader changes an error about the cursor so that it names Last-Event-ID, which contained it.
func (r *replyStream) nameHeader(err error) error {
	if r.response.lastID == "" || status.Code(err) != codes.InvalidArgument ||
		r.method != parleyv1.ConversationService_WatchConversations_FullMethodName {
		return err
	}
	const field = "cursor"
	st := status.Convert(err).Proto()
	st.Message = strings.Replace(st.GetMessage(), field+":", lastEventID+":", 1)
	for i, detail := range st.GetDetails() {
		bad := new(errdetails.BadRequest)
		if detail.UnmarshalTo(bad) != nil {
			continue
		}
		for _, v := range bad.GetFieldViolations() {
			if v.GetField() == field {
				v.Field = lastEventID
			}
		}
		if named, err := anypb.New(bad); err == nil {
			st.Details[i] = named
		}
	}
	return status.ErrorProto(st)
}

// badEventID returns the error for a wrong Last-Event-ID.
func badEventID(why string) error {
	bad := &errdetails.BadRequest{
		FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: lastEventID, Description: why}},
	}
	return NewStatus(codes.InvalidArgument, "INVALID_REQUEST", fmt.Sprintf("invalid request: %s: %s", lastEventID, why),
		bad).Err()
}

// errTextPending returns the error for an id after which the stream cannot be resumed without loss of
// text.
func errTextPending(id string) error {
	st := status.Newf(codes.OutOfRange, "%s %q cannot be resumed: text before that event may not have been sent; use 0 "+
		"to receive the complete turn with its texts merged", lastEventID, id)
	info := &errdetails.ErrorInfo{Reason: "EVENTS_GONE", Domain: domain, Metadata: map[string]string{"oldest_index": "1"}}
	if detailed, err := st.WithDetails(info); err == nil {
		st = detailed
	}
	return st.Err()
}
