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

// lastEventID is the header that says what a client has received last. A browser that asks
// again sends it with the URL that it began with, so it wins over what the URL says.
const lastEventID = "Last-Event-ID"

// resumption is where a client of a turn's events goes on.
type resumption struct {
	after int32 // Events of its turn up to this index are not to be sent; 0: the server sees to that.
}

// SendMsg sends the request with where the client goes on.
func (r *replies) SendMsg(m any) error {
	if r.outlet.lastID != "" {
		if err := r.goOn(m); err != nil {
			return err
		}
	}
	if request, ok := m.(*parleyv1.ResumeTurnRequest); ok {
		r.outlet.ids.last = request.GetAfterIndex() // The header and the URL are as good.
	}
	return r.ClientStream.SendMsg(m)
}

// goOn reads the Last-Event-ID into a request of a kind that can go on. An error is a status.
func (r *replies) goOn(m any) error {
	id := r.outlet.lastID
	switch request := m.(type) {
	case *parleyv1.WatchConversationsRequest:
		request.Cursor = id
		return nil
	case *parleyv1.ChatRequest:
		if request.GetRequestId() == "" {
			return badEventID("goes with a request_id only: a request without one begins another turn; " +
				"ask for the events of the turn at /v1/conversations/{conversation_id}/turns/{turn_id}/events")
		}
	case *parleyv1.ResumeTurnRequest:
	default:
		return nil // Its replies have no ids.
	}
	index, ahead, ok := parseEventID(id)
	switch {
	case !ok:
		return badEventID(fmt.Sprintf("%.80q is no id of an event of a turn, which is its index: give back the one that came last, or leave the header out", id))
	case ahead:
		return textAhead(id)
	}
	if request, ok := m.(*parleyv1.ResumeTurnRequest); ok {
		request.AfterIndex = index
		return nil
	}
	r.after, r.outlet.ids.last = index, index
	return nil
}

// fetch receives the next reply that is news to the client.
func (r *replies) fetch(m any) error {
	for {
		if err := r.ClientStream.RecvMsg(m); err != nil {
			return r.inHeader(err)
		}
		if chat, ok := m.(*parleyv1.ChatResponse); !ok || r.after == 0 || r.isNews(chat.GetEvent()) {
			return nil
		}
	}
}

// isNews reports whether a client that has the events up to after is to get this one of a
// turn in the queue, or of one that was there when this stream began. Where the server was
// restarted, or the client has lost its place in the queue, the turn is another one.
func (r *replies) isNews(event *parleyv1.TurnEvent) bool {
	started := event.GetStarted()
	if started != nil && !started.GetReplayed() || event.GetFinished() != nil && event.GetIndex() < r.after {
		r.after = 0
	}
	return event.GetIndex() > r.after
}

// fetchFirst receives the first reply. A Chat that comes upon a turn which has started
// becomes a ResumeTurn of it: what can be gone on with is the server's to say.
func (r *replies) fetchFirst() (proto.Message, error) {
	reply, err := replyTo(r.method)
	if err != nil {
		return nil, err
	}
	if r.method != parleyv1.ConversationService_Chat_FullMethodName || r.after == 0 {
		return reply, r.fetch(reply)
	}
	first := new(parleyv1.ChatResponse)
	if err := r.ClientStream.RecvMsg(first); err != nil {
		return nil, err
	}
	started := first.GetEvent().GetStarted()
	if !started.GetReplayed() {
		if r.isNews(first.GetEvent()) {
			return first, nil
		}
		return reply, r.fetch(reply)
	}
	resumed, err := parleyv1.NewConversationServiceClient(r.conn).ResumeTurn(r.ctx, &parleyv1.ResumeTurnRequest{
		ConversationId: started.GetConversation().GetId(), TurnId: first.GetEvent().GetTurnId(), AfterIndex: r.after,
	}, r.opts...)
	if err != nil {
		return nil, err
	}
	r.ClientStream, r.after = resumed, 0
	// Both kinds of replies are the same on the wire. Once there is one the turn has another
	// reader, and does not end with ON_DISCONNECT_CANCEL when this one leaves.
	err = r.fetch(reply)
	r.leaveChat()
	return reply, err
}

// inHeader has an error about a cursor name the header that it came in.
func (r *replies) inHeader(err error) error {
	if r.outlet.lastID == "" || r.method != parleyv1.ConversationService_WatchConversations_FullMethodName || status.Code(err) != codes.InvalidArgument {
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

// badEventID refuses the header.
func badEventID(why string) error {
	bad := &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: lastEventID, Description: why}}}
	return newStatus(codes.InvalidArgument, "INVALID_REQUEST", fmt.Sprintf("invalid request: %s: %s", lastEventID, why), bad).Err()
}

// textAhead is the error of the server for a client that cannot go on.
func textAhead(id string) error {
	st := status.Newf(codes.OutOfRange, "%s %q: text from before that event may not have come; the whole turn is behind 0, its texts merged", lastEventID, id)
	info := &errdetails.ErrorInfo{Reason: "EVENTS_GONE", Domain: domain, Metadata: map[string]string{"oldest_index": "1"}}
	if detailed, err := st.WithDetails(info); err == nil {
		st = detailed
	}
	return st.Err()
}
