package record_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// divided is a conversation as a store keeps it that divides: a value, and chunks by their last sequences.
type divided struct {
	value  []byte
	chunks map[int32][]byte
}

func chunkKey(last int32) []byte { return fmt.Append(nil, "chunk ", last) }

// all returns the chunks, oldest first.
func (d *divided) all(tb rapid.TB) (all []*record.Chunk) {
	tb.Helper()
	for _, last := range slices.Sorted(maps.Keys(d.chunks)) {
		c, err := record.UnmarshalChunk(chunkKey(last), d.chunks[last])
		if err != nil || c.Last() != last || !slices.Equal(record.Sizes(c.Messages), c.Sizes) {
			tb.Fatalf("chunk %d ends at %d, %v", last, c.Last(), err)
		}
		all = append(all, c)
	}
	return all
}

// record returns the record, with all messages if join is true.
func (d *divided) record(tb rapid.TB, join bool) *record.Record {
	tb.Helper()
	r := unmarshal(tb, d.value)
	if join && r.Divided() {
		if err := r.Join(d.all(tb)); err != nil {
			tb.Fatal(err)
		}
		return r
	}
	r.Chunks = &chunkReader{divided: d, tb: tb}
	return r
}

// write writes a record. It returns how many chunks it wrote.
func (d *divided) write(tb rapid.TB, r *record.Record, size int) int {
	tb.Helper()
	if header := r.Header.GetChunks(); header != nil {
		for _, c := range d.all(tb) {
			if c.Last() < header.GetFirstSequence() {
				delete(d.chunks, c.Last())
			}
		}
	}
	put, removed := r.Divide(size)
	for _, last := range removed {
		delete(d.chunks, last)
	}
	for _, c := range put {
		d.chunks[c.Last()] = c.Marshal(chunkKey(c.Last()))
		if n := len(c.Messages); len(c.Sizes) > 1 && n > 2*size {
			tb.Fatalf("chunk of %d messages has %d bytes, want %d at most", len(c.Sizes), n, 2*size)
		}
	}
	if n := r.TailBytes(); n > 2*size {
		tb.Fatalf("%d bytes of messages remain, want %d at most", n, 2*size)
	}
	d.value = marshal(tb, r)
	if got, want := r.ValueSize(), len(d.value); got != want {
		tb.Fatalf("ValueSize() = %d, want %d", got, want)
	}
	return len(put)
}

// TestDividedLikeWhole makes random writes with a divided conversation and with one that is not. Both must have the
// same outcome and the same messages.
func TestDividedLikeWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := store.Options{
			MaxMessages:          rapid.SampledFrom([]int{2, 5, 30}).Draw(t, "max messages"),
			MaxConversationBytes: rapid.SampledFrom([]int{100, 900, 10_000}).Draw(t, "max bytes"),
		}.WithDefaults()
		size := rapid.SampledFrom([]int{1, 50, 300}).Draw(t, "chunk size")
		value := appended(t, nil, o)
		d := &divided{value: value, chunks: map[int32][]byte{}}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			write := drawWrite(t, unmarshal(t, value).Conversation().GetLastSequence(), o)
			want, wantErr := write.apply(unmarshal(t, value))
			got, err := write.apply(d.record(t, false))
			if fmt.Sprint(err) != fmt.Sprint(wantErr) {
				t.Fatalf("error = %v, want %v", err, wantErr)
			}
			if err != nil {
				continue
			}
			if diff := cmp.Diff(want.Result, got.Result, protocmp.Transform()); diff != "" {
				t.Fatalf("result (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want.Changes, got.Changes, protocmp.Transform()); diff != "" {
				t.Fatalf("changes (-want +got):\n%s", diff)
			}
			if (want.Record == nil) != (got.Record == nil) {
				t.Fatalf("outcome = %v, want %v", got, want)
			}
			if want.Record != nil {
				value = marshal(t, want.Record)
				d.write(t, got.Record, size)
			}
			checkDivided(t, d, unmarshal(t, value))
		}
	})
}

