package rpc

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
)

// direct returns a connection for callers in this process. It is stopped at the end of the test.
func (f *fixture) direct(t *testing.T) *Direct {
	t.Helper()
	d := f.server.Direct(t.Context())
	t.Cleanup(func() { d.Stop(t.Context()) })
	return d
}

// TestDirect checks that a direct call returns the same reply and status as a call over a connection.
// The replies include fields that the server sets in encoded form.
func TestDirect(t *testing.T) {
	var seen []string
	f := open(t, func(s *setup) {
		s.Auth = auth.New(time.Now, verifierFunc(func(c auth.Credentials) auth.Identity {
			seen = append(seen, c.Token)
			return auth.Identity{Tenants: []string{auth.DefaultTenant}, Role: auth.Admin}
		}))
	})
	f.append(t, "c", user("Find me libraries"), &parleyv1.Message{
		Role: parleyv1.Role_ROLE_ASSISTANT, Content: "Two.", StructuredData: []*parleyv1.StructuredData{
			{Type: "list", Value: structpb.NewStringValue("Redux")},
		},
	}, user("The second one"))
	client, direct := parleyv1.NewConversationServiceClient(f.conn), parleyv1.NewConversationServiceClient(f.direct(t))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer me")
	type method func(parleyv1.ConversationServiceClient) (proto.Message, error)
	for name, call := range map[string]method{
		"load": func(c parleyv1.ConversationServiceClient) (proto.Message, error) {
			return c.LoadConversation(ctx, &parleyv1.LoadConversationRequest{ConversationId: "c"})
		},
		"summary": func(c parleyv1.ConversationServiceClient) (proto.Message, error) {
			return c.GetRoutingSummary(ctx, &parleyv1.GetRoutingSummaryRequest{
				ConversationId: "c", MessageLimit: proto.Int32(1),
			})
		},
		"list": func(c parleyv1.ConversationServiceClient) (proto.Message, error) {
			return c.ListConversations(ctx, &parleyv1.ListConversationsRequest{})
		},
		"missing": func(c parleyv1.ConversationServiceClient) (proto.Message, error) {
			return c.GetConversation(ctx, &parleyv1.GetConversationRequest{ConversationId: "nowhere"})
		},
		"invalid": func(c parleyv1.ConversationServiceClient) (proto.Message, error) {
			return c.ListMessages(ctx, &parleyv1.ListMessagesRequest{PageSize: -1})
		},
	} {
		want, wantErr := call(client)
		seen = nil
		got, err := call(direct)
		if diff := cmp.Diff(status.Convert(wantErr).Proto(), status.Convert(err).Proto(), protocmp.Transform()); diff != "" {
			t.Errorf("%s: status (-connection +direct):\n%s", name, diff)
		}
		if diff := cmp.Diff([]string{"me"}, seen); diff != "" {
			t.Errorf("%s: credential (-want +got):\n%s", name, diff)
		}
		if wantErr != nil {
			continue
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s (-connection +direct):\n%s", name, diff)
		}
		if unknown := got.ProtoReflect().GetUnknown(); len(unknown) > 0 {
			t.Errorf("%s: reply has %d bytes of unknown fields, want 0", name, len(unknown))
		}
	}

	stream, err := direct.ExportConversations(ctx, &parleyv1.ExportConversationsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if exported, err := stream.Recv(); err != nil || len(exported.GetMessages()) != 3 {
		t.Errorf("ExportConversations = %v, %v, want 3 messages", exported, err)
	}
}

// verifierFunc is a verifier that accepts every call.
type verifierFunc func(auth.Credentials) auth.Identity

// Verify returns the result of the function.
func (f verifierFunc) Verify(_ context.Context, c auth.Credentials) (auth.Identity, error) {
	return f(c), nil
}
