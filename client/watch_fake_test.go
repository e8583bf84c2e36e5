package client_test

import (
	"iter"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// watched is a call of WatchConversations.
type watched struct {
	grpc.ServerStream

	nth     int // Of such calls, from 0.
	request *parleyv1.WatchConversationsRequest
}

func (f *fake) WatchConversations(request *parleyv1.WatchConversationsRequest, stream grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse]) error {
	return f.stream(parleyv1.ConversationService_WatchConversations_FullMethodName, request, &asked{
		ServerStream: &watched{ServerStream: stream, request: request},
	})
}

// showing is a fake that answers watches so.
func showing(answer func(*watched) error) *fake {
	return &fake{turn: func(a *asked) error {
		w, ok := a.ServerStream.(*watched)
		if !ok {
			return errGone
		}
		w.nth = a.nth
		return answer(w)
	}}
}

// send sends changes, in order.
func (w *watched) send(changes ...*parleyv1.ConversationChange) error {
	for _, change := range changes {
		if err := w.SendMsg(&parleyv1.WatchConversationsResponse{Change: change}); err != nil {
			return err
		}
	}
	return nil
}

// hang waits until the stream breaks or the client leaves.
func (w *watched) hang() error {
	<-w.Context().Done()
	return w.Context().Err()
}

// place is how many changes the client has had.
func (w *watched) place() int {
	return placeOf(w.request)
}

// placeOf is what a cursor says; 0: an empty one.
func placeOf(m interface{ GetCursor() string }) int {
	place, _ := strconv.Atoi(m.GetCursor())
	return place
}

// change is one whose cursor says how many changes there are up to it.
func change(kind parleyv1.ChangeKind, place int) *parleyv1.ConversationChange {
	return &parleyv1.ConversationChange{Kind: kind, Cursor: strconv.Itoa(place)}
}

func heartbeat(place int) *parleyv1.ConversationChange {
	return change(parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT, place)
}

func gap(place int) *parleyv1.ConversationChange {
	return change(parleyv1.ChangeKind_CHANGE_KIND_GAP, place)
}

// committed are the changes up to a place.
func committed(place int) []*parleyv1.ConversationChange {
	changes := make([]*parleyv1.ConversationChange, place)
	for i := range changes {
		changes[i] = change(parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED, i+1)
		changes[i].Payload = &parleyv1.ConversationChange_Message{Message: &parleyv1.Message{Sequence: int32(i + 1)}}
	}
	return changes
}

// session is a request that is to arrive whole each time, but for its cursor.
func session() *parleyv1.WatchConversationsRequest {
	return &parleyv1.WatchConversationsRequest{
		ConversationIds: []string{"c"}, IncludeTurnEvents: true, DeleteAfterDisconnect: durationpb.New(0),
	}
}

// follow reads changes until step says that it is enough, and calls it before each is kept.
func follow(changes iter.Seq2[*parleyv1.ConversationChange, error], step func(*parleyv1.ConversationChange) (more bool)) (shown []*parleyv1.ConversationChange, err error) {
	for change, failure := range changes {
		if failure != nil {
			err = failure
			continue // That there is nothing behind it is for the tests to see.
		}
		shown = append(shown, change)
		if !step(change) {
			break
		}
	}
	return shown, err
}

// upTo reads until the change of that place, heartbeats aside.
func upTo(place int) func(*parleyv1.ConversationChange) bool {
	return func(change *parleyv1.ConversationChange) bool {
		return change.GetKind() == parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT || placeOf(change) != place
	}
}
