package record_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// oldFormat is a record of format 1. Message 2 has data "list" and "table", message 3 has "list".
const oldFormat = "" +
	"01dc4f5c2851123b1c30358a56640000080a3b0a016132070814120308901c38014003480350716a060880a4a7da06720608" +
	"80a4a7da067a060890c0a7da068a01037569649201060880a4a7da0610012208080212046c6973742209080212057461626c" +
	"652208080312046c6973742a0461636d656265206272696566121c0a01311801220568656c6c6f1001500160017a080880a4" +
	"a7da06100012320a01321802220268692a060a046c6973742a070a057461626c652a060a046c6973741002500160017a0808" +
	"80a4a7da061000121d0a013318022a060a046c6973741003500160017a080880a4a7da061000"

// withData returns a message with structured data of the given types.
func withData(kinds ...string) *parleyv1.Message {
	m := &parleyv1.Message{Role: parleyv1.Role_ROLE_ASSISTANT}
	for _, kind := range kinds {
		m.StructuredData = append(m.StructuredData, &parleyv1.StructuredData{Type: kind})
	}
	return m
}

// appended appends messages and returns the written value.
func appended(tb rapid.TB, value []byte, o store.Options, messages ...*parleyv1.Message) []byte {
	tb.Helper()
	var old *record.Record
	if value != nil {
		var err error
		if old, err = record.Unmarshal(value); err != nil {
			tb.Fatal(err)
		}
	}
	drafts, err := record.NewDrafts(messages)
	if err != nil {
		tb.Fatal(err)
	}
	o = o.WithDefaults()
	a := &store.Append{Tenant: "acme", ConversationID: "a", Messages: messages}
	out, err := record.Append(old, a, drafts, nil, "uid", time.Unix(1_800_000_000, 0), &o)
	if err != nil {
		tb.Fatal(err)
	}
	return marshal(tb, out.Record)
}

// uses returns the entries in the index of a value.
func uses(tb rapid.TB, value []byte) []string {
	tb.Helper()
	r, err := record.Unmarshal(value)
	if err != nil {
		tb.Fatal(err)
	}
	return record.Uses(r.Data)
}

// TestOldFormat reads a record of format 1 and appends to it.
func TestOldFormat(t *testing.T) {
	old := unhex(t, oldFormat)
	if got, want := uses(t, old), []string{"2 list", "2 table", "3 list"}; !slices.Equal(got, want) {
		t.Errorf("data of the old value = %v, want %v", got, want)
	}
	head, err := record.UnmarshalHead(old)
	if err != nil || head.Header.GetData() != nil || string(head.Prompt) != "be brief" ||
		head.Conversation().GetMessageCount() != 3 {
		t.Errorf("UnmarshalHead = %v, %v", head, err)
	}
	written := appended(t, old, store.Options{}, withData("more"))
	if got, want := uses(t, written), []string{"2 list", "2 table", "3 list", "4 more"}; !slices.Equal(got, want) ||
		written[0] != 2 {
		t.Errorf("written in format %d with data %v, want format 2 with %v", written[0], got, want)
	}
	for bit := range 8 * len(old) {
		old[bit/8] ^= 1 << (bit % 8)
		if _, err := record.Unmarshal(old); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("Unmarshal with bit %d of the old value flipped = %v, want ErrCorrupt", bit, err)
		}
		old[bit/8] ^= 1 << (bit % 8)
	}
}

// TestDataWork counts the allocations of decoding a header and of an append. They must not depend
// on the number of values of structured data in the conversation.
func TestDataWork(t *testing.T) {
	o := store.Options{MaxMessages: 1000}
	many := make([]string, 64)
	for i := range many {
		many[i] = fmt.Sprint("type ", i)
	}
	// Both conversations have the same number of messages.
	little, large := []*parleyv1.Message{}, []*parleyv1.Message{}
	for range 200 {
		little, large = append(little, withData("type")), append(large, withData(many...))
	}
	for name, work := range map[string]func(value []byte){
		"UnmarshalHead": func(value []byte) {
			if _, err := record.UnmarshalHead(value); err != nil {
				t.Fatal(err)
			}
		},
		"Append": func(value []byte) { appended(t, value, o, withData("type")) },
	} {
		fewer, more := appended(t, nil, o, little...), appended(t, nil, o, large...)
		want := testing.AllocsPerRun(10, func() { work(fewer) })
		if got := testing.AllocsPerRun(10, func() { work(more) }); got > want {
			t.Errorf("%s makes %v allocations with 12,800 values and %v with 200", name, got, want)
		}
	}
}

// TestDataAtRandom makes random appends and clears, and compares the index with the retained
// messages.
func TestDataAtRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := store.Options{MaxMessages: rapid.IntRange(1, 6).Draw(t, "max messages")}.WithDefaults()
		value := appended(t, nil, o)
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			r, err := record.Unmarshal(value)
			if err != nil {
				t.Fatal(err)
			}
			if rapid.IntRange(0, 3).Draw(t, "clear") == 0 {
				through := rapid.Int32Range(0, r.Conversation().GetLastSequence()).Draw(t, "through")
				out, err := record.Update(r, &store.Update{KeepThrough: &through}, time.Unix(1_800_000_000, 0), &o)
				if err != nil {
					t.Fatal(err)
				}
				if out.Record != nil {
					value = marshal(t, out.Record)
				}
			} else {
				var messages []*parleyv1.Message
				for range rapid.IntRange(1, 8).Draw(t, "messages") {
					messages = append(messages,
						withData(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "aa"}), 0, 3).Draw(t, "types")...))
				}
				value = appended(t, value, o, messages...)
			}
			checkData(t, value)
		}
	})
}

// checkData compares the index of a value with its messages.
func checkData(t *rapid.T, value []byte) {
	t.Helper()
	r, err := record.Unmarshal(value)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := r.Messages.Messages()
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	types := map[string]bool{}
	for _, m := range messages {
		known := map[string]bool{}
		for _, d := range m.GetStructuredData() {
			if kind := d.GetType(); !known[kind] {
				known[kind], types[kind] = true, true
				want = append(want, fmt.Sprint(m.GetSequence(), " ", kind))
			}
		}
	}
	if got := record.Uses(r.Data); !slices.Equal(got, want) {
		t.Fatalf("data = %v, want %v", got, want)
	}
	for _, kind := range []string{"a", "b", "aa", "aaa"} {
		if got := r.HasType(kind); got != types[kind] {
			t.Fatalf("HasType(%s) = %t with %v", kind, got, want)
		}
	}
}
