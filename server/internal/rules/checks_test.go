package rules

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	rulesv1 "github.com/parleyhq/parley/gen/parley/rules/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules/checks"
	"github.com/parleyhq/parley/server/internal/rules/ids"
)

// commonRequests returns requests as clients send them, at least one of each type that has a generated check.
func commonRequests() []proto.Message {
	const id, request = "0b8f21e0-6f0e-4a51-8d5b-6a1f0d0c4f7e", "a request"
	limit, known := int32(20), int32(7)
	user := &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: "hello", Id: id, Agent: "a", Summary: "s"}
	data := []*parleyv1.StructuredData{{Type: "t", Value: structpb.NewStringValue("v")}}
	files := []*parleyv1.Attachment{{Uri: "https://example.com/a", MediaType: "text/plain", SizeBytes: 3}}
	with := &parleyv1.Conversation{
		Id: id, Title: "t", Labels: map[string]string{"k": "v"}, Retention: &parleyv1.Retention{MaxMessages: 9, KeepAll: true},
	}
	revision := int64(7)
	writes := []*parleyv1.RecordWrite{
		{Key: "state/1", Value: []byte("{}"), MediaType: "t", IfRevision: &revision, Labels: map[string]string{"k": "v"}},
		{Key: "state/2", Delete: true, TenantScope: true},
	}
	return []proto.Message{
		&parleyv1.AppendMessagesRequest{ConversationId: id, Messages: []*parleyv1.Message{user}},
		&parleyv1.AppendMessagesRequest{
			ConversationId: "team:42", RequestId: id, IfVersion: &known, Messages: []*parleyv1.Message{
				user,
				{
					Role: parleyv1.Role_ROLE_ASSISTANT, ToolCalls: []*parleyv1.ToolCall{{Id: "1", Name: "find"}}, StructuredData: data,
					Usage: &parleyv1.Usage{Model: "m", InputTokens: 5}, Attachments: files, FinishReason: "stop",
					Native: &parleyv1.Native{Type: "form", Value: []byte("v")}, Reasoning: "why",
				},
				{Role: parleyv1.Role_ROLE_TOOL, ToolResult: &parleyv1.ToolResult{CallId: "1"}, Metadata: map[string]string{"k": "v"}},
			},
		},
		&parleyv1.AppendMessagesRequest{ConversationId: id, ReplaceAfterSequence: &known, Messages: []*parleyv1.Message{user}},
		&parleyv1.AppendMessagesRequest{ConversationId: id, ReplaceAfterSequence: &known},
		&parleyv1.ChatRequest{Content: "hello"},
		&parleyv1.ChatRequest{
			ConversationId: id, Content: "hello", RequestId: strings.ReplaceAll(request, " ", "-"), Agent: "a",
			OnBusy: parleyv1.OnBusy_ON_BUSY_QUEUE, Window: &parleyv1.ContextWindow{MaxMessages: 9}, StructuredData: data,
			Attachments: files, SystemPrompt: new("p"), Metadata: map[string]string{"k": "v"}, IfVersion: &known,
		},
		&parleyv1.ChatRequest{ConversationId: id, AnswerPending: true},
		&parleyv1.GetContextRequest{ConversationId: id, Window: &parleyv1.ContextWindow{MaxBytes: 9}},
		&parleyv1.GetConversationRequest{ConversationId: id},
		&parleyv1.GetRoutingSummaryRequest{ConversationId: id, MessageLimit: &limit, KnownVersion: &known, KnownUid: id},
		&parleyv1.ListMessagesRequest{ConversationId: id, PageSize: 100, AfterSequence: 3},
		&parleyv1.LoadConversationRequest{MessageLimit: &limit},
		&parleyv1.LoadConversationRequest{ConversationId: id},
		&parleyv1.LoadConversationRequest{ConversationId: id, CreateWith: with},
		&parleyv1.AppendMessagesRequest{ConversationId: id, Messages: []*parleyv1.Message{user}, CreateWith: with},
		&parleyv1.ChatRequest{Content: "hello", CreateWith: &parleyv1.Conversation{Title: "t"}},
		&parleyv1.AppendMessagesRequest{ConversationId: id, Messages: []*parleyv1.Message{user}, Records: writes},
		&parleyv1.ChatRequest{Content: "hello", Records: writes},
		&parleyv1.GetContextRequest{ConversationId: id, RecordPrefixes: []string{"state/", ""}},
		&parleyv1.LoadConversationRequest{ConversationId: id, RecordPrefixes: []string{""}},
		&parleyv1.WriteRecordsRequest{ConversationId: id, Writes: writes, RequestId: id, IfVersion: &known},
		&parleyv1.WriteRecordsRequest{Writes: writes},
		&parleyv1.GetRecordsRequest{ConversationId: id, Keys: []string{"state/1", "é"}},
		&parleyv1.ListRecordsRequest{ConversationId: id, Prefix: "state/", PageSize: 100, AfterKey: "state/1"},
	}
}

