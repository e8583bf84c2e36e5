package store

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestTags compares each tag with the descriptor of its field.
func TestTags(t *testing.T) {
	metadata := new(parleyv1.Message).ProtoReflect().Descriptor().Fields().ByName("metadata").Message()
	message := func(m proto.Message) protoreflect.MessageDescriptor { return m.ProtoReflect().Descriptor() }
	for of, tags := range map[protoreflect.MessageDescriptor]map[protoreflect.Name]uint64{
		message(new(parleyv1.Message)): {
			"id": tagID, "sequence": tagSequence, "role": tagRole, "content": tagContent, "structured_data": tagStructuredData,
			"tool_calls": tagToolCalls, "tool_result": tagToolResult, "agent": tagAgent, "summary": tagSummary,
			"status": tagStatus, "turn_id": tagTurnID, "exchange": tagExchange, "usage": tagUsage,
			"metadata": tagMetadata, "create_time": tagCreateTime, "native": tagNative, "reasoning": tagReasoning,
		},
		message(new(parleyv1.Native)):         {"type": tagNativeType, "value": tagNativeValue},
		message(new(parleyv1.StructuredData)): {"type": tagDataType},
		message(new(parleyv1.ToolCall)):       {"id": tagCallID},
		message(new(parleyv1.ToolResult)): {
			"call_id": tagResultCallID, "name": tagResultName, "content": tagResultContent,
		},
		message(new(parleyv1.Usage)): {
			"model": tagModel, "input_tokens": tagInputTokens, "output_tokens": tagOutputTokens,
			"cached_input_tokens": tagCachedInputTokens, "reasoning_tokens": tagReasoningTokens,
		},
		message(new(timestamppb.Timestamp)): {"seconds": tagSeconds, "nanos": tagNanos},
		metadata:                            {"key": tagKey, "value": tagValue},
	} {
		for name, tag := range tags {
			field := of.Fields().ByName(name)
			if field == nil {
				t.Errorf("%s has no field %s", of.Name(), name)
				continue
			}
			kind := protowire.BytesType
			if k := field.Kind(); k == protoreflect.EnumKind || k == protoreflect.Int32Kind || k == protoreflect.Int64Kind {
				kind = protowire.VarintType
			}
			if want := protowire.EncodeTag(field.Number(), kind); tag != want {
				t.Errorf("tag of %s.%s = %d, want %d", of.Name(), name, tag, want)
			}
		}
	}
}

