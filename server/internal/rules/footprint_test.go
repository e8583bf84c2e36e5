package rules

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// footprintFactor is how many times its footprint the decoding of a message may allocate: slices and maps
// leave garbage while they grow.
const footprintFactor = 2

// elements encodes an AppendMessagesRequest with n copies of an element in a field of its message, at this
// path of field numbers.
func elements(n int, element []byte, path ...protowire.Number) []byte {
	last := path[len(path)-1]
	b := bytes.Repeat(protowire.AppendBytes(protowire.AppendTag(nil, last, protowire.BytesType), element), n)
	for _, number := range slices.Backward(path[:len(path)-1]) {
		b = protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), b)
	}
	return b
}

// numbersOf returns the numbers of fields of nested messages, by their names.
func numbersOf(tb testing.TB, m proto.Message, names ...protoreflect.Name) []protowire.Number {
	tb.Helper()
	descriptor := m.ProtoReflect().Descriptor()
	numbers := make([]protowire.Number, len(names))
	for i, name := range names {
		field := descriptor.Fields().ByName(name)
		if field == nil {
			tb.Fatalf("%s has no field %s", descriptor.FullName(), name)
		}
		numbers[i], descriptor = field.Number(), field.Message()
	}
	return numbers
}

// allocatedBy returns how many bytes decode allocates.
func allocatedBy(decode func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	decode()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestFootprint compares footprints of hostile requests with what their decoding allocates.
func TestFootprint(t *testing.T) { //nolint:paralleltest // It measures allocations of the process.
	root := new(parleyv1.AppendMessagesRequest)
	messages := numbersOf(t, root, "messages")
	values := numbersOf(t, root, "messages", "structured_data", "value", "list_value", "values")
	fields := numbersOf(t, root, "messages", "structured_data", "value", "struct_value", "fields")
	var keys []byte
	for i := range 200_000 {
		entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), fmt.Sprintf("%x", i))
		keys = protowire.AppendBytes(protowire.AppendTag(keys, 1, protowire.BytesType), entry)
	}
	const n = 500_000
	for name, b := range map[string][]byte{
		"empty messages": elements(n, nil, messages...),
		"empty values":   elements(n, nil, values...),
		"nulls":          elements(n, []byte{8, 0}, values...),
		"empty lists":    elements(n, []byte{0x32, 0}, values...),
		"strings":        elements(n, []byte{0x1a, 2, 'a', 'b'}, values...),
		"equal keys":     elements(n, nil, fields...),
		"small maps":     elements(n/10, []byte{0x2a, 4, 0x0a, 2, 0x12, 0}, values...),
		"large map":      elements(1, keys, fields[:len(fields)-1]...),
		"text":           elements(1, bytes.Repeat([]byte("x"), 1<<20), numbersOf(t, root, "messages", "content")...),
	} {
		footprint, err := newCodec().footprint(b, root)
		if errors.Is(err, ErrTooManyValues) {
			footprint, err = MaxDecodedBytes, nil
		}
		if err != nil {
			t.Errorf("%s: footprint: %v", name, err)
			continue
		}
		got := allocatedBy(func() { _ = unmarshal(b, new(parleyv1.AppendMessagesRequest)) })
		t.Logf("%s: %d bytes, footprint %d, allocated %d: %.2f of the footprint", name, len(b), footprint, got,
			float64(got)/float64(footprint))
		if footprint < MaxDecodedBytes && got > footprintFactor*uint64(footprint) {
			t.Errorf("%s: decoding allocates %d bytes, want at most %d times the footprint, %d",
				name, got, footprintFactor, footprint)
		}
		if footprint > 6*int64(got) {
			t.Errorf("%s: footprint = %d, want at most 6 times what decoding allocates, %d", name, footprint, got)
		}
	}
}

// FuzzFootprint repeats an encoded piece of a message up to the size limit of a request. Its decoding must not
// allocate more than its footprint times footprintFactor.
func FuzzFootprint(f *testing.F) {
	root := new(parleyv1.AppendMessagesRequest)
	for _, names := range [][]protoreflect.Name{
		{"messages"},
		{"messages", "metadata"},
		{"messages", "structured_data", "value", "list_value", "values"},
		{"messages", "structured_data", "value", "struct_value", "fields"},
		{"messages", "tool_calls"},
	} {
		f.Add(elements(3, nil, numbersOf(f, root, names...)...))
	}
	valid, err := proto.Marshal(request())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(valid)
	f.Fuzz(func(t *testing.T, piece []byte) {
		if len(piece) == 0 || len(piece) > 64<<10 {
			return
		}
		b := bytes.Repeat(piece, (256<<10)/len(piece)+1)
		for _, m := range []proto.Message{
			new(parleyv1.AppendMessagesRequest), new(parleyv1.ChatRequest), new(parleyv1.ImportConversationsRequest),
			new(parleyv1.RespondResponse), new(parleyv1.ListConversationsRequest),
		} {
			footprint, err := newCodec().footprint(b, m)
			if err != nil {
				continue // Nothing decodes it.
			}
			var decodeErr error
			got := allocatedBy(func() { decodeErr = unmarshal(b, m) })
			// Other goroutines of a fuzzing process allocate a little.
			if limit := footprintFactor*uint64(footprint) + 1<<20; got > limit {
				t.Errorf("%T: decoding allocates %d bytes (%v), want at most %d", m, got, decodeErr, limit)
			}
		}
	})
}

