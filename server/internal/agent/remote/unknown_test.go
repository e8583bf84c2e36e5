package remote

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestUnknownFields: unknown fields are removed from pieces, because pieces become part of
// messages.
func TestUnknownFields(t *testing.T) {
	value := structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{structpb.NewNumberValue(1)}})
	data := &parleyv1.StructuredData{Type: "n", Value: value}
	call := &parleyv1.ToolCall{Id: "1", Name: "weather"}
	sent := []*parleyv1.RespondResponse{
		{Piece: &parleyv1.RespondResponse_StructuredData{StructuredData: data}}, {
			Piece: &parleyv1.RespondResponse_ToolCall{ToolCall: call},
		},
	}
	var want []*parleyv1.RespondResponse
	for _, piece := range sent {
		want = append(want, proto.CloneOf(piece))
	}
	unknown := protoreflect.RawFields(protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType),
		make([]byte, 1000)))
	for _, m := range []proto.Message{sent[0], data, value, value.GetListValue(), value.GetListValue().GetValues()[0], call} {
		m.ProtoReflect().SetUnknown(unknown)
	}
	s := start(t, "127.0.0.1:0", nil, func(_ *parleyv1.RespondRequest, stream pieces) error {
		for _, piece := range sent {
			if err := stream.Send(piece); err != nil {
				return err
			}
		}
		return nil
	})
	got, err := collect(t.Context(), open(t, Config{Address: s.address}), new(parleyv1.RespondRequest))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("pieces (-want +got):\n%s", diff)
	}
}
