package client_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

type serverAppendStream = grpc.BidiStreamingServer[parleyv1.AppendStreamRequest, parleyv1.AppendStreamResponse]

// appendCall is a call of AppendStream.
type appendCall struct {
	serverAppendStream

	nth int // The number of such calls before this one.
}

func (f *fake) AppendStream(stream serverAppendStream) error {
	return f.stream(parleyv1.ConversationService_AppendStream_FullMethodName, nil, &turnCall{
		ServerStream: &appendCall{serverAppendStream: stream},
	})
}

// appendFake returns a fake that answers calls of AppendStream with answer.
func appendFake(answer func(*appendCall) error) *fake {
	return &fake{turn: func(a *turnCall) error {
		call, ok := a.ServerStream.(*appendCall)
		if !ok {
			return errRefused
		}
		call.nth = a.nth
		return answer(call)
	}}
}

// receive receives n requests.
func (a *appendCall) receive(n int) ([]*parleyv1.AppendMessagesRequest, error) {
	var requests []*parleyv1.AppendMessagesRequest
	for range n {
		request, err := a.Recv()
		if err != nil {
			return requests, err
		}
		requests = append(requests, request.GetAppend())
	}
	return requests, nil
}

func requestIDs(requests []*parleyv1.AppendMessagesRequest) (ids []string) {
	for _, request := range requests {
		ids = append(ids, request.GetRequestId())
	}
	return ids
}

// accept sends the responses to requests. The first message id of a response is the request_id.
func (a *appendCall) accept(requests ...*parleyv1.AppendMessagesRequest) error {
	for _, request := range requests {
		if err := a.Send(&parleyv1.AppendStreamResponse{Result: &parleyv1.AppendStreamResponse_Response{
			Response: &parleyv1.AppendMessagesResponse{
				Appended: []*parleyv1.AppendedMessage{{Id: request.GetRequestId()}},
			},
		}}); err != nil {
			return err
		}
	}
	return nil
}

// refuse sends an error as the answer to a request.
func (a *appendCall) refuse(err error) error {
	return a.Send(&parleyv1.AppendStreamResponse{
		Result: &parleyv1.AppendStreamResponse_Error{Error: status.Convert(err).Proto()},
	})
}

// acceptAll accepts each request, to the end of the stream. It returns the request ids.
func (a *appendCall) acceptAll() (ids []string, err error) {
	for {
		requests, err := a.receive(1)
		if errors.Is(err, io.EOF) {
			return ids, nil
		}
		if err == nil {
			err = a.accept(requests...)
		}
		if err != nil {
			return ids, err
		}
		ids = append(ids, requests[0].GetRequestId())
	}
}

// hang waits until the stream breaks or the client leaves.
func (a *appendCall) hang() error {
	<-a.Context().Done()
	return a.Context().Err()
}

// appendAll appends messages with these request ids, each to a conversation of its own.
func appendAll(ctx context.Context, a *client.Appender, ids ...string) (results []*client.AppendResult) {
	for _, id := range ids {
		results = append(results, a.Append(ctx, appendRequest("c"+id, id)))
	}
	return results
}

func appendRequest(conversation, id string) *parleyv1.AppendMessagesRequest {
	return &parleyv1.AppendMessagesRequest{
		ConversationId: conversation, RequestId: id,
		Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: id}},
	}
}

// checkAppended checks that each result is the response to the request with that id.
func checkAppended(t *testing.T, results []*client.AppendResult, ids ...string) {
	t.Helper()
	for i, result := range results {
		response, err := result.Wait(t.Context())
		if err != nil {
			t.Errorf("request %s: Wait = %v, want a response", ids[i], err)
		} else if got := response.GetAppended()[0].GetId(); got != ids[i] {
			t.Errorf("request %s: Wait returned the response to %s", ids[i], got)
		}
	}
}