// TestTinyFootprint checks that a message of tinyBytes needs at most smallBytes, whatever it contains: no field
// of a request may need more memory for each of its bytes.
func TestTinyFootprint(t *testing.T) {
	t.Parallel()
	known := make(map[protoreflect.FullName]*shape)
	for _, service := range []string{"ConversationService", "InteractionLogService", "AdminService", "AgentService"} {
		for _, m := range messagesOf(t, service) {
			newShape(m, known)
		}
	}
	if len(known) < 20 {
		t.Fatalf("%d types of messages, want at least 20", len(known))
	}
	for name, s := range known {
		for number, field := range s.fields {
			need := field.bytes
			if field.message != nil {
				need += field.message.bytes
			}
			if field.isMap { // A message with one entry each needs two bytes more.
				need += firstEntryBytes
			}
			if limit := int64(smallBytes / tinyBytes * 2); need > limit {
				t.Errorf("field %d of %s needs %d bytes for two, want at most %d", number, name, need, limit)
			}
		}
	}
}

// TestRequestCodec checks which requests the codec decodes at once and which ones it leaves to Decode.
func TestRequestCodec(t *testing.T) {
	t.Parallel()
	deep := structpb.NewNullValue()
	for range MaxDepth / 2 {
		deep = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{deep}})
	}
	large := &parleyv1.AppendMessagesRequest{ConversationId: "a"}
	for range 5000 {
		large.Messages = append(large.Messages, &parleyv1.Message{Content: "x"})
	}
	values := numbersOf(t, large, "messages", "structured_data", "value", "list_value", "values")
	for _, test := range []struct {
		name     string
		encoded  []byte
		deferred bool
		want     error
	}{
		{"small", marshal(t, request()), false, nil},
		{"large", marshal(t, large), true, nil},
		{"too many values", elements(2<<20, nil, values...), true, ErrTooManyValues},
		{"malformed", []byte{0xff}, true, ErrMalformed},
		{"large and malformed", append(marshal(t, large), 0xff), true, ErrMalformed},
		{"too deep", marshal(t, &parleyv1.AppendMessagesRequest{Messages: []*parleyv1.Message{{}, {}, {
			StructuredData: []*parleyv1.StructuredData{{}, {Value: deep}},
		}}}), true, &TooDeepError{}},
	} {
		c, m := NewRequestCodec(), new(parleyv1.AppendMessagesRequest)
		if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(test.encoded)}, m); err != nil {
			t.Errorf("%s: Unmarshal = %v, want no error", test.name, err)
		}
		if got := len(m.ProtoReflect().GetUnknown()) > 0; got != test.deferred {
			t.Errorf("%s: left in encoded form = %t, want %t", test.name, got, test.deferred)
		}
		var admitted int64
		err := c.Decode(m, func(bytes int64) error { admitted = bytes; return nil })
		deep, ok := errors.AsType[*TooDeepError](err)
		if _, wantDeep := errors.AsType[*TooDeepError](test.want); wantDeep && ok {
			if want := "messages[2].structured_data[1].value"; deep.Field != want {
				t.Errorf("%s: Field = %q, want %q", test.name, deep.Field, want)
			}
		} else if !errors.Is(err, test.want) {
			t.Errorf("%s: Decode = %v, want %v", test.name, err, test.want)
		}
		if err != nil {
			continue
		}
		want := new(parleyv1.AppendMessagesRequest)
		if err := proto.Unmarshal(test.encoded, want); err != nil || !proto.Equal(m, want) {
			t.Errorf("%s: decoded message differs (%v)", test.name, err)
		}
		if test.deferred != (admitted > smallBytes) {
			t.Errorf("%s: admitted %d bytes, want more than %d only if it was left in encoded form",
				test.name, admitted, smallBytes)
		}
	}
	refused := errors.New("refused")
	c, m := NewRequestCodec(), new(parleyv1.AppendMessagesRequest)
	if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(marshal(t, large))}, m); err != nil {
		t.Fatal(err)
	}
	if err := c.Decode(m, func(int64) error { return refused }); !errors.Is(err, refused) || len(m.GetMessages()) > 0 {
		t.Errorf("Decode = %v with %d messages, want the error of admit and no messages", err, len(m.GetMessages()))
	}
	if err := Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(elements(2<<20, nil, values...))},
		new(parleyv1.AppendMessagesRequest)); !errors.Is(err, ErrTooManyValues) {
		t.Errorf("Unmarshal of Codec = %v, want %v", err, ErrTooManyValues)
	}
}

func marshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// messagesOf returns the requests and replies of a service.
func messagesOf(t *testing.T, service string) []protoreflect.Message {
	t.Helper()
	for _, file := range []protoreflect.FileDescriptor{
		parleyv1.File_parley_v1_conversation_service_proto, parleyv1.File_parley_v1_admin_service_proto,
		parleyv1.File_parley_v1_record_service_proto, parleyv1.File_parley_v1_agent_service_proto,
		parleyv1.File_parley_v1_interaction_log_service_proto,
	} {
		s := file.Services().ByName(protoreflect.Name(service))
		if s == nil {
			continue
		}
		var messages []protoreflect.Message
		for i := range s.Methods().Len() {
			for _, d := range []protoreflect.MessageDescriptor{s.Methods().Get(i).Input(), s.Methods().Get(i).Output()} {
				m, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
				if err != nil {
					t.Fatal(err)
				}
				messages = append(messages, m.New())
			}
		}
		return messages
	}
	t.Fatalf("no service %s", service)
	return nil
}
