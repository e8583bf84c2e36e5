package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestExportAndImportKeepConversations checks that conversations survive the path from a server to
// lines, through import requests, and to lines again.
func TestExportAndImportKeepConversations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var want []*parleyv1.ExportConversationsResponse
		for n := range rapid.IntRange(0, 3).Draw(t, "conversations") {
			conversation := &parleyv1.ExportConversationsResponse{}
			fill(t, conversation.ProtoReflect())
			if conversation.GetConversation() == nil {
				conversation.Conversation = &parleyv1.Conversation{}
			}
			conversation.GetConversation().Id = string(rune('a' + n))
			conversation.GetConversation().MessageCount = int32(len(conversation.GetMessages()))
			if rapid.Bool().Draw(t, "counts records") { // Otherwise they have changed during the export.
				conversation.GetConversation().RecordCount = int32(len(conversation.GetRecords()))
			}
			want = append(want, conversation)
		}

		var lines bytes.Buffer
		for _, conversation := range want {
			lines.WriteString(rapid.SampledFrom([]string{"", "\n", " \r\n"}).Draw(t, "blank"))
			if err := writeLine(&lines, conversation); err != nil {
				t.Fatal(err)
			}
		}
		var parts []*parleyv1.ExportConversationsResponse
		for r, err := range readLines(bytes.NewReader(lines.Bytes()), maxLine, parseConversation) {
			if err != nil || r.err != nil {
				t.Fatalf("line %d: %v, %v; want a conversation", r.number, r.err, err)
			}
			sent, err := requests(r.value, true)
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range sent {
				parts = append(parts, &parleyv1.ExportConversationsResponse{
					Conversation: part.GetConversation(), Messages: part.GetMessages(), Records: part.GetRecords(),
				})
			}
		}
		got := collect(t, parts)
		same := func(a, b *parleyv1.ExportConversationsResponse) bool { return proto.Equal(a, b) }
		if !slices.EqualFunc(want, got, same) {
			t.Fatalf("conversations (-want +got):\n%s", cmp.Diff(want, got, protocmp.Transform()))
		}
		var again bytes.Buffer
		for _, conversation := range got {
			if err := writeLine(&again, conversation); err != nil {
				t.Fatal(err)
			}
		}
		var before bytes.Buffer
		for line := range bytes.Lines(lines.Bytes()) {
			if len(bytes.TrimSpace(line)) > 0 {
				before.Write(line)
			}
		}
		if !bytes.Equal(before.Bytes(), again.Bytes()) {
			t.Fatalf("exported lines:\n%s\nafter the import:\n%s", before.Bytes(), again.Bytes())
		}
	})
}

// collect returns the conversations that joinParts joins from parts.
func collect(t rapid.TB, parts []*parleyv1.ExportConversationsResponse) []*parleyv1.ExportConversationsResponse {
	t.Helper()
	var all []*parleyv1.ExportConversationsResponse
	for conversation, err := range joinParts(func() (*parleyv1.ExportConversationsResponse, error) {
		if len(parts) == 0 {
			return nil, io.EOF
		}
		part := parts[0]
		parts = parts[1:]
		return part, nil
	}) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, conversation)
	}
	return all
}

// fill sets random fields of m to random values.
func fill(t *rapid.T, m protoreflect.Message) {
	switch m := m.Interface().(type) {
	case *timestamppb.Timestamp:
		m.Seconds = rapid.Int64Range(-62135596800, 253402300799).Draw(t, "seconds")
		m.Nanos = rapid.Int32Range(0, 999999999).Draw(t, "nanos")
		return
	case *durationpb.Duration:
		m.Seconds = rapid.Int64Range(0, 315576000000).Draw(t, "seconds")
		m.Nanos = rapid.Int32Range(0, 999999999).Draw(t, "nanos")
		return
	case *structpb.Value:
		proto.Merge(m, value(t, 4))
		return
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch n := rapid.IntRange(0, 3).Draw(t, string(f.Name())); {
		case n == 0:
		case f.IsList():
			for list := m.Mutable(f).List(); n > 0; n-- {
				element := list.NewElement()
				fill(t, element.Message()) // All repeated fields contain messages.
				list.Append(element)
			}
		case f.IsMap():
			for entries := m.Mutable(f).Map(); n > 0; n-- {
				entries.Set(scalar(t, f.MapKey()).MapKey(), scalar(t, f.MapValue()))
			}
		case f.Message() != nil:
			fill(t, m.Mutable(f).Message())
		default:
			m.Set(f, scalar(t, f))
		}
	}
}