// FuzzFields checks that Fields has the same values as the decoded message.
func FuzzFields(f *testing.F) {
	full := &parleyv1.Message{
		Id: "m7", Sequence: 7, Exchange: 3, Role: parleyv1.Role_ROLE_TOOL, Status: parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE,
		Content: "content", Agent: "finder", Summary: "found", TurnId: "t",
		StructuredData: []*parleyv1.StructuredData{{Type: "list"}, {Type: "price"}},
		ToolCalls:      []*parleyv1.ToolCall{{Id: "1", Name: "search"}, {Id: "2"}},
		ToolResult:     &parleyv1.ToolResult{CallId: "1", Name: "search", Content: "none"},
		Usage: &parleyv1.Usage{
			Model: "m", InputTokens: 1, OutputTokens: 7, CachedInputTokens: 3, ReasoningTokens: -1,
		},
		Metadata:   map[string]string{"user": "Ann", "": ""},
		CreateTime: &timestamppb.Timestamp{Seconds: -1, Nanos: 5},
		Native:     &parleyv1.Native{Type: "t", Value: []byte("\xff\x00")}, Reasoning: "why",
	}
	var bodies []byte
	for _, m := range []*parleyv1.Message{full, {}, {Usage: &parleyv1.Usage{OutputTokens: 2}}, {Content: "other"}} {
		body, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
		bodies = append(bodies, body...)
		f.Add(bodies)                                  // repeated singular fields
		f.Add(append(body, 0x2a, 4, 0x0a, 0, 0x0a, 0)) // structured data with two types
		f.Add(append(body, 0x2a, 6, 0x0a, 1, 'a', 0x0a, 1, 'b'))
		f.Add(append(body, 0x82, 0x01, 1, 'x', 0x22, 0))  // field 16, whose tag has two bytes, then the content
		f.Add(append(body, 0x12, 0x00))                   // field 2 with another wire type
		f.Add(append(body, 0x13, 0x10, 0x09, 0x14, 0x10)) // a group, then a truncated field
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		want := new(parleyv1.Message)
		if proto.Unmarshal(body, want) != nil {
			return
		}
		frame := Frame(AppendFrame(nil, body))
		fields := Fields{StructuredData: make([]Nested, 1), ToolCalls: make([]Nested, 1), Metadata: make([][]byte, 1)}
		if err := fields.Read(frame); err != nil {
			t.Fatalf("Read() = %v, want no error for a message that decodes", err)
		}
		if got := frame.Sequence(); got != want.GetSequence() {
			t.Errorf("Sequence() = %d, want %d", got, want.GetSequence())
		}
		checkWithout(t, frame, want)
		if got := string(frame.ID()); got != want.GetId() {
			t.Errorf("ID() = %q, want %q", got, want.GetId())
		}
		want = &parleyv1.Message{
			Sequence: want.Sequence, Exchange: want.Exchange, Role: want.Role, Status: want.Status, Content: want.Content,
			Agent: want.Agent, Summary: want.Summary, TurnId: want.TurnId, StructuredData: want.StructuredData,
			ToolCalls: want.ToolCalls, ToolResult: want.ToolResult, Usage: want.Usage, Metadata: want.Metadata,
			CreateTime: want.CreateTime, Native: want.Native,
		}
		if d := cmp.Diff(want, decodeFields(t, &fields), protocmp.Transform()); d != "" {
			t.Errorf("message (-decoded +fields):\n%s", d)
		}
		checkNested(t, &fields, want)
	})
}

// decodeFields returns a message with these fields.
func decodeFields(t *testing.T, f *Fields) *parleyv1.Message {
	t.Helper()
	m := &parleyv1.Message{
		Sequence: f.Sequence, Exchange: f.Exchange, Role: f.Role, Status: f.Status, Content: string(f.Content),
		Agent: string(f.Agent), Summary: string(f.Summary), TurnId: string(f.TurnID),
	}
	decode := func(encoded []byte, into proto.Message) {
		if err := proto.Unmarshal(encoded, into); err != nil {
			t.Fatalf("Unmarshal(%x) as %T: %v", encoded, into, err)
		}
	}
	for i, data := range f.StructuredData {
		m.StructuredData = append(m.StructuredData, new(parleyv1.StructuredData))
		decode(data.Encoded, m.StructuredData[i])
	}
	for i, call := range f.ToolCalls {
		m.ToolCalls = append(m.ToolCalls, new(parleyv1.ToolCall))
		decode(call.Encoded, m.ToolCalls[i])
	}
	for _, encoded := range f.Metadata {
		key, value, err := MetadataEntry(encoded)
		if err != nil {
			t.Fatalf("MetadataEntry(%x): %v", encoded, err)
		}
		if m.Metadata == nil {
			m.Metadata = make(map[string]string)
		}
		m.Metadata[string(key)] = string(value)
	}
	if f.ToolResult != nil {
		m.ToolResult = new(parleyv1.ToolResult)
		decode(f.ToolResult, m.ToolResult)
	}
	if f.Native != nil {
		m.Native = new(parleyv1.Native)
		decode(f.Native, m.Native)
	}
	if f.Usage != nil {
		m.Usage = new(parleyv1.Usage)
		decode(f.Usage, m.Usage)
	}
	if f.CreateTime != nil {
		m.CreateTime = new(timestamppb.Timestamp)
		decode(f.CreateTime, m.CreateTime)
	}
	return m
}

