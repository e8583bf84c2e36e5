package records_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/records"
)

func full() *parleyv1.Record {
	return &parleyv1.Record{
		Key: "key", Value: []byte("value"), MediaType: "text/plain", Revision: 7,
		UpdateTime: timestamppb.New(time.Unix(1_800_000_000, 5)), Labels: map[string]string{"a": "1", "b": "2"},
		ExpireTime: timestamppb.New(time.Unix(1_900_000_000, 0)),
	}
}

func marshal(tb testing.TB, r *parleyv1.Record) []byte {
	tb.Helper()
	b, err := records.Marshal(r)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func TestRoundTrip(t *testing.T) {
	for name, r := range map[string]*parleyv1.Record{
		"full": full(), "without fields": {Key: "k", Revision: 1}, "large": {
			Key: "k", Revision: 1 << 40, Value: bytes.Repeat([]byte{0, 0xff}, 1<<20),
		},
	} {
		b := marshal(t, r)
		want := proto.CloneOf(r)
		want.SizeBytes = int32(len(r.GetValue()))
		if got, err := records.Unmarshal(r.GetKey(), b); err != nil || !proto.Equal(got, want) {
			t.Errorf("%s: Unmarshal = %v, %v", name, got, err)
		}
		want.Value = nil
		if got, err := records.UnmarshalHead(r.GetKey(), b); err != nil || !proto.Equal(got, want) {
			t.Errorf("%s: UnmarshalHead = %v, %v", name, got, err)
		}
		state, err := records.StateOf(r.GetKey(), b)
		if size := store.RecordBytes(r); err != nil || state.Revision != r.GetRevision() ||
			state.Counts != records.Of(1, size) || state.ExpireTime.IsZero() != (r.GetExpireTime() == nil) {
			t.Errorf("%s: StateOf = %+v, %v, want %d bytes", name, state, err, size)
		}
	}
}

// TestDamage changes each byte of a value, and cuts and extends it. All of these are found. A damaged value of a record
// does not affect its head.
func TestDamage(t *testing.T) {
	r := full()
	b := marshal(t, r)
	damaged := map[string][]byte{"empty": nil, "longer": append(bytes.Clone(b), 0)}
	for i := range b {
		for _, bit := range []byte{1, 0x80} {
			c := bytes.Clone(b)
			c[i] ^= bit
			damaged[string(rune(i))+" changed "+string(rune(bit))] = c
		}
		damaged[string(rune(i))+" cut"] = b[:i]
	}
	for name, c := range damaged {
		if got, err := records.Unmarshal("key", c); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("%q: Unmarshal = %v, %v, want ErrCorrupt", name, got, err)
		}
	}
	if got, err := records.Unmarshal("kez", b); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("Unmarshal under another key = %v, %v, want ErrCorrupt", got, err)
	}
	b[len(b)-1]++
	if got, err := records.UnmarshalHead("key", b); err != nil || got.GetRevision() != 7 {
		t.Errorf("UnmarshalHead with a damaged value = %v, %v, want the head", got, err)
	}
	if _, _, err := records.Copy("key", b, 1, time.Unix(0, 0)); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("Copy of a damaged value = %v, want ErrCorrupt", err)
	}
}

func TestMarshalBadText(t *testing.T) {
	if b, err := records.Marshal(&parleyv1.Record{Key: "k", Revision: 1, MediaType: "\xff"}); err == nil {
		t.Errorf("Marshal with invalid UTF-8 = %q, want an error", b)
	}
}

func TestCopy(t *testing.T) {
	now := time.Unix(1_850_000_000, 0)
	b, state, err := records.Copy("key", marshal(t, full()), 3, now)
	if err != nil {
		t.Fatal(err)
	}
	want := full()
	want.Revision, want.UpdateTime, want.SizeBytes, want.ExpireTime = 3, timestamppb.New(now), 5, nil
	if got, err := records.Unmarshal("key", b); err != nil || !proto.Equal(got, want) {
		t.Errorf("Copy = %v, %v, want %v", got, err, want)
	}
	if stored, err := records.StateOf("key", b); err != nil || stored != state {
		t.Errorf("state of Copy = %+v, want %+v, %v", state, stored, err)
	}
}