// scalar draws a value for a field that is not a message.
func scalar(t *rapid.T, f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.EnumKind:
		values := f.Enum().Values()
		return protoreflect.ValueOfEnum(values.Get(rapid.IntRange(0, values.Len()-1).Draw(t, "enum")).Number())
	case protoreflect.StringKind:
		if f.Name() == "content" && rapid.IntRange(0, 19).Draw(t, "long") == 0 {
			return protoreflect.ValueOfString(strings.Repeat("ä\n", rapid.IntRange(1, 300_000).Draw(t, "length")))
		}
		return protoreflect.ValueOfString(rapid.String().Draw(t, "string"))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(rapid.Bool().Draw(t, "bool"))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(rapid.Int32().Draw(t, "int32"))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(rapid.Int64().Draw(t, "int64"))
	default:
		t.Fatalf("%s: fill cannot draw a value of kind %s", f.FullName(), f.Kind())
		return protoreflect.Value{}
	}
}

// value draws a JSON value of at most depth levels.
func value(t *rapid.T, depth int) *structpb.Value {
	kinds := 6
	if depth == 0 {
		kinds = 4
	}
	switch rapid.IntRange(1, kinds).Draw(t, "kind") {
	case 1:
		return structpb.NewNullValue()
	case 2:
		return structpb.NewBoolValue(rapid.Bool().Draw(t, "bool"))
	case 3:
		return structpb.NewNumberValue(rapid.Float64().Draw(t, "number"))
	case 4:
		return structpb.NewStringValue(rapid.String().Draw(t, "string"))
	case 5:
		list := &structpb.ListValue{}
		for range rapid.IntRange(0, 3).Draw(t, "length") {
			list.Values = append(list.Values, value(t, depth-1))
		}
		return structpb.NewListValue(list)
	default:
		fields := map[string]*structpb.Value{}
		for range rapid.IntRange(0, 3).Draw(t, "length") {
			fields[rapid.String().Draw(t, "key")] = value(t, depth-1)
		}
		return structpb.NewStructValue(&structpb.Struct{Fields: fields})
	}
}

func TestRequestsFitTheServer(t *testing.T) {
	conversationOf := func(sizes ...int) *parleyv1.ExportConversationsResponse {
		conversation := &parleyv1.ExportConversationsResponse{Conversation: &parleyv1.Conversation{Id: "a"}}
		for _, size := range sizes {
			conversation.Messages = append(conversation.Messages, &parleyv1.Message{Content: strings.Repeat("x", size)})
		}
		return conversation
	}
	huge := conversationOf(1)
	huge.GetConversation().SystemPrompt = strings.Repeat("x", 4<<20)
	tests := []struct {
		name         string
		conversation *parleyv1.ExportConversationsResponse
		want         []int // The number of messages in each request.
	}{
		{"no messages", conversationOf(), []int{0}},
		{"small messages", conversationOf(1, 1, 1), []int{3}},
		{"too large together", conversationOf(600<<10, 600<<10, 1, 1), []int{1, 3}},
		{"a large last message", conversationOf(1, 1<<20), []int{1, 1}},
		{"a message larger than a part, smaller than a request", conversationOf(1, 3<<20, 1), []int{1, 1, 1}},
		{"a message larger than a request", conversationOf(1, 4<<20), nil},
		{"a header larger than a request", huge, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			parts, err := requests(test.conversation, true)
			var got []int
			for _, part := range parts {
				got = append(got, len(part.GetMessages()))
				if n := proto.Size(part); n > 4<<20 || part.GetConversation().GetId() != "a" || !part.GetOverwrite() {
					t.Errorf("request of %d bytes, conversation %v; want at most 4 MiB, conversation a, overwrite", n,
						part.GetConversation())
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" || (err == nil) != (test.want != nil) {
				t.Errorf("messages (-want +got):\n%s%v", diff, err)
			}
		})
	}
}

