package routing

import (
	"errors"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// frame is an encoded message as a store returns it.
func frame(body []byte) store.Frame {
	return protowire.AppendBytes(protowire.AppendTag(nil, store.FrameField, protowire.BytesType), body)
}

// FuzzRead: what is read without decoding is what decoding gives.
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
		f.Add(bodies)                                     // everything twice
		f.Add(append(body, 0x10, 0x05))                   // another sequence
		f.Add(append(body, 0x12, 0x00))                   // another kind of field 2
		f.Add(append(body, 0x3a, 0x02, 0x18, 0x01))       // a result without the call's id
		f.Add(append(body, 0x7a, 0x02, 0x10, 0x07))       // the nanoseconds of create_time alone
		f.Add(append(body, 0x13, 0x10, 0x09, 0x14, 0x10)) // a group, then cut off
	}
	f.Add([]byte{0x7a, 0x00, 0x7a, 0x00}) // an empty time, twice
	f.Fuzz(func(t *testing.T, body []byte) {
		got := message{data: make([]part, 1), calls: make([]part, 1)}
		err := got.read(frame(body))
		want := new(parleyv1.Message)
		if proto.Unmarshal(body, want) != nil {
			return
		}
		if err != nil {
			t.Fatalf("read: %v", err)
		}
		again := &parleyv1.Message{
			Sequence: got.sequence, Role: got.role, Agent: string(got.agent), Summary: string(got.summary), Content: string(got.content),
		}
		for _, p := range got.data {
			value := new(parleyv1.StructuredData)
			if err := decode(p.encoded, value); err != nil || value.GetType() != string(p.name) {
				t.Fatalf("data %q: %v, %v", p.name, value, err)
			}
			again.StructuredData = append(again.StructuredData, value)
		}
		for _, p := range got.calls {
			call := new(parleyv1.ToolCall)
			if err := decode(p.encoded, call); err != nil || call.GetId() != string(p.name) {
				t.Fatalf("call %q: %v, %v", p.name, call, err)
			}
			again.ToolCalls = append(again.ToolCalls, call)
		}
		if got.createTime != nil {
			again.CreateTime = new(timestamppb.Timestamp)
			if err := decode(got.createTime, again.CreateTime); err != nil {
				t.Fatal(err)
			}
		}
		if id := want.GetToolResult().GetCallId(); id != string(got.answers) {
			t.Errorf("the result of call %q, want %q", got.answers, id)
		}
		want = &parleyv1.Message{
			Sequence: want.Sequence, Role: want.Role, Agent: want.Agent, Summary: want.Summary, Content: want.Content,
			StructuredData: want.StructuredData, ToolCalls: want.ToolCalls, CreateTime: want.CreateTime,
		}
		if d := diff(want, again); d != "" {
			t.Errorf("message (-decoded +read):\n%s", d)
		}
	})
}

func TestDamage(t *testing.T) {
	good := encode(t, history(user("?"), assistant("a", "!")))
	tests := []struct {
		name     string
		messages store.Frames
	}{
		{"a frame is cut off", good[:len(good)-1]},
		{"another field between", append(append([]byte{0x1a, 0x00}, good...), good...)},
		{"a message is none", append(good, frame([]byte{0xff})...)},
		{"a field is cut off", append(good, frame([]byte{0x22, 0x05, 'x'})...)},
		{"structured data are none", append(good, frame([]byte{0x2a, 0x01, 0xff})...)},
		{"a call is none", append(good, frame([]byte{0x32, 0x01, 0xff})...)},
		{"a call has no name", append(good, frame([]byte{0x32, 0x05, 0x0a, 0x01, '1', 0x12, 0x05})...)},
		{"a result is none", append(good, frame([]byte{0x3a, 0x01, 0xff})...)},
		{"a time is none", append(good, frame([]byte{0x18, 0x02, 0x42, 0x01, 'a', 0x7a, 0x01, 0xff})...)},
		{"a value is none, and too large", append(good, frame([]byte{0x2a, 0x04, 0x0a, 0x00, 0x12, 0x09})...)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for _, o := range []Options{{}, {MessageLimit: 1, MaxBytes: 1}} {
				if s, err := Summarize(nil, test.messages, o); !errors.Is(err, store.ErrCorrupt) {
					t.Errorf("%+v: got %v, %v, want ErrCorrupt", o, s, err)
				}
			}
		})
	}
}
