package client_test

import (
	"iter"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// watchCall is a call of WatchConversations.
type watchCall struct {
	grpc.ServerStream

	nth     int // The number of such calls before this one.
	request *parleyv1.WatchConversationsRequest
}

func (f *fake) WatchConversations(request *parleyv1.WatchConversationsRequest,
	stream grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse],
) error {
	return f.stream(parleyv1.ConversationService_WatchConversations_FullMethodName, request, &turnCall{
		ServerStream: &watchCall{ServerStream: stream, request: request},
	})
}

// watchFake returns a fake that answers calls of WatchConversations with answer.
func watchFake(answer func(*watchCall) error) *fake {
	return &fake{turn: func(a *turnCall) error {
		w, ok := a.ServerStream.(*watchCall)
		if !ok {
			return errRefused
		}
		w.nth = a.nth
		return answer(w)
	}}
}

// send sends changes in order.
func (w *watchCall) send(changes ...*parleyv1.ConversationChange) error {
	for _, change := range changes {
		if err := w.SendMsg(&parleyv1.WatchConversationsResponse{Change: change}); err != nil {
			return err
		}
	}
	return nil
}

// hang waits until the stream breaks or the client leaves.
func (w *watchCall) hang() error {
	<-w.Context().Done()
	return w.Context().Err()
}

// position returns the number of changes that the client has, according to its cursor.
func (w *watchCall) position() int {
	return cursorPosition(w.request)
}

// cursorPosition returns the number in the cursor of m, or 0 if the cursor is empty.
func cursorPosition(m interface{ GetCursor() string }) int {
	position, _ := strconv.Atoi(m.GetCursor())
	return position
}

// change returns a change at a position, the number of changes up to it. The cursor is the position.
func change(kind parleyv1.ChangeKind, position int) *parleyv1.ConversationChange {
	return &parleyv1.ConversationChange{Kind: kind, Cursor: strconv.Itoa(position)}
}

func heartbeat(position int) *parleyv1.ConversationChange {
	return change(parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT, position)
}

func gap(position int) *parleyv1.ConversationChange {
	return change(parleyv1.ChangeKind_CHANGE_KIND_GAP, position)
}

// messageChanges returns one change for each message up to a position.
func messageChanges(position int) []*parleyv1.ConversationChange {
	changes := make([]*parleyv1.ConversationChange, position)
	for i := range changes {
		changes[i] = change(parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED, i+1)
		changes[i].Payload = &parleyv1.ConversationChange_Message{Message: &parleyv1.Message{Sequence: int32(i + 1)}}
	}
	return changes
}

// watchRequest returns a request whose fields, except the cursor, must be the same in each attempt.
func watchRequest() *parleyv1.WatchConversationsRequest {
	return &parleyv1.WatchConversationsRequest{
		ConversationIds: []string{"c"}, IncludeTurnEvents: true, DeleteAfterDisconnect: durationpb.New(0),
	}
}

// readChanges returns the changes of a watch and its error. It calls step with each change and leaves
// the loop when step returns false.
func readChanges(changes iter.Seq2[*parleyv1.ConversationChange, error],
	step func(*parleyv1.ConversationChange) (more bool),
) (shown []*parleyv1.ConversationChange, err error) {
	for change, failure := range changes {
		if failure != nil {
			err = failure
			continue // The loop continues, so that tests detect changes after the error.
		}
		shown = append(shown, change)
		if !step(change) {
			break
		}
	}
	return shown, err
}

// untilPosition returns a step for readChanges that ends the loop at the change of a position, but not
// at a heartbeat.
func untilPosition(position int) func(*parleyv1.ConversationChange) bool {
	return func(change *parleyv1.ConversationChange) bool {
		return change.GetKind() == parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT || cursorPosition(change) != position
	}
}