// TestCommonRequests checks that common requests need no protovalidate.
func TestCommonRequests(t *testing.T) {
	t.Parallel()
	for _, m := range commonRequests() {
		if broken, err := violations(m); err != nil || len(broken) > 0 || !checks.Valid(m) {
			t.Errorf("Valid(%T %v) = false, want true; protovalidate: %v, %v", m, m, broken, err)
		}
	}
}

// agree compares the generated check of a request with protovalidate. It returns a description of a difference, and
// whether the request is valid.
func agree(m proto.Message) (difference string, valid bool) {
	broken, err := violations(m)
	if err != nil {
		return err.Error(), false
	}
	var other checker
	other.checkDurations("", m.ProtoReflect())
	valid = len(broken) == 0 && len(other.faults) == 0
	summary, _ := m.(*parleyv1.GetRoutingSummaryRequest)
	chat, _ := m.(*parleyv1.ChatRequest)
	creating, _ := m.(interface{ GetCreateWith() *parleyv1.Conversation })
	expires := func(w *parleyv1.RecordWrite) bool { return w.GetTtl() != nil }
	with, _ := m.(interface {
		GetRecords() []*parleyv1.RecordWrite
	})
	write, _ := m.(*parleyv1.WriteRecordsRequest)
	undecided := summary.GetWaitTimeout() != nil || len(chat.GetToolResults()) > 0 ||
		with != nil && slices.ContainsFunc(with.GetRecords(), expires) || slices.ContainsFunc(write.GetWrites(), expires) ||
		creating != nil && creating.GetCreateWith().GetRetention().GetTtl() != nil
	if got := checks.Valid(m); got && !valid || !got && valid && !undecided {
		return fmt.Sprintf("Valid(%T %.300v) = %t, want %t: %v", m, m, got, valid, broken), valid
	}
	return "", valid
}

// TestChecksAgree sets each field of the common requests to each value around the bounds of its rules, and expects
// the generated checks to agree with protovalidate.
func TestChecksAgree(t *testing.T) {
	t.Parallel()
	for _, request := range commonRequests() {
		changed := 0
		changeEach(request.ProtoReflect(), func() {
			changed++
			if difference, _ := agree(request); difference != "" {
				t.Error(difference)
			}
		})
		if changed == 0 {
			t.Errorf("no change of %T", request)
		}
	}
}

// TestChecksAgreeOnAny does the same as TestChecksAgree with several random changes of a request.
func TestChecksAgreeOnAny(t *testing.T) {
	t.Parallel()
	accepted, refused := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		request := proto.Clone(rapid.SampledFrom(commonRequests()).Draw(rt, "request"))
		for range rapid.IntRange(0, 4).Draw(rt, "changes") {
			left := rapid.IntRange(1, 200).Draw(rt, "change")
			var changed proto.Message
			changeEach(request.ProtoReflect(), func() {
				left--
				if left == 0 || changed == nil {
					changed = proto.Clone(request)
				}
			})
			request = changed
		}
		difference, valid := agree(request)
		if difference != "" {
			rt.Error(difference)
		}
		if valid {
			accepted++
		} else {
			refused++
		}
	})
	// The few requests of a short run may all be of one kind.
	if !testing.Short() && min(accepted, refused) == 0 {
		t.Errorf("%d requests were valid, %d were not: want some of both", accepted, refused)
	}
}

// changeEach calls changed for each value of each field of m and of the messages in it. Afterwards, the field has its
// previous value.
func changeEach(m protoreflect.Message, changed func()) {
	for i := range m.Descriptor().Fields().Len() {
		field := m.Descriptor().Fields().Get(i)
		before := proto.Clone(m.Interface())
		for _, value := range valuesOf(m, field) {
			m.Clear(field)
			if value.IsValid() {
				m.Set(field, value)
			}
			changed()
		}
		proto.Reset(m.Interface())
		proto.Merge(m.Interface(), before)
		switch {
		case !m.Has(field) || field.IsMap() || field.Message() == nil:
		case field.IsList():
			for i := range m.Get(field).List().Len() {
				changeEach(m.Get(field).List().Get(i).Message(), changed)
			}
		case strings.HasPrefix(string(field.Message().FullName()), "parley."):
			changeEach(m.Get(field).Message(), changed)
		}
	}
}

