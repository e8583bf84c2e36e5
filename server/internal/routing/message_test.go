package routing

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// frame returns an encoded message in the form that a store returns.
func frame(body []byte) store.Frame {
	return store.AppendFrame(nil, body)
}

// FuzzRead checks that message.read returns the same fields as decoding the message.
func FuzzRead(f *testing.F) {
	full := assistant("finder", "content", data("list", "1"), data("price", "2"))
	full.Summary, full.ToolCalls = "found", []*parleyv1.ToolCall{{Id: "1", Name: "search"}, {Id: "2"}}
	var bodies []byte
	for _, m := range history(full, user("?"), result("1"), calls("3"), system(), &parleyv1.Message{}) {
		body, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
		bodies = append(bodies, body...)
		f.Add(bodies)                                     // repeated singular fields
		f.Add(append(body, 0x10, 0x05))                   // another sequence
		f.Add(append(body, 0x12, 0x00))                   // field 2 with another wire type
		f.Add(append(body, 0x3a, 0x02, 0x18, 0x01))       // a tool result without call_id
		f.Add(append(body, 0x7a, 0x02, 0x10, 0x07))       // create_time with nanos only
		f.Add(append(body, 0x13, 0x10, 0x09, 0x14, 0x10)) // a group, then a truncated field
	}
	f.Add([]byte{0x7a, 0x00, 0x7a, 0x00}) // an empty create_time, twice
	f.Fuzz(func(t *testing.T, body []byte) {
		got := message{Fields: store.Fields{StructuredData: make([]store.Nested, 1), ToolCalls: make([]store.Nested, 1)}}
		err := got.read(frame(body))
		want := new(parleyv1.Message)
		if proto.Unmarshal(body, want) != nil {
			return
		}
		if err != nil {
			t.Fatalf("read() = %v, want no error for a message that decodes", err)
		}
		rebuilt := &parleyv1.Message{
			Sequence: got.Sequence, Role: got.Role, Agent: string(got.Agent), Summary: string(got.Summary),
			Content: string(got.Content),
		}
		for _, p := range got.StructuredData {
			value := new(parleyv1.StructuredData)
			if err := decode(p.Encoded, value); err != nil || value.GetType() != string(p.Name) {
				t.Fatalf("data with name %q decodes to %v, %v", p.Name, value, err)
			}
			rebuilt.StructuredData = append(rebuilt.StructuredData, value)
		}
		for _, p := range got.ToolCalls {
			call := new(parleyv1.ToolCall)
			if err := decode(p.Encoded, call); err != nil || call.GetId() != string(p.Name) {
				t.Fatalf("call with name %q decodes to %v, %v", p.Name, call, err)
			}
			rebuilt.ToolCalls = append(rebuilt.ToolCalls, call)
		}
		if got.CreateTime != nil {
			at, err := got.Time()
			if err != nil {
				t.Fatal(err)
			}
			rebuilt.CreateTime = timestamppb.New(at)
		}
		if id := want.GetToolResult().GetCallId(); id != string(got.resultCallID) {
			t.Errorf("resultCallID = %q, want %q", got.resultCallID, id)
		}
		want = &parleyv1.Message{
			Sequence: want.Sequence, Role: want.Role, Agent: want.Agent, Summary: want.Summary, Content: want.Content,
			StructuredData: want.StructuredData, ToolCalls: want.ToolCalls, CreateTime: want.CreateTime,
		}
		if at := want.CreateTime; at != nil {
			want.CreateTime = timestamppb.New(at.AsTime()) // read normalizes the time.
		}
		if d := diff(want, rebuilt); d != "" {
			t.Errorf("message (-decoded +read):\n%s", d)
		}
	})
}

func TestSummarizeCorrupt(t *testing.T) {
	good := encode(t, history(user("?"), assistant("a", "!")))
	tests := []struct {
		name     string
		messages store.Frames
	}{
		{"truncated frame", good[:len(good)-1]},
		{"another field between frames", append(append([]byte{0x1a, 0x00}, good...), good...)},
		{"invalid message", append(good, frame([]byte{0xff})...)},
		{"truncated field", append(good, frame([]byte{0x22, 0x05, 'x'})...)},
		{"invalid structured data", append(good, frame([]byte{0x2a, 0x01, 0xff})...)},
		{"invalid tool call", append(good, frame([]byte{0x32, 0x01, 0xff})...)},
		{"tool call with a truncated name", append(good, frame([]byte{0x32, 0x05, 0x0a, 0x01, '1', 0x12, 0x05})...)},
		{"invalid tool result", append(good, frame([]byte{0x3a, 0x01, 0xff})...)},
		{"invalid create_time", append(good, frame([]byte{0x18, 0x02, 0x42, 0x01, 'a', 0x7a, 0x01, 0xff})...)},
		{"invalid value over the budget", append(good, frame([]byte{0x2a, 0x04, 0x0a, 0x00, 0x12, 0x09})...)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for _, o := range []Options{{}, {MessageLimit: 1, MaxBytes: 1}} {
				if s, err := Summarize(nil, test.messages, o); !errors.Is(err, store.ErrCorrupt) {
					t.Errorf("Summarize(%+v) = %v, %v, want ErrCorrupt", o, s, err)
				}
			}
		})
	}
}