func TestBadLines(t *testing.T) {
	tests := map[string]string{
		`nonsense`:                       `syntax error (column 1): invalid value nonsense`,
		`{"conversation":{"id":"a"}`:     `unexpected EOF`,
		`{"conversation":{"id":"a"}} {}`: `syntax error (column 29): unexpected token {`,
		`[{"conversation":{"id":"a"}}]`:  `syntax error (column 1): unexpected token [`,
		`null`:                           `syntax error (column 1): unexpected token null`,
		`{}`:                             `the conversation needs an id of 1 to 256 bytes`,
		`{"conversation":{"title":"a"}}`: `the conversation needs an id of 1 to 256 bytes`,
		`{"conversation":{"id":"` + strings.Repeat("x", 257) + `"}}`:                `the conversation needs an id of 1 to 256 bytes`,
		`{"messages":[{"role":"ROLE_USER"}]}`:                                       `the conversation needs an id of 1 to 256 bytes`,
		`{"conversation":{"id":"a","colour":"blue"}}`:                               `(column 27): unknown field "colour"`,
		`{"conversation":{"id":"a"},"messages":[{"role":"ROBOT"}]}`:                 `(column 48): invalid value for enum field role: "ROBOT"`,
		`{"conversation":{"id":"` + strings.Repeat("x", 1000) + `","id":"a"}}`:      `(column 1026): duplicate field "id"`,
		`{"conversation":{"version":"` + strings.Repeat("x", 1000) + `"}}`:          `(column 28): invalid value for int32 field version: "` + strings.Repeat("x", 146) + "…",
		`{"conversation":{"id":"a"},"messages":[{"content":"` + "\xff" + `"}]}`:     `syntax error (column 51): invalid UTF-8 in string`,
		`{"messages":[{"structuredData":[{"value":` + strings.Repeat("[", 1000):     `exceeded max recursion depth`,
		`{"messages":[{"structuredData":[{"value":` + strings.Repeat(`{"a":`, 1000): `exceeded max recursion depth`,
	}
	for line, want := range tests {
		input := "\n" + line + "\r\n \n" + `{"conversation":{"id":"b"}}`
		var got []inputLine[*parleyv1.ExportConversationsResponse]
		for r, err := range readLines(strings.NewReader(input), maxLine, parseConversation) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, r)
		}
		if len(got) != 2 || got[0].err == nil || got[0].err.Error() != want || got[0].number != 2 ||
			got[0].size != int64(len(line)+2) {
			t.Errorf("%.60s: line %d, %d bytes, %v; want line 2, %s", line, got[0].number, got[0].size, got[0].err, want)
		}
		if len(got) != 2 || got[1].value.GetConversation().GetId() != "b" || got[1].number != 4 || got[1].size != 27 {
			t.Errorf("%.60s: second line = %+v, want conversation b in line 4", line, got[1])
		}
	}
}

// TestParseAcceptsDeepData checks that parse accepts data with 16 levels, the server's limit.
func TestParseAcceptsDeepData(t *testing.T) {
	for _, level := range []string{`[]`, `{"a":}`} {
		opening, closing := level[:len(level)-1], level[len(level)-1:]
		line := `{"conversation":{"id":"a"},"messages":[{"structuredData":[{"value":` +
			strings.Repeat(opening, 16) + "1" + strings.Repeat(closing, 16) + `}]}]}`
		if conversation, err := parseConversation([]byte(line)); err != nil || len(conversation.GetMessages()) != 1 {
			t.Errorf("%s: %v, %v", line, conversation, err)
		}
	}
}

func TestLongLines(t *testing.T) {
	const maxBytes = 100
	lineOf := func(n int) string { return `{"conversation":{"id":"` + strings.Repeat("x", n-27) + `"}}` + "\n" }
	for _, n := range []int{maxBytes - 1, maxBytes, maxBytes + 1, 100_000, 200_000} { // The reader has a buffer of 64 KiB.
		got := ""
		for r, err := range readLines(strings.NewReader(lineOf(n)+lineOf(50)), maxBytes, parseConversation) {
			got += fmt.Sprint(r.number, " ", r.size, " ", r.err, " ", err, "\n")
		}
		want := fmt.Sprintf("1 %d <nil> <nil>\n2 50 <nil> <nil>\n", n)
		if n > maxBytes {
			want = fmt.Sprintf("1 %d longer than 100 B <nil>\n2 50 <nil> <nil>\n", n)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d bytes (-want +got):\n%s", n, diff)
		}
	}
}

func TestReadErrorEndsTheLines(t *testing.T) {
	broken := errors.New("broken")
	input := io.MultiReader(strings.NewReader(`{"conversation":{"id":"a"}}`+"\n"+`{"conversation":{"id":"b"}}`),
		iotest.ErrReader(broken))
	var got []string
	for r, err := range readLines(input, maxLine, parseConversation) {
		if err != nil {
			got = append(got, err.Error())
		} else {
			got = append(got, r.value.GetConversation().GetId())
		}
	}
	if diff := cmp.Diff([]string{"a", "line 2: broken"}, got); diff != "" {
		t.Errorf("ids and errors (-want +got):\n%s", diff)
	}
}
