package gateway

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// lineBreaks contains every character that might end a line or the data of an event.
const lineBreaks = "a\nb\rc\r\nd\u2028e\u2029f\x85g\u0085h\v\f\x00\ndata: x\n\nid: 7"

func textEvent(index int32, text string) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{
		Index: index, Event: &parleyv1.TurnEvent_TextDelta{TextDelta: &parleyv1.TextDelta{Text: text}},
	}
}

// TestMarshalReply: a reply is one line, or the data of one event, whatever it contains.
func TestMarshalReply(t *testing.T) {
	text := strings.ToValidUTF8(lineBreaks, "")
	reply := &parleyv1.ChatResponse{Event: textEvent(3, text)}
	for _, c := range []struct {
		name           string
		events         bool
		value          any
		prefix, suffix string
	}{
		{"line", false, map[string]any{"result": reply}, "", ""},
		{"line of a reply with an id", false, map[string]any{"result": replyWithID{reply, "3"}}, "", ""},
		{"event", true, map[string]any{"result": replyWithID{reply, "3"}}, "id: 3\ndata: ", "\n"},
		{"event without an id", true, map[string]any{"result": reply}, "data: ", "\n"},
		{"message", false, reply, "", "\n"},
		{"message for a client that accepts events", true, reply, "", "\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := (&marshaler{events: c.events}).Marshal(c.value)
			if err != nil {
				t.Fatal(err)
			}
			body, ok := strings.CutPrefix(string(got), c.prefix)
			body, ok2 := strings.CutSuffix(body, c.suffix)
			if !ok || !ok2 || strings.ContainsAny(body, "\r\n") {
				t.Fatalf("Marshal = %q, want one line between %q and %q", got, c.prefix, c.suffix)
			}
			back := new(parleyv1.ChatResponse)
			if err := protojson.Unmarshal([]byte(body), back); err != nil || !proto.Equal(back, reply) {
				t.Errorf("Unmarshal: %v (-want +got):\n%s", err, cmp.Diff(reply, back, protocmp.Transform()))
			}
		})
	}
}

func TestMarshalError(t *testing.T) {
	failed := map[string]proto.Message{"error": status.New(codes.NotFound, "gone\nfor good").Proto()}
	line, err := new(marshaler).Marshal(failed)
	var got struct {
		Error struct {
			Code    int
			Message string
		}
	}
	if err == nil {
		err = json.Unmarshal(line, &got)
	}
	if err != nil || got.Error.Code != 5 || got.Error.Message != "gone\nfor good" || strings.Contains(string(line), "\n") {
		t.Errorf("Marshal = %q, %v, want one line", line, err)
	}
	event, err := (&marshaler{events: true}).Marshal(failed)
	data, ok := strings.CutPrefix(string(event), "event: error\ndata: {")
	if err != nil || !ok || strings.Count(data, "\n") != 1 || !strings.HasSuffix(data, "}\n") {
		t.Errorf("Marshal = %q, %v, want one event", event, err)
	}
}

func TestDecode(t *testing.T) {
	want := &parleyv1.Conversation{Id: "c", SystemPrompt: "p"}
	for _, c := range []struct {
		name, text string
		ok         bool
	}{
		{"camelCase", `{"id":"c","systemPrompt":"p"}`, true},
		{"snake_case over lines", "\n{\"id\":\"c\",\r\n \"system_prompt\": \"p\"}\n", true},
		{"second value", `{"id":"c","systemPrompt":"p"} {}`, false},
		{"text after the value", `{"id":"c","systemPrompt":"p"}x`, false},
		{"unknown", `{"id":"c","systemprompt":"p"}`, false},
		{"cut off", `{"id":"c","systemPrompt":"p"`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, from := range []io.Reader{strings.NewReader(c.text), newBody([]byte(c.text))} {
				message, request := new(parleyv1.Conversation), new(parleyv1.UpdateConversationRequest)
				if err := new(marshaler).NewDecoder(from).Decode(message); (err == nil) != c.ok ||
					c.ok && !proto.Equal(message, want) {
					t.Errorf("Decode = %v, %v, want success: %t", message, err, c.ok)
				}
				if err := new(marshaler).Unmarshal([]byte(c.text), &request.Conversation); (err == nil) != c.ok ||
					c.ok && !proto.Equal(request.GetConversation(), want) {
					t.Errorf("Unmarshal = %v, %v, want success: %t", request, err, c.ok)
				}
			}
		})
	}
	for _, blank := range []string{"", " \r\n\t"} {
		if err := new(marshaler).NewDecoder(strings.NewReader(blank)).Decode(new(parleyv1.ChatRequest)); !errors.Is(err,
			io.EOF) {
			t.Errorf("Decode(%q) = %v, want io.EOF", blank, err)
		}
	}
	if err := new(marshaler).Unmarshal([]byte("1"), new(int)); err == nil {
		t.Error("Unmarshal of a number into an int succeeded, want an error")
	}
}