// checkDivided compares a divided conversation with one that is not.
func checkDivided(t *rapid.T, d *divided, want *record.Record) {
	t.Helper()
	got := d.record(t, false)
	if got.Size()-got.ValueSize() != int(got.Header.GetChunks().GetBytes()) || got.MessageBytes() != len(want.Messages) {
		t.Fatalf("%d bytes of messages, %d in chunks, want %d", got.MessageBytes(), got.Size()-got.ValueSize(),
			len(want.Messages))
	}
	if got.Divided() != (len(d.chunks) > 0) {
		t.Fatalf("Divided() = %t with %d chunks", got.Divided(), len(d.chunks))
	}
	for n := range 40 {
		if got, want := got.InChunks(n), max(0, min(n, want.Messages.Count())-got.Messages.Count()); got != want {
			t.Fatalf("InChunks(%d) = %d, want %d", n, got, want)
		}
	}
	for _, kind := range []string{"a", "b", "c"} {
		if got, want := got.HasType(kind), want.HasType(kind); got != want {
			t.Fatalf("HasType(%s) = %t, want %t", kind, got, want)
		}
	}
	joined := d.record(t, true)
	if !bytes.Equal(joined.Messages, want.Messages) || !slices.Equal(record.Uses(joined.Data), record.Uses(want.Data)) {
		t.Fatalf("messages = %q with data %v, want %q with %v", joined.Messages, record.Uses(joined.Data), want.Messages,
			record.Uses(want.Data))
	}
	header := proto.CloneOf(got.Header)
	header.Chunks = nil
	if diff := cmp.Diff(want.Header, header, protocmp.Transform()); diff != "" {
		t.Fatalf("header (-want +got):\n%s", diff)
	}
	for _, c := range d.all(t) {
		if sizes, _ := c.Retained(got.Header.GetChunks().GetFirstSequence()); len(sizes) == 0 {
			t.Fatalf("chunk %d is not removed, the header says %v", c.First(), got.Header.GetChunks())
		}
	}
	if types := record.TypesOf(d.all(t), got.Header.GetChunks().GetFirstSequence()); !bytes.Equal(types, got.Types) {
		t.Fatalf("types = %q, want %q", got.Types, types)
	}
}

// randomWrite is a write of TestDividedLikeWhole.
type randomWrite struct {
	apply func(*record.Record) (*record.Outcome, error)
}

func drawWrite(t *rapid.T, last int32, o store.Options) randomWrite {
	var messages []*parleyv1.Message
	for i := range rapid.IntRange(0, 8).Draw(t, "messages") {
		m := withData(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c"}), 0, 2).Draw(t, "types")...)
		m.Id, m.Content = fmt.Sprint(i), strings.Repeat("x", rapid.IntRange(0, 200).Draw(t, "length"))
		messages = append(messages, m)
	}
	drafts, err := record.NewDrafts(messages)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_800_000_000, 0)
	a := &store.Append{Tenant: "acme", ConversationID: "a", Messages: messages}
	u := &store.Update{Tenant: "acme", ConversationID: "a", Values: &parleyv1.Conversation{}}
	through := rapid.Int32Range(0, last).Draw(t, "through")
	switch rapid.IntRange(0, 6).Draw(t, "kind") {
	case 0:
		a.ReplaceAfter = &through
	case 1:
		u.KeepThrough = &through
	case 2:
		u.Sequences = rapid.SliceOfN(rapid.Int32Range(0, last), 1, 5).Draw(t, "sequences")
	case 3:
		u.Fields = []string{"retention.max_messages"}
		u.Values.Retention = &parleyv1.Retention{MaxMessages: int32(rapid.IntRange(1, 6).Draw(t, "limit"))}
	default:
		return randomWrite{apply: func(r *record.Record) (*record.Outcome, error) {
			return record.Append(r, a, drafts, nil, "uid", now, &o)
		}}
	}
	if a.ReplaceAfter != nil {
		return randomWrite{apply: func(r *record.Record) (*record.Outcome, error) {
			return record.Append(r, a, drafts, nil, "uid", now, &o)
		}}
	}
	return randomWrite{apply: func(r *record.Record) (*record.Outcome, error) {
		return record.Update(r, u, now, &o)
	}}
}

