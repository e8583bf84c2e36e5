package store_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// frame returns a frame with the encoded message body.
func frame(body []byte) store.Frame {
	return store.AppendFrame(nil, body)
}

// frames returns messages in wire form, with sequences from 1.
func frames(tb testing.TB, contents ...string) store.Frames {
	tb.Helper()
	var all store.Frames
	for i, content := range contents {
		body, err := proto.Marshal(&parleyv1.Message{Sequence: int32(i) + 1, Content: content, Role: parleyv1.Role_ROLE_USER})
		if err != nil {
			tb.Fatal(err)
		}
		all = append(all, frame(body)...)
	}
	return all
}

func TestFrames(t *testing.T) {
	all := frames(t, "one", "", "three", "four")
	sequences := func(f store.Frames) []int32 {
		var out []int32
		for frame := range f.All() {
			out = append(out, frame.Sequence())
		}
		return out
	}
	for _, test := range []struct {
		name string
		got  store.Frames
		want []int32
	}{
		{"all", all, []int32{1, 2, 3, 4}},
		{"newest 0", all.Newest(0), nil},
		{"newest 2", all.Newest(2), []int32{3, 4}},
		{"newest 4", all.Newest(4), []int32{1, 2, 3, 4}},
		{"newest 9", all.Newest(9), []int32{1, 2, 3, 4}},
		{"newest -1", all.Newest(-1), []int32{1, 2, 3, 4}},
		{"skip 0", all.Skip(0), []int32{1, 2, 3, 4}},
		{"skip -1", all.Skip(-1), []int32{1, 2, 3, 4}},
		{"skip 3", all.Skip(3), []int32{4}},
		{"skip 9", all.Skip(9), nil},
		{"none", nil, nil},
		{"newest of none", store.Frames(nil).Newest(3), nil},
		{"cut off", all[:len(all)-1], []int32{1, 2, 3}},
		{"another field after the frames", append(slices.Clone(all), 0x1a, 0), []int32{1, 2, 3, 4}},
	} {
		if got := sequences(test.got); !slices.Equal(got, test.want) {
			t.Errorf("%s: All() yields sequences %v, want %v", test.name, got, test.want)
		}
		if n := test.got.Count(); n != len(test.want) {
			t.Errorf("%s: Count() = %d, want %d", test.name, n, len(test.want))
		}
	}
	messages, err := all.Messages()
	if err != nil || len(messages) != 4 || messages[2].GetContent() != "three" {
		t.Errorf("Messages() = %v, %v, want 4 messages, the third with content \"three\"", messages, err)
	}
	if _, err := store.Frames(frame([]byte{0xff})).Messages(); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("Messages() of a damaged frame = %v, want ErrCorrupt", err)
	}
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte(frames(f, "one", "two", "three")), 1)
	f.Add([]byte(nil), -1)
	f.Add([]byte{0x12}, 0)
	f.Add([]byte{0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, 2)
	f.Fuzz(func(t *testing.T, raw []byte, n int) {
		all := store.Frames(raw)
		var complete []byte
		count := 0
		for frame := range all.All() {
			complete = append(complete, frame...)
			count++
			frame.Sequence()
			_, _ = frame.Message()
		}
		if !bytes.HasPrefix(raw, complete) {
			t.Fatalf("All() of %x yields %x, want a prefix of the input", raw, complete)
		}
		if got := all.Count(); got != count {
			t.Errorf("Count() = %d, want %d", got, count)
		}
		if got := store.Frames(complete).Skip(n).Count(); got != min(count, max(0, count-n)) && n >= 0 {
			t.Errorf("Skip(%d) of %d frames has %d frames", n, count, got)
		}
		newest := store.Frames(complete).Newest(n)
		if want := min(count, n); n >= 0 && newest.Count() != want || n < 0 && newest.Count() != count {
			t.Errorf("Newest(%d) of %d frames has %d frames", n, count, newest.Count())
		}
		if !bytes.HasSuffix(complete, newest) {
			t.Errorf("Newest(%d) = %x, want a suffix of %x", n, newest, complete)
		}
		for frame := range all.All() {
			if again := store.Frames(frame); again.Count() != 1 {
				t.Errorf("Frames of one frame: Count() = %d, want 1", again.Count())
			}
		}
	})
}

func FuzzSequence(f *testing.F) {
	for _, m := range []*parleyv1.Message{
		{},
		{Sequence: 7, Id: "id", Metadata: map[string]string{"k": "v"}},
		{Sequence: -1, Content: "content", Exchange: 3},
	} {
		body, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
		f.Add(append(body, 0x10, 0x05))                   // The last value wins.
		f.Add(append(body, 0x12, 0x00))                   // Field 2 with another wire type.
		f.Add(append(body, 0x13, 0x10, 0x09, 0x14, 0x10)) // The field inside a group, and a truncated field.
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got := frame(body).Sequence()
		var m parleyv1.Message
		if proto.Unmarshal(body, &m) == nil && got != m.GetSequence() {
			t.Errorf("Sequence() of %x = %d, want %d", body, got, m.GetSequence())
		}
	})
}

// TestRecordFrames checks that records in wire form are those of a GetRecordsResponse that is encoded as usual.
func TestRecordFrames(t *testing.T) {
	all := []*parleyv1.Record{
		{Key: "empty"},
		{
			ConversationId: "c", Key: "k", Value: []byte("value"), MediaType: "text/plain", Revision: 1 << 40, SizeBytes: 5,
			UpdateTime: timestamppb.Now(), ExpireTime: timestamppb.Now(), Labels: map[string]string{"a": "b"},
		},
		{Key: "large", Value: bytes.Repeat([]byte("v"), 100_000)},
	}
	var frames store.RecordFrames
	for _, r := range all {
		withoutValue := proto.CloneOf(r)
		withoutValue.Value = nil
		var err error
		if frames, err = frames.Append(withoutValue, r.GetValue()); err != nil {
			t.Fatal(err)
		}
	}
	got, err := frames.Records()
	if d := cmp.Diff(all, got, protocmp.Transform()); err != nil || d != "" {
		t.Errorf("Records: %v (-want +got):\n%s", err, d)
	}
	if want := proto.Size(&parleyv1.GetRecordsResponse{Records: all}); len(frames) != want {
		t.Errorf("frames have %d bytes, want %d", len(frames), want)
	}
	if got, err := frames.Append(&parleyv1.Record{Key: "\xff"}, nil); err == nil {
		t.Errorf("Append with an invalid key = %d bytes, want an error", len(got))
	}
	if got, err := frames[:len(frames)-1].Records(); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("Records of a part = %d records, %v, want ErrCorrupt", len(got), err)
	}
}
