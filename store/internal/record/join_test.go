package record_test

import (
	"errors"
	"fmt"
	"iter"
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

// chunkReader reads the chunks of a divided conversation for a record.
type chunkReader struct {
	*divided

	tb   rapid.TB
	full bool // From returns all chunks, so that the record is joined completely
	read int  // number of chunks with their messages
}

func (r *chunkReader) Head(sequence int32) (*record.Chunk, error) {
	for _, c := range r.all(r.tb) {
		if c.Last() >= sequence {
			c.Messages = nil
			return c, nil
		}
	}
	return nil, store.ErrCorrupt
}

func (r *chunkReader) From(sequence int32) (chunks []*record.Chunk, err error) {
	for _, c := range r.all(r.tb) {
		if r.full || c.Last() >= sequence {
			chunks, r.read = append(chunks, c), r.read+1
		}
	}
	return chunks, nil
}

func (r *chunkReader) Before(sequence int32) iter.Seq2[*record.Chunk, error] {
	return func(yield func(*record.Chunk, error) bool) {
		for _, c := range slices.Backward(r.all(r.tb)) {
			if c.Last() >= sequence {
				continue
			}
			r.read++
			if !yield(c, nil) {
				return
			}
		}
	}
}

// toolMessage returns a random message with calls and results of few ids.
func toolMessage(t *rapid.T) *parleyv1.Message {
	ids := rapid.SampledFrom([]string{"x", "y", "z"})
	m := withData(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b"}), 0, 1).Draw(t, "types")...)
	m.Content = strings.Repeat("x", rapid.IntRange(0, 60).Draw(t, "length"))
	switch rapid.IntRange(0, 2).Draw(t, "kind of message") {
	case 0:
		m.Role = parleyv1.Role_ROLE_ASSISTANT
		for _, id := range rapid.SliceOfN(ids, 1, 3).Draw(t, "calls") {
			m.ToolCalls = append(m.ToolCalls, &parleyv1.ToolCall{Id: id, Name: "tool"})
		}
	case 1:
		m.Role, m.ToolResult = parleyv1.Role_ROLE_TOOL, &parleyv1.ToolResult{CallId: ids.Draw(t, "result")}
	}
	return m
}

// TestPartialJoin makes random removals with a conversation that is not divided, with a divided one that joins all
// chunks, and with one that joins those that it needs. All must have the same outcomes.
func TestPartialJoin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := store.Options{MaxMessages: rapid.SampledFrom([]int{8, 40}).Draw(t, "max messages")}.WithDefaults()
		size := rapid.SampledFrom([]int{1, 60, 200}).Draw(t, "chunk size")
		message := rapid.Custom(toolMessage)
		whole := appended(t, nil, o, rapid.SliceOfN(message, 1, 40).Draw(t, "first messages")...)
		full, partial := &divided{value: whole, chunks: map[int32][]byte{}}, &divided{value: whole, chunks: map[int32][]byte{}}
		for _, d := range []*divided{full, partial} {
			d.write(t, d.record(t, false), size)
		}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			apply := drawRemoval(t, unmarshal(t, whole), message, o)
			want, wantErr := apply(unmarshal(t, whole))
			r := unmarshal(t, full.value)
			r.Chunks = &chunkReader{divided: full, tb: t, full: true}
			fromFull, err := apply(r)
			compareOutcomes(t, want, fromFull, wantErr, err)
			got, err := apply(partial.record(t, false))
			compareOutcomes(t, want, got, wantErr, err)
			if wantErr != nil || want.Record == nil {
				continue
			}
			whole = marshal(t, want.Record)
			full.write(t, fromFull.Record, size)
			partial.write(t, got.Record, size)
			checkDivided(t, full, unmarshal(t, whole))
			checkDivided(t, partial, unmarshal(t, whole))
		}
	})
}

