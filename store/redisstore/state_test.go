package redisstore

import (
	"errors"
	"testing"
	"time"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/records"
)

// TestDamagedState changes each byte of the state of a record.
func TestDamagedState(t *testing.T) {
	state := records.State{Revision: 7, Counts: records.Of(1, 300), ExpireTime: time.Unix(0, 1_800_000_000_123_456_789)}
	encoded := marshalState("key", state)
	if got, err := unmarshalState("key", encoded); err != nil || got != state {
		t.Errorf("unmarshalState = %v, %v, want %v", got, err, state)
	}
	if _, err := unmarshalState("other", encoded); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("unmarshalState of another key = %v, want ErrCorrupt", err)
	}
	for i := range encoded {
		damaged := []byte(encoded)
		damaged[i] ^= 1
		if _, err := unmarshalState("key", string(damaged)); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("unmarshalState(%q) = %v, want ErrCorrupt", damaged, err)
		}
	}
}
