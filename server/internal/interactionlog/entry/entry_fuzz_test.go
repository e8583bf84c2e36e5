package entry

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/interactionlog/entrytest"
	"github.com/parleyhq/parley/store"
)

// modelInteraction returns the interaction of a message without the encoder and the parser.
func modelInteraction(m *parleyv1.Message, id string) *parleyv1.Interaction {
	i := &parleyv1.Interaction{
		Timestamp: timestamppb.New(m.GetCreateTime().AsTime().Truncate(time.Microsecond)), ConversationId: id,
		Agent: m.GetAgent(), Role: m.GetRole(), Content: m.GetContent(),
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{}},
	}
	if i.Content == "" {
		i.Content = m.GetToolResult().GetContent()
	}
	switch name := m.GetMetadata()["user"]; {
	case m.GetRole() == parleyv1.Role_ROLE_USER && name != "":
		i.Agent = name
	case m.GetRole() == parleyv1.Role_ROLE_USER:
		i.Agent = "User"
	case m.GetRole() == parleyv1.Role_ROLE_TOOL && i.Agent == "":
		i.Agent = m.GetToolResult().GetName()
	}
	fields := i.GetMetadata().GetFields()
	for k, v := range m.GetMetadata() {
		fields[k] = structpb.NewStringValue(v)
	}
	text := func(key, value string) {
		if value != "" {
			fields[key] = structpb.NewStringValue(value)
		}
	}
	text("model", m.GetUsage().GetModel())
	text("turn_id", m.GetTurnId())
	text("status", map[parleyv1.MessageStatus]string{1: "complete", 2: "incomplete"}[m.GetStatus()])
	fields["turn_number"] = structpb.NewNumberValue(float64(m.GetSequence()))
	if m.GetExchange() != 0 {
		fields["exchange"] = structpb.NewNumberValue(float64(m.GetExchange()))
	}
	u, tokens := m.GetUsage(), map[string]*structpb.Value{}
	for i, n := range []int32{u.GetInputTokens(), u.GetOutputTokens(), u.GetCachedInputTokens(), u.GetReasoningTokens()} {
		if n != 0 {
			tokens[tokenNames()[i]] = structpb.NewNumberValue(float64(n))
		}
	}
	if len(tokens) > 0 {
		fields["tokens"] = structpb.NewStructValue(&structpb.Struct{Fields: tokens})
	}
	var types []*structpb.Value
	known := map[string]bool{"": true}
	for _, d := range m.GetStructuredData() {
		if !known[d.GetType()] {
			known[d.GetType()] = true
			types = append(types, structpb.NewStringValue(d.GetType()))
		}
	}
	if types != nil {
		fields["structured_data_types"] = structpb.NewListValue(&structpb.ListValue{Values: types})
	}
	if n := m.GetNative(); n.GetType() != "" {
		fields["native"] = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			"type": structpb.NewStringValue(n.GetType()), "bytes": structpb.NewNumberValue(float64(len(n.GetValue()))),
		}})
	}
	return i
}

// FuzzEncode checks that the encoder agrees with the generated code about messages and with
// encoding/json about entries.
func FuzzEncode(f *testing.F) {
	for _, m := range []*parleyv1.Message{
		{},
		{
			Sequence: 3, Exchange: 2, Role: parleyv1.Role_ROLE_USER, Content: "a \"b\"\n\\\x01\u2028é😀",
			Metadata: map[string]string{"user": "Ann", "k": "v"},
		},
		{
			Role: parleyv1.Role_ROLE_ASSISTANT, Agent: "a", TurnId: "t", Status: 2,
			Usage:          &parleyv1.Usage{Model: "m", InputTokens: 1, OutputTokens: 7, ReasoningTokens: -1},
			StructuredData: []*parleyv1.StructuredData{{Type: "x"}, {Type: "y"}, {Type: "x"}},
			CreateTime:     timestamppb.New(entrytest.Noon()),
			Native:         &parleyv1.Native{Type: "é", Value: []byte("\xff")}, Reasoning: "r",
		},
		{Role: parleyv1.Role_ROLE_TOOL, ToolResult: &parleyv1.ToolResult{Name: "n", Content: "c"}},
	} {
		body, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body, "c1")
		// The store appends its own values, and the last value of a field wins.
		suffix, err := proto.Marshal(&parleyv1.Message{
			Sequence: 9, Status: 1, Exchange: 4, CreateTime: timestamppb.New(entrytest.Noon()),
			Usage:      &parleyv1.Usage{OutputTokens: 2},
			ToolResult: &parleyv1.ToolResult{Content: "d"}, Metadata: map[string]string{"user": "Bob"},
		})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(body, suffix...), "\"\n\\")
		f.Add(append(body, 0x13, 0x10, 0x09, 0x14, 0x25, 1, 2, 3, 4), "c") // a group and a fixed-size number
	}
	f.Fuzz(func(t *testing.T, body []byte, id string) {
		c := &store.Change{Tenant: "acme", ConversationID: id, Message: entrytest.Framed(body), Time: entrytest.Noon()}
		line, at, err := new(Encoder).Append(nil, c)
		var m parleyv1.Message
		if invalid := proto.Unmarshal(body, &m); invalid != nil {
			if err == nil && (!utf8.Valid(line) || !json.Valid(line)) {
				t.Errorf("invalid message %x has the entry %q", body, line)
			}
			return
		}
		if err != nil {
			t.Fatalf("%x: %v", body, err)
		}
		if bytes.IndexByte(line, '\n') != len(line)-1 || !utf8.Valid(line) || !json.Valid(line) {
			t.Fatalf("entry is not one line of JSON: %q", line)
		}
		if year := m.GetCreateTime().AsTime().Year(); year < 1 || year > 9999 {
			m.CreateTime = timestamppb.New(entrytest.Noon())
		}
		if !at.Equal(m.GetCreateTime().AsTime()) {
			t.Errorf("time of %x = %v, want %v", body, at, m.GetCreateTime().AsTime())
		}
		if m.GetRole() < 1 || m.GetRole() > 4 {
			return
		}
		got, err := Parse(line)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		want := modelInteraction(&m, strings.ToValidUTF8(id, "\ufffd"))
		if got.Tenant != "acme" || !proto.Equal(got.Interaction, want) {
			t.Errorf("Parse(%q) =\n%v, want\n%v", line, got.Interaction, want)
		}
	})
}

// FuzzParse parses any line and checks that a parsed entry can be sent.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		`{"timestamp":"2026-11-20T12:00:00.123456Z","session_id":"c1","tenant":"acme","agent":"",` +
			`"role":"user","content":"","metadata":{"a":[{}]}}`,
		`{"timestamp":"2026-11-20T12:00:00.123456Z","session_id":"c1","tenant":"acme","agent":"",` +
			`"role":"user","content":"\ud800","metadata":null}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := Parse(text)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("Parse(%q): %v, want ErrInvalid", text, err)
			}
			return
		}
		if _, err := proto.Marshal(l.Interaction); err != nil {
			t.Errorf("Parse(%q) cannot be sent: %v", text, err)
		}
		if !l.Interaction.GetTimestamp().IsValid() {
			t.Errorf("Parse(%q) has the time %v", text, l.Interaction.GetTimestamp())
		}
	})
}
