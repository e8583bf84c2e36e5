package redisstore

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
)

// FuzzUnmarshalExtra decodes any bytes, and the same bytes with the right checksum: only the sizes in them can then be
// wrong, and must not end the program.
func FuzzUnmarshalExtra(f *testing.F) {
	e := &extra{
		lengths: [parts]int{1, 200, 70_000}, commits: withCommit(withCommit("", "12345678"), "abcdefgh"),
		sizes: []record.FrameSize{{Bytes: 20, Body: 18, Sequence: 1}, {Bytes: 300, Body: 297, Sequence: 1 << 20}},
	}
	for i := range parts {
		e.sums[i] = 0x01020304 * uint32(i+1)
	}
	f.Add(e.marshal())
	f.Add(new(extra).marshal())
	f.Add(append(new(extra).marshal(), 0xff))
	f.Add(append(new(extra).marshal(), 1, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= 4 {
			checked := append([]byte{}, b...)
			binary.BigEndian.PutUint32(checked, record.Checksum(b[4:]))
			if e, err := unmarshalExtra(string(checked)); err == nil {
				again, err := unmarshalExtra(string(e.marshal()))
				if err != nil || again.commits != e.commits || len(again.sizes) != len(e.sizes) || again.lengths != e.lengths {
					t.Errorf("decoded again = %+v, %v; want %+v", again, err, e)
				}
			}
		}
		if _, err := unmarshalExtra(string(b)); err != nil && !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("unmarshalExtra = %v, want ErrCorrupt", err)
		}
	})
}

func FuzzUnsealed(f *testing.F) {
	f.Add([]byte{}, []byte{})
	f.Add([]byte(sealed(store.Frame("frame"))), []byte(sealed(nil)))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		frames, err := unsealed(nil, []string{string(a), string(b)})
		switch {
		case err == nil && len(frames) != len(a)+len(b)-8:
			t.Errorf("unsealed = %d bytes of %d and %d", len(frames), len(a), len(b))
		case err != nil && !errors.Is(err, store.ErrCorrupt):
			t.Errorf("unsealed = %v, want ErrCorrupt", err)
		}
		if got, err := unsealed(nil, []string{sealed(a), sealed(b)}); err != nil || string(got) != string(a)+string(b) {
			t.Errorf("unsealed of sealed frames = %q, %v; want %q, %q", got, err, a, b)
		}
	})
}

func FuzzReadSummary(f *testing.F) {
	f.Add("uid 3 2 500 " + stamp(time.Unix(1_800_000_000, 0)) + " 1 0 4 99")
	f.Add("")
	f.Add("uid -3 2 x 99999999999999999999 1 0 4 99")
	f.Fuzz(func(_ *testing.T, text string) {
		_, _ = readSummary(text)
		_, _ = ephemeralOf(text)
	})
}

func FuzzUnmarshalState(f *testing.F) {
	state := records.State{Revision: 7, Counts: records.Of(1, 300), ExpireTime: time.Unix(1_800_000_000, 0)}
	f.Add("key", marshalState("key", state))
	f.Add("key", marshalState("key", records.State{Revision: 1}))
	f.Add("", "1 2 3 4  00000000")
	f.Fuzz(func(t *testing.T, key, text string) {
		s, err := unmarshalState(key, text)
		switch {
		case err != nil && !errors.Is(err, store.ErrCorrupt):
			t.Errorf("unmarshalState = %v, want ErrCorrupt", err)
		case err == nil:
			if again, err := unmarshalState(key, marshalState(key, s)); err != nil || again != s {
				t.Errorf("decoded again = %+v, %v; want %+v", again, err, s)
			}
		}
	})
}