// valuesOf returns values around the bounds of a field's rules. The zero Value means that the field is not set.
func valuesOf(m protoreflect.Message, field protoreflect.FieldDescriptor) []protoreflect.Value {
	all := []protoreflect.Value{{}}
	sizes, characters := []int{0, 1}, rune(0)
	if rules, ok := proto.GetExtension(field.Options(), validate.E_Field).(*validate.FieldRules); ok {
		addBounds(rules.ProtoReflect(), &sizes)
		if text := rules.GetString(); isID(text) {
			characters = 300 // ASCII and some others.
			all = append(all, idsAround()...)
		}
	}
	for c := range characters { // Each one at the beginning and inside.
		all = append(all, protoreflect.ValueOfString(string(c)), protoreflect.ValueOfString("x"+string(c)+"x"))
	}
	for _, n := range sizes {
		switch {
		case field.IsMap():
			for _, size := range []struct{ pairs, key, value int }{{n, 3, 1}, {1, n, 1}, {1, 1, n}} {
				pairs := m.NewField(field).Map()
				for i := range size.pairs {
					key := fmt.Sprintf("%0*d", size.key, i)
					pairs.Set(protoreflect.ValueOfString(key[len(key)-size.key:]).MapKey(),
						protoreflect.ValueOfString(strings.Repeat("v", size.value)))
				}
				if pairs.Len() > 0 {
					all = append(all, protoreflect.ValueOfMap(pairs))
				}
			}
		case field.IsList():
			list, element := m.NewField(field).List(), m.NewField(field).List().NewElement()
			if m.Get(field).List().Len() > 0 {
				element = m.Get(field).List().Get(0)
			}
			for range n {
				list.Append(element)
			}
			all = append(all, protoreflect.ValueOfList(list))
		case field.Message() != nil && field.Message().FullName() == "google.protobuf.Duration":
			for nanos := range int32(3) {
				d := &durationpb.Duration{Seconds: int64(n), Nanos: nanos - 1}
				all = append(all, protoreflect.ValueOfMessage(d.ProtoReflect()))
			}
		case field.Message() != nil:
			all = append(all, m.NewField(field))
		default:
			all = append(all, scalarsOf(field.Kind(), n)...)
		}
	}
	return all
}

// isID reports whether rules has a rule of parley.rules.v1.
func isID(rules *validate.StringRules) bool {
	return proto.HasExtension(rules, rulesv1.E_ConversationId) || proto.HasExtension(rules, rulesv1.E_RequestId)
}

// idsAround returns ids around the bounds of the rules of ids.
func idsAround() (all []protoreflect.Value) {
	texts := []string{"..", "...", "a..", "a\u2028", "a\u2029b", "\u3000a", "a\u3000", "a\u3000b", "\u200d", "\ufeff", "\ufffd", "👩"}
	for size := ids.MaxBytes - 2; size < ids.MaxBytes+3; size++ {
		texts = append(texts, strings.Repeat("x", size), strings.Repeat("ü", size/2)+strings.Repeat("x", size%2))
	}
	for _, text := range texts {
		all = append(all, protoreflect.ValueOfString(text))
	}
	return all
}

// addBounds adds the numbers in rules, and those next to them.
func addBounds(rules protoreflect.Message, sizes *[]int) {
	around := func(n int) { *sizes = append(*sizes, n-1, n, n+1) }
	rules.Range(func(_ protoreflect.FieldDescriptor, bound protoreflect.Value) bool {
		switch n := bound.Interface().(type) {
		case protoreflect.Message:
			addBounds(n, sizes)
		case int32:
			around(int(n))
		case int64:
			around(int(n))
		case uint64:
			around(int(n))
		}
		return true
	})
	*sizes = slices.DeleteFunc(*sizes, func(n int) bool { return n < 0 })
}

// scalarsOf returns values of this size.
func scalarsOf(kind protoreflect.Kind, n int) (all []protoreflect.Value) {
	switch kind {
	case protoreflect.BoolKind:
		return []protoreflect.Value{protoreflect.ValueOfBool(n > 0)}
	case protoreflect.EnumKind:
		for number := range protoreflect.EnumNumber(8) {
			all = append(all, protoreflect.ValueOfEnum(number-1))
		}
		return all
	case protoreflect.Int64Kind:
		return []protoreflect.Value{protoreflect.ValueOfInt64(int64(n)), protoreflect.ValueOfInt64(-1)}
	case protoreflect.Int32Kind:
		return []protoreflect.Value{protoreflect.ValueOfInt32(int32(n)), protoreflect.ValueOfInt32(-1)}
	case protoreflect.BytesKind:
		return []protoreflect.Value{protoreflect.ValueOfBytes([]byte(strings.Repeat("\xff", max(0, n))))}
	}
	return append(all, protoreflect.ValueOfString(strings.Repeat("x", n)))
}