// checkWithout removes fields from a frame that decodes to this message, and from a frame beside it.
func checkWithout(t *testing.T, frame Frame, message *parleyv1.Message) {
	t.Helper()
	frames := slices.Concat(frame, frame)
	for _, test := range []struct {
		name         string
		got          Frames
		removeNative bool
	}{{"WithoutReasoning", Frames(frames).WithoutReasoning(), false}, {"WithoutNative", Frames(frames).WithoutNative(), true}} {
		want := proto.CloneOf(message)
		want.Reasoning = ""
		if test.removeNative {
			want.Native = nil
		}
		messages, err := test.got.Messages()
		if err != nil || len(messages) != 2 {
			t.Fatalf("%s = %d messages, %v, want 2", test.name, len(messages), err)
		}
		for _, got := range messages {
			if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
				t.Errorf("%s (-want +got):\n%s", test.name, d)
			}
		}
	}
}

// checkNested compares what f reads of the messages inside a message with that message.
func checkNested(t *testing.T, f *Fields, want *parleyv1.Message) {
	t.Helper()
	for i, data := range f.StructuredData {
		if want := want.GetStructuredData()[i].GetType(); string(data.Name) != want {
			t.Errorf("type of structured data %x = %q, want %q", data.Encoded, data.Name, want)
		}
	}
	for i, call := range f.ToolCalls {
		if want := want.GetToolCalls()[i].GetId(); string(call.Name) != want {
			t.Errorf("id of tool call %x = %q, want %q", call.Encoded, call.Name, want)
		}
	}
	result, err := f.ReadResult()
	if r := want.GetToolResult(); err != nil || string(result.CallID) != r.GetCallId() ||
		string(result.Name) != r.GetName() || string(result.Content) != r.GetContent() {
		t.Errorf("ReadResult() = %+v, %v, want %v", result, err, r)
	}
	usage, err := f.ReadUsage()
	got := &parleyv1.Usage{
		Model: string(usage.Model), InputTokens: usage.InputTokens, OutputTokens: usage.OutputTokens,
		CachedInputTokens: usage.CachedInputTokens, ReasoningTokens: usage.ReasoningTokens,
	}
	u := want.GetUsage()
	counts := &parleyv1.Usage{
		Model: u.GetModel(), InputTokens: u.GetInputTokens(), OutputTokens: u.GetOutputTokens(),
		CachedInputTokens: u.GetCachedInputTokens(), ReasoningTokens: u.GetReasoningTokens(),
	}
	if err != nil || !proto.Equal(got, counts) {
		t.Errorf("ReadUsage() = %v, %v, want %v", got, err, counts)
	}
	native, err := f.ReadNative()
	if n := want.GetNative(); err != nil || string(native.Type) != n.GetType() || !bytes.Equal(native.Value, n.GetValue()) {
		t.Errorf("ReadNative() = %+v, %v, want %v", native, err, n)
	}
	if at, err := f.Time(); err != nil || !at.Equal(want.GetCreateTime().AsTime()) {
		t.Errorf("Time() = %v, %v, want %v", at, err, want.GetCreateTime().AsTime())
	}
}

// TestCorruptFields checks that each damaged part of a message is found where it is read.
func TestCorruptFields(t *testing.T) {
	for name, body := range map[string][]byte{
		"no message":        {0xff},
		"truncated field":   {0x22, 5, 'x'},
		"structured data":   {0x2a, 1, 0xff},
		"tool call":         {0x32, 1, 0xff},
		"tool result":       {0x3a, 1, 0xff},
		"usage":             {0x6a, 1, 0xff},
		"entry of metadata": {0x72, 1, 0xff},
		"create time":       {0x7a, 1, 0xff},
		"native form":       {0x92, 0x01, 1, 0xff},
	} {
		t.Run(name, func(t *testing.T) {
			var f Fields
			err := f.Read(AppendFrame(nil, body))
			if err == nil {
				_, errResult := f.ReadResult()
				_, errUsage := f.ReadUsage()
				_, errTime := f.Time()
				_, errNative := f.ReadNative()
				err = errors.Join(errResult, errUsage, errTime, errNative)
			}
			for _, entry := range f.Metadata {
				_, _, err = MetadataEntry(entry)
			}
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("reading %x = %v, want ErrCorrupt", body, err)
			}
		})
	}
}

