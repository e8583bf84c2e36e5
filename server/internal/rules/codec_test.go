package rules

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// request returns a batch of messages with structured data.
func request() *parleyv1.AppendMessagesRequest {
	r := &parleyv1.AppendMessagesRequest{ConversationId: "a", RequestId: "r"}
	for range 4 {
		list := new(structpb.ListValue)
		for i := range 20 {
			list.Values = append(list.Values, structpb.NewStructValue(&structpb.Struct{
				Fields: map[string]*structpb.Value{
					"name":  structpb.NewStringValue(fmt.Sprint("library ", i)),
					"stars": structpb.NewNumberValue(float64(i)),
				},
			}))
		}
		r.Messages = append(r.Messages, &parleyv1.Message{
			Role: parleyv1.Role_ROLE_USER, Content: strings.Repeat("x", 500),
			StructuredData: []*parleyv1.StructuredData{{Type: "list", Value: structpb.NewListValue(list)}},
		})
	}
	return r
}

func TestCodecDropsUnknownFields(t *testing.T) {
	want, sent := request(), request()
	unknown := protoreflect.RawFields(
		protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), make([]byte, 100)),
	)
	m := sent.GetMessages()[1]
	data := m.GetStructuredData()[0]
	stars := data.GetValue().GetListValue().GetValues()[3].GetStructValue().GetFields()["stars"]
	for _, parent := range []proto.Message{sent, m, data, stars} {
		parent.ProtoReflect().SetUnknown(unknown)
	}
	encoded, err := Codec().Marshal(sent)
	if err != nil || encoded.Len() != proto.Size(sent) {
		t.Fatalf("Marshal = %d bytes, %v; want %d bytes: replies carry their messages in an unknown field",
			encoded.Len(), err, proto.Size(sent))
	}
	got := new(parleyv1.AppendMessagesRequest)
	if err := Codec().Unmarshal(encoded, got); err != nil || !proto.Equal(got, want) {
		t.Errorf("Unmarshal = %v, %v, want the request without unknown fields", got, err)
	}
	if err := Codec().Unmarshal(encoded, new(int)); err == nil {
		t.Error("Unmarshal into an int = no error")
	}
}

// BenchmarkCodec compares three ways to decode a request: gRPC's codec, Codec, and gRPC's codec
// followed by dropUnknown. It alternates between them and reports the median ratios to gRPC's codec.
func BenchmarkCodec(b *testing.B) {
	const calls, rounds = 200, 31
	wire, err := proto.Marshal(request())
	if err != nil {
		b.Fatal(err)
	}
	plain := encoding.GetCodecV2(protocodec.Name)
	decode := func(c encoding.CodecV2, afterDecode func(protoreflect.Message)) time.Duration {
		start := time.Now()
		for range calls {
			m := new(parleyv1.AppendMessagesRequest)
			if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(wire)}, m); err != nil {
				b.Fatal(err)
			}
			afterDecode(m.ProtoReflect())
		}
		return time.Since(start)
	}
	noop := func(protoreflect.Message) {}
	for b.Loop() {
		var codec, walked []float64
		for range rounds {
			base := decode(plain, noop).Seconds()
			codec = append(codec, decode(Codec(), noop).Seconds()/base)
			walked = append(walked, decode(plain, dropUnknown).Seconds()/base)
		}
		for name, ratios := range map[string][]float64{"codec": codec, "walk": walked} {
			slices.Sort(ratios)
			b.ReportMetric(ratios[rounds/2], name+"/plain")
			b.ReportMetric(ratios[rounds/10], name+"/plain-p10")
			b.ReportMetric(ratios[rounds*9/10], name+"/plain-p90")
		}
	}
}

// dropUnknown removes unknown fields from a decoded message. BenchmarkCodec compares Codec with it.
func dropUnknown(m protoreflect.Message) {
	if len(m.GetUnknown()) > 0 {
		m.SetUnknown(nil)
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap() && field.MapValue().Message() != nil:
			value.Map().Range(
				func(_ protoreflect.MapKey, v protoreflect.Value) bool { dropUnknown(v.Message()); return true },
			)
		case field.IsList() && field.Message() != nil:
			for i := range value.List().Len() {
				dropUnknown(value.List().Get(i).Message())
			}
		case field.Message() != nil && !field.IsMap():
			dropUnknown(value.Message())
		}
		return true
	})
}
