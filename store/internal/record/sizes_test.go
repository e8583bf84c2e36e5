package record_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// TestAppendWithSizes makes random appends with a record and with one that has the sizes of its messages in
// place of the messages. Both must have the same outcome.
func TestAppendWithSizes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := store.Options{
			MaxMessages:          rapid.IntRange(1, 6).Draw(t, "max messages"),
			MaxConversationBytes: rapid.IntRange(1, 900).Draw(t, "max bytes"),
		}.WithDefaults()
		value := appended(t, nil, o)
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			var messages []*parleyv1.Message
			for i := range rapid.IntRange(0, 8).Draw(t, "messages") {
				m := withData(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b"}), 0, 2).Draw(t, "types")...)
				m.Id, m.Content = fmt.Sprint(i), strings.Repeat("x", rapid.IntRange(0, 300).Draw(t, "length"))
				messages = append(messages, m)
			}
			full, sized := unmarshal(t, value), unmarshal(t, value)
			sized.Messages, sized.Sizes = nil, new(record.SizeList{}.With(full.Messages))
			want, got := appendTo(t, full, o, messages), appendTo(t, sized, o, messages)
			if diff := cmp.Diff(want.Record.Header, got.Record.Header, protocmp.Transform()); diff != "" {
				t.Fatalf("header (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want.Result, got.Result, protocmp.Transform()); diff != "" {
				t.Fatalf("result (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want.Changes, got.Changes, protocmp.Transform()); diff != "" {
				t.Fatalf("changes (-want +got):\n%s", diff)
			}
			value = marshal(t, want.Record)
			retained := unmarshal(t, value)
			if got, want := retained.Messages.Count(), int(retained.Conversation().GetMessageCount()); got != want {
				t.Fatalf("retained %d messages, the header says %d", got, want)
			}
			sizes := slices.Collect(got.Record.Sizes.All())
			old := len(sizes)
			if want := record.Sizes(retained.Messages)[:old]; !slices.Equal(sizes, want) {
				t.Fatalf("sizes = %v, want %v", sizes, want)
			}
			if _, err := got.Record.Marshal(); old > 0 && err == nil {
				t.Fatal("Marshal of a record with sizes succeeded")
			}
		}
	})
}

// TestAppendDecodesNoMessage appends to a record whose messages are not valid.
func TestAppendDecodesNoMessage(t *testing.T) {
	o := store.Options{MaxMessages: 3}.WithDefaults()
	r := unmarshal(t, appended(t, nil, o, withData(), withData(), withData()))
	for frame := range r.Messages.All() {
		for i := range frame.Body() {
			frame.Body()[i] = 0xff
		}
	}
	out := appendTo(t, r, o, []*parleyv1.Message{withData()})
	if c := out.Record.Conversation(); c.GetMessageCount() != 3 || c.GetLastSequence() != 4 ||
		out.Changes[0].Trimmed != 1 {
		t.Errorf("Append = %v, %d trimmed, want 3 messages up to 4, 1 trimmed", c, out.Changes[0].Trimmed)
	}
}

func unmarshal(tb rapid.TB, value []byte) *record.Record {
	tb.Helper()
	r, err := record.Unmarshal(value)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func appendTo(tb rapid.TB, r *record.Record, o store.Options, messages []*parleyv1.Message) *record.Outcome {
	tb.Helper()
	drafts, err := record.NewDrafts(messages)
	if err != nil {
		tb.Fatal(err)
	}
	a := &store.Append{Tenant: "acme", ConversationID: "a", Messages: messages}
	out, err := record.Append(r, a, drafts, nil, "uid", time.Unix(1_800_000_000, 0), &o)
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// TestSizeList appends frames to a list, while earlier copies of it are in use. Each must have the sizes of its time.
func TestSizeList(t *testing.T) {
	var list record.SizeList
	var all store.Frames
	copies := map[int]record.SizeList{} // by the size of the frames
	for i := range 100 {
		frame, err := store.EncodeFrame(&parleyv1.Message{
			Id: fmt.Sprint(i), Content: strings.Repeat("x", 50*(i%7)), Sequence: int32(3*i + 5),
		})
		if err != nil {
			t.Fatal(err)
		}
		list.With(store.Frames(frame)) // A result that is not used must not be visible.
		list, all = list.With(store.Frames(frame)), append(all, frame...)
		copies[len(all)] = list
	}
	for size, l := range copies {
		if want, got := record.Sizes(all[:size]), slices.Collect(l.All()); !slices.Equal(got, want) {
			t.Errorf("All() = %v, want %v", got, want)
		}
		if l.Bytes() != size || l.Memory() < 3*all[:size].Count() {
			t.Errorf("Bytes(), Memory() = %d, %d, want %d and enough for %d messages", l.Bytes(), l.Memory(), size, all[:size].Count())
		}
	}
	first, allocated := all[:record.Sizes(all)[0].Bytes], 0
	for _, l := range copies {
		allocated += int(testing.AllocsPerRun(1, func() { l.With(first) }))
	}
	if allocated > 25 {
		t.Errorf("100 calls of With made %d allocations, want 25 at most", allocated)
	}
}