// TestWithout checks that messages without the removed fields are returned as they are, and that damage is not lost.
func TestWithout(t *testing.T) {
	encode := func(m *parleyv1.Message) Frames {
		frame, err := EncodeFrame(m)
		if err != nil {
			t.Fatal(err)
		}
		return Frames(frame)
	}
	plain := slices.Concat(encode(&parleyv1.Message{Content: "one"}), encode(&parleyv1.Message{Content: "two"}))
	if got := plain.WithoutNative(); len(got) == 0 || &got[0] != &plain[0] || len(got) != len(plain) {
		t.Errorf("WithoutNative() of %x = %x, want the same memory", plain, got)
	}
	full := encode(&parleyv1.Message{Content: "three", Reasoning: "r", Native: &parleyv1.Native{Type: "t"}})
	all := slices.Concat(plain, full, plain)
	before, damaged := slices.Clone(all), Frames(AppendFrame(nil, Frame(full).Body(), []byte{0xff}))
	for name, test := range map[string]struct{ got, want Frames }{
		"WithoutNative":    {all.WithoutNative(), slices.Concat(plain, encode(&parleyv1.Message{Content: "three"}), plain)},
		"WithoutReasoning": {full.WithoutReasoning(), encode(&parleyv1.Message{Content: "three", Native: &parleyv1.Native{Type: "t"}})},
		"damaged message":  {damaged.WithoutNative(), damaged},
		"damaged frame":    {append(slices.Clone(full), 0x12).WithoutNative(), append(encode(&parleyv1.Message{Content: "three"}), 0x12)},
	} {
		if !bytes.Equal(test.got, test.want) {
			t.Errorf("%s = %x, want %x", name, test.got, test.want)
		}
	}
	if !bytes.Equal(before, all) {
		t.Error("WithoutNative changed the frames")
	}
}

// TestAppendNumbered checks that the fields of the store win over those of the message.
func TestAppendNumbered(t *testing.T) {
	sent := &parleyv1.Message{
		Sequence: 5, Exchange: 6, Content: "c", CreateTime: &timestamppb.Timestamp{Seconds: 8, Nanos: 9},
	}
	body, err := proto.Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	n := &parleyv1.AppendedMessage{Sequence: 1, CreateTime: &timestamppb.Timestamp{Seconds: 2}}
	for status, want := range map[parleyv1.MessageStatus]parleyv1.MessageStatus{0: 1, 1: 1, 2: 2} {
		got, err := Frame(AppendNumbered(nil, body, status, n)).Message()
		if err != nil {
			t.Fatal(err)
		}
		stored := &parleyv1.Message{Sequence: 1, Content: "c", Status: want, CreateTime: n.CreateTime}
		if d := cmp.Diff(stored, got, protocmp.Transform()); d != "" {
			t.Errorf("AppendNumbered with status %v (-want +got):\n%s", status, d)
		}
	}
}

// TestFieldNumberOfAnotherName checks that a name that is not in the proto is found at start.
func TestFieldNumberOfAnotherName(t *testing.T) {
	defer func() {
		const want = `*parleyv1.Message has no field "size"`
		if got := recover(); got != want {
			t.Errorf(`FieldNumber(Message, "size") panics with %v, want %q`, got, want)
		}
	}()
	FieldNumber(new(parleyv1.Message), "size")
}
