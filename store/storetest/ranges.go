package storetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// ranges compares reads of parts of a conversation with what a read of all its messages contains.
func (s Subject) ranges(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	f := s.open(t, func(o *store.Options) { o.MaxMessages, o.MaxConversationBytes = 150, 1<<20 })
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed = %d", seed)
		}
	})
	for n := range 12 {
		for range random.IntN(30) {
			var batch []*parleyv1.Message
			for range 1 + random.IntN(3) {
				batch = append(batch, user(strings.Repeat("x", random.IntN(300))))
			}
			f.append("a", batch...)
		}
		if n%3 == 1 { // Leave gaps.
			all := sequencesOf(f.read("a").Messages)
			random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			f.do(&store.Update{ConversationID: "a", Sequences: all[:len(all)/3]})
		}
		if n%5 == 4 {
			last := f.read("a").Conversation.GetLastSequence()
			f.do(&store.Update{ConversationID: "a", KeepThrough: new(last - int32(random.IntN(20)))})
		}
		f.append("a", user("newest"))
		all := f.read("a")
		for range 60 {
			f.checkRange(all, randomRange(random, all.Conversation.GetLastSequence()))
		}
		if s.Durable && n%4 == 3 {
			f.reopen(nil)
		}
	}
	f.do(&store.Update{ConversationID: "a", KeepThrough: new(int32(0))})
	none := f.read("a")
	for range 20 {
		f.checkRange(none, randomRange(random, 5))
	}
}

// randomRange returns a read of a part of a conversation with messages up to a sequence.
func randomRange(random *rand.Rand, last int32) store.Read {
	oneOf := func(n int32) int32 { // 0 half of the time
		if random.IntN(2) == 0 {
			return 0
		}
		return random.Int32N(n + 2)
	}
	q := store.Read{
		Tenant: tenant, ConversationID: "a", After: oneOf(last), Before: oneOf(last), Newest: random.IntN(40) - 5,
		Oldest: random.IntN(2) == 0, WithOldestSequence: random.IntN(2) == 0, Shared: random.IntN(2) == 0,
	}
	if random.IntN(2) == 0 {
		q.MaxBytes = 1 + random.IntN(10_000)
	}
	return q
}

// checkRange compares the result of a read with that of a read of all messages.
func (f *fixture) checkRange(all *store.Snapshot, q store.Read) {
	f.t.Helper()
	got, err := f.store.Read(f.t.Context(), &q)
	if err != nil {
		f.t.Fatalf("Read(%+v): %v", q, err)
	}
	var want []store.Frame
	before := 0
	for frame := range all.Messages.All() {
		if sequence := frame.Sequence(); sequence > q.After && (q.Before == 0 || sequence < q.Before) {
			want = append(want, frame)
		} else if sequence <= q.After {
			before++
		}
	}
	within := len(want)
	if q.Oldest {
		slices.Reverse(want)
	}
	size := 0 // The message that is looked at is the last one.
	for i, frame := range slices.Backward(want) {
		size += len(frame)
		taken := len(want) - 1 - i
		if q.Newest == 0 || taken > 0 && (q.Newest > 0 && taken >= q.Newest || q.MaxBytes > 0 && size > q.MaxBytes) {
			want = want[i+1:]
			break
		}
	}
	left := within - len(want)
	if q.Oldest {
		slices.Reverse(want)
	}
	what := fmt.Sprintf("Read(%+v)", q)
	same(f.t, what, sequencesOf(got.Messages), sequencesOf(slices.Concat(asBytes(want)...)))
	if q.Newest == 0 {
		return
	}
	if got.MoreMessages != (left > 0) {
		f.t.Errorf("%s: MoreMessages = %t, %d messages were left out", what, got.MoreMessages, left)
	}
	oldest := sequencesOf(all.Messages)
	if q.WithOldestSequence && len(oldest) > 0 && got.OldestSequence != oldest[0] {
		f.t.Errorf("%s: OldestSequence = %d, want %d", what, got.OldestSequence, oldest[0])
	}
	if q.MaxBytes > 0 && !q.Oldest && q.Before == 0 {
		same(f.t, what+": offsets", got.Offsets(), all.Offsets()[before+left:])
	}
}

// sequencesOf returns the sequences of messages.
func sequencesOf(frames store.Frames) (sequences []int32) {
	for frame := range frames.All() {
		sequences = append(sequences, frame.Sequence())
	}
	return sequences
}

func asBytes(frames []store.Frame) (all [][]byte) {
	for _, frame := range frames {
		all = append(all, frame)
	}
	return all
}