// drawRemoval returns a random write that removes messages of a record, or adds some.
func drawRemoval(
	t *rapid.T, r *record.Record, message *rapid.Generator[*parleyv1.Message], o store.Options,
) func(*record.Record) (*record.Outcome, error) {
	last := r.Conversation().GetLastSequence()
	// Most removals are of the newest messages.
	through := max(0, last-rapid.SampledFrom([]int32{-1, 0, 1, 2, 3, 5, 8, 13, 40}).Draw(t, "newest"))
	messages := rapid.SliceOfN(message, 0, 3).Draw(t, "messages")
	now := time.Unix(1_800_000_000, 0)
	u := &store.Update{Tenant: "acme", ConversationID: "a", Values: &parleyv1.Conversation{}}
	if rapid.Bool().Draw(t, "with a limit") {
		u.Fields = []string{"retention.max_messages"}
		u.Values.Retention = &parleyv1.Retention{MaxMessages: int32(rapid.IntRange(1, 20).Draw(t, "limit"))}
	}
	switch rapid.IntRange(0, 4).Draw(t, "kind of write") {
	case 0:
		u.KeepThrough = &through
	case 1, 2:
		u.Sequences = rapid.SliceOfN(rapid.Int32Range(min(through, last), last+1), 1, 4).Draw(t, "sequences")
	default:
		a := &store.Append{Tenant: "acme", ConversationID: "a", Messages: messages, ReplaceAfter: &through}
		if rapid.IntRange(0, 3).Draw(t, "appends") == 0 {
			a.ReplaceAfter = nil
		}
		return func(r *record.Record) (*record.Outcome, error) {
			drafts, err := record.NewDrafts(messages)
			if err != nil {
				t.Fatal(err)
			}
			return record.Append(r, a, drafts, nil, "uid", now, &o)
		}
	}
	return func(r *record.Record) (*record.Outcome, error) { return record.Update(r, u, now, &o) }
}

// compareOutcomes compares two outcomes or errors of the same write.
func compareOutcomes(t *rapid.T, want, got *record.Outcome, wantErr, err error) {
	t.Helper()
	if diff := cmp.Diff(fmt.Sprint(wantErr), fmt.Sprint(err)); diff != "" {
		t.Fatalf("error (-want +got):\n%s", diff)
	}
	if err != nil {
		return
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
}

// TestReadsOfRemovals counts the chunks that removals read. Each chunk has one message: a call in the second one, and its
// result in the last but one.
func TestReadsOfRemovals(t *testing.T) {
	const messages = 40
	o := store.Options{MaxMessages: messages}.WithDefaults()
	history := make([]*parleyv1.Message, messages)
	for i := range history {
		history[i] = &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: fmt.Sprint(i)}
	}
	history[1] = &parleyv1.Message{ToolCalls: []*parleyv1.ToolCall{{Id: "call", Name: "tool"}}}
	result := &parleyv1.Message{ToolResult: &parleyv1.ToolResult{CallId: "call"}}
	history[messages-2] = result
	d := &divided{value: appended(t, nil, o, history...), chunks: map[int32][]byte{}}
	d.write(t, d.record(t, false), 1)
	now := time.Unix(1_800_000_000, 0)
	replace := func(after int32, with ...*parleyv1.Message) func(*record.Record) error {
		return func(r *record.Record) error {
			drafts, err := record.NewDrafts(with)
			if err != nil {
				return err
			}
			_, err = record.Append(r, &store.Append{ReplaceAfter: &after, Messages: with}, drafts, nil, "", now, &o)
			return err
		}
	}
	update := func(u *store.Update) func(*record.Record) error {
		return func(r *record.Record) error {
			_, err := record.Update(r, u, now, &o)
			return err
		}
	}
	separated := new(store.SeparatedError)
	for name, test := range map[string]struct {
		do   func(*record.Record) error
		want int
		as   any
	}{
		"replace nothing":                {replace(messages), 0, nil},
		"replace the newest":             {replace(messages-1, history[0]), 2, nil},    // One for the preview.
		"replace a result":               {replace(messages-2, result), messages, nil}, // The preview, too.
		"replace a result by none":       {replace(messages-3, history[0]), messages - 1, &separated},
		"clear a result":                 {update(&store.Update{KeepThrough: new(int32(messages - 3))}), 4, nil},
		"remove the newest":              {update(&store.Update{Sequences: []int32{messages}}), 2, nil},
		"remove a result":                {update(&store.Update{Sequences: []int32{messages - 1}}), messages - 1, &separated},
		"remove one that does not exist": {update(&store.Update{Sequences: []int32{messages + 1}}), 0, nil},
		"clear all":                      {update(&store.Update{KeepThrough: new(int32(0))}), messages, nil},
		"another version":                {update(&store.Update{KeepThrough: new(int32(0)), IfVersion: new(int32(99))}), 0, new(*store.VersionError)},
	} {
		r := d.record(t, false)
		reader := &chunkReader{divided: d, tb: t}
		r.Chunks = reader
		err := test.do(r)
		if (err != nil) != (test.as != nil) || err != nil && !errors.As(err, test.as) {
			t.Errorf("%s = %v, want %T", name, err, test.as)
		}
		if reader.read > test.want {
			t.Errorf("%s read %d chunks, want %d at most", name, reader.read, test.want)
		}
	}
}

