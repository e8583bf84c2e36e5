package memstore

import (
	"slices"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// messages are the messages of a conversation. They never change: a write makes others, which may share their memory.
// The zero value has none.
type messages struct {
	frames store.Frames // the capacity may be larger than the length, see with
	before int          // bytes of the same array before frames; those of dropped messages
}

// all returns the messages. To append to them does not change m.
func (m messages) all() store.Frames { return slices.Clip(m.frames) }

// with returns the messages after a write of a record that was decoded with those of m. If the write has dropped only
// the oldest, the others stay where they are and the new ones are written after them, so the time of an append does not
// grow with the messages that are kept. The result may share memory with m and with later results of the same m, so
// only the last of them is valid.
func (m messages) with(r *record.Record) messages {
	kept, added := r.TailFrames()
	before := m.before + len(m.frames) - len(kept)
	if !isEnd(m.frames, kept) || before > len(kept)+len(added) {
		// Others were removed, or the dropped ones take most of the memory.
		return messages{frames: append(append(make(store.Frames, 0, len(kept)+len(added)), kept...), added...)}
	}
	frames := m.frames[len(m.frames)-len(kept):]
	if cap(frames) < len(kept)+len(added) {
		before = 0 // append allocates another array.
	}
	return messages{frames: append(frames, added...), before: before}
}

// isEnd reports whether end is the end of all, in the same memory.
func isEnd(all, end store.Frames) bool {
	return len(end) > 0 && len(end) <= len(all) && &all[len(all)-1] == &end[len(end)-1]
}