// TestDivideRewritesChangedChunks removes messages in the middle. Only their chunk may be written again.
func TestDivideRewritesChangedChunks(t *testing.T) {
	o := store.Options{MaxMessages: 100}.WithDefaults()
	messages := make([]*parleyv1.Message, 40)
	for i := range messages {
		messages[i] = &parleyv1.Message{Content: strings.Repeat("x", 100)}
	}
	d := &divided{value: appended(t, nil, o, messages...), chunks: map[int32][]byte{}}
	d.write(t, d.record(t, false), 500)
	lasts := slices.Sorted(maps.Keys(d.chunks))
	if len(lasts) < 5 {
		t.Fatalf("chunks = %v, want 5 at least", lasts)
	}
	before := maps.Clone(d.chunks)
	u := &store.Update{Sequences: []int32{lasts[2] - 1}}
	out, err := record.Update(d.record(t, false), u, time.Unix(1_800_000_000, 0), &o)
	if err != nil {
		t.Fatal(err)
	}
	if n := d.write(t, out.Record, 500); n != 1 || len(d.chunks) != len(lasts) {
		t.Errorf("wrote %d chunks, there are %d; want 1 of %d", n, len(d.chunks), len(lasts))
	}
	for i, last := range lasts {
		if same := bytes.Equal(before[last], d.chunks[last]); same != (i != 2) {
			t.Errorf("chunk %d is the same: %t", i, same)
		}
	}
	if got := d.record(t, false).Conversation().GetMessageCount(); got != 39 {
		t.Errorf("message count = %d, want 39", got)
	}
}

// TestDamagedChunk flips each bit of a chunk, and reads it under another key.
func TestDamagedChunk(t *testing.T) {
	r := unmarshal(t, appended(t, nil, store.Options{}, withData("a"), withData("a", "b"), withData()))
	put, _ := r.Divide(1)
	c := put[1]
	value := c.Marshal(chunkKey(2))
	if got, err := record.UnmarshalChunk(chunkKey(2), value); err != nil || !bytes.Equal(got.Messages, c.Messages) {
		t.Fatalf("UnmarshalChunk = %v, %v, want %v", got, err, c)
	}
	if _, err := record.UnmarshalChunkHead(chunkKey(3), value); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("UnmarshalChunkHead with another key = %v, want ErrCorrupt", err)
	}
	for bit := range 8 * len(value) {
		value[bit/8] ^= 1 << (bit % 8)
		if _, err := record.UnmarshalChunk(chunkKey(2), value); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("UnmarshalChunk with bit %d flipped = %v, want ErrCorrupt", bit, err)
		}
		value[bit/8] ^= 1 << (bit % 8)
	}
	for n := range value {
		if _, err := record.UnmarshalChunk(chunkKey(2), value[:n]); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("UnmarshalChunk of %d bytes = %v, want ErrCorrupt", n, err)
		}
	}
}

// TestChunksAreMissing drops and joins messages whose chunks the store does not have.
func TestChunksAreMissing(t *testing.T) {
	o := store.Options{MaxMessages: 100}.WithDefaults()
	d := &divided{value: appended(t, nil, o, withData("a"), withData("a"), withData("a")), chunks: map[int32][]byte{}}
	d.write(t, d.record(t, false), 1)
	delete(d.chunks, 1)
	if err := unmarshal(t, d.value).Join(d.all(t)); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("Join without a chunk = %v, want ErrCorrupt", err)
	}
	clear(d.chunks)
	u := &store.Update{
		Fields: []string{"retention.max_messages"},
		Values: &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxMessages: 1}},
	}
	if _, err := record.Update(d.record(t, false), u, time.Unix(1_800_000_000, 0), &o); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("Update that drops messages of missing chunks = %v, want ErrCorrupt", err)
	}
}

// FuzzChunk decodes chunks from arbitrary bytes with correct checksums. Accepted ones must encode to the same bytes.
func FuzzChunk(f *testing.F) {
	r := unmarshal(f, appended(f, nil, store.Options{}, withData("a"), withData("a", "b"), withData()))
	put, _ := r.Divide(1)
	for _, c := range put {
		f.Add(c.Marshal(nil))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		value = record.SealedChunk(value)
		c, err := record.UnmarshalChunk(nil, value)
		if err != nil {
			if !errors.Is(err, store.ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		again, err := record.UnmarshalChunk(nil, c.Marshal(nil))
		if diff := cmp.Diff(c, again); err != nil || diff != "" {
			t.Fatalf("decoded again, %v (-want +got):\n%s", err, diff)
		}
		if c.First() <= 0 || c.Last() < c.First() {
			t.Fatalf("messages from %d to %d", c.First(), c.Last())
		}
	})
}