// TestReplayReadsNoChunk checks that a retry that is replayed, and a write while a turn runs, read no chunk.
func TestReplayReadsNoChunk(t *testing.T) {
	o := store.Options{MaxMessages: 40}.WithDefaults()
	d := &divided{value: appended(t, nil, o, withData(), withData(), withData()), chunks: map[int32][]byte{}}
	d.write(t, d.record(t, false), 1)
	now := time.Unix(1_800_000_000, 0)
	a := &store.Append{ReplaceAfter: new(int32(1)), Request: &store.Request{ID: "r", Method: "m"}}
	u := &store.Update{KeepThrough: new(int32(1)), Request: &store.Request{ID: "s", Method: "m"}}
	apply := func() (reads int, err error) {
		for _, do := range []func(*record.Record) (*record.Outcome, error){
			func(r *record.Record) (*record.Outcome, error) { return record.Append(r, a, nil, nil, "", now, &o) },
			func(r *record.Record) (*record.Outcome, error) { return record.Update(r, u, now, &o) },
		} {
			r, reader := d.record(t, false), &chunkReader{divided: d, tb: t}
			r.Chunks = reader
			out, applyErr := do(r)
			err = errors.Join(err, applyErr)
			if out != nil && out.Record != nil {
				d.write(t, out.Record, 1)
			}
			reads += reader.read
		}
		return reads, err
	}
	if reads, err := apply(); err != nil || reads == 0 {
		t.Fatalf("first calls read %d chunks, %v", reads, err)
	}
	if reads, err := apply(); err != nil || reads > 0 {
		t.Errorf("second calls read %d chunks, %v, want none", reads, err)
	}
	begin := &store.Append{Begin: &parleyv1.Turn{Id: "turn"}}
	out, err := record.Append(d.record(t, false), begin, nil, nil, "", now, &o)
	if err != nil {
		t.Fatal(err)
	}
	d.write(t, out.Record, 1)
	a.Request, u.Request = nil, nil
	if reads, err := apply(); reads > 0 || !errors.As(err, new(*store.BusyError)) {
		t.Errorf("calls while a turn runs read %d chunks, %v, want BusyError", reads, err)
	}
}

// TestJoinOfOtherChunks removes messages of a conversation whose header has other counts than its chunks.
func TestJoinOfOtherChunks(t *testing.T) {
	o := store.Options{MaxMessages: 40}.WithDefaults()
	d := &divided{value: appended(t, nil, o, withData(), withData(), withData()), chunks: map[int32][]byte{}}
	d.write(t, d.record(t, false), 1)
	for name, change := range map[string]func(*record.Record){
		"fewer messages": func(r *record.Record) { r.Header.Chunks.Messages = 1 },
		"more messages":  func(r *record.Record) { r.Header.Chunks.Messages++ },
		"fewer bytes":    func(r *record.Record) { r.Header.Chunks.Bytes = 1 },
		"more bytes":     func(r *record.Record) { r.Header.Chunks.Bytes++ },
	} {
		r := d.record(t, false)
		r.Header = proto.CloneOf(r.Header)
		change(r)
		u := &store.Update{KeepThrough: new(int32(0))}
		if _, err := record.Update(r, u, time.Unix(1_800_000_000, 0), &o); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("Update with %s in the header = %v, want ErrCorrupt", name, err)
		}
	}
}

// TestRemoveFirstOfChunk removes the first message of a chunk while older chunks are retained. The chunk must be written
// again: no message before it was dropped.
func TestRemoveFirstOfChunk(t *testing.T) {
	o := store.Options{MaxMessages: 40}.WithDefaults()
	history := make([]*parleyv1.Message, 40)
	for i := range history {
		history[i] = &parleyv1.Message{Content: strings.Repeat("x", 100)}
	}
	d := &divided{value: appended(t, nil, o, history...), chunks: map[int32][]byte{}}
	d.write(t, d.record(t, false), 500)
	first := d.all(t)[2].First()
	u := &store.Update{Sequences: []int32{first}}
	out, err := record.Update(d.record(t, false), u, time.Unix(1_800_000_000, 0), &o)
	if err != nil {
		t.Fatal(err)
	}
	if n := d.write(t, out.Record, 500); n != 1 {
		t.Errorf("wrote %d chunks, want 1", n)
	}
	if got := d.all(t)[2].First(); got != first+1 {
		t.Errorf("the chunk begins at %d, want %d", got, first+1)
	}
	if got := d.record(t, true).Messages.Count(); got != 39 {
		t.Errorf("%d messages, want 39", got)
	}
}
