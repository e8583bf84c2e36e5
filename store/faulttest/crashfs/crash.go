package crashfs

import (
	"bytes"
	"errors"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
)

// Crash is a moment at which the machine may go down, for one file.
type Crash struct {
	// Position of the moment: so many writes and syncs were done.
	Position int
	synced   []byte
	unsynced []operation
}

// Loss is what a crash does to what was not synced.
type Loss string

// The kinds of loss.
const (
	// All of it is lost.
	All Loss = "all"
	// None of it is.
	None Loss = "none"
	// Newest: a random number of the newest writes.
	Newest Loss = "newest"
	// Some of it: any writes.
	Some Loss = "some"
	// Reordered: any writes, and the others came to the disk in another order.
	Reordered Loss = "reordered"
	// Torn: any sectors of any writes, which came in another order.
	Torn Loss = "torn"
)

// sector is how much a disk writes wholly or not at all, in bytes.
const sector = 512

// Crashes yields all moments from a position on at which the file of this name has unsynced
// writes, in order. A Crash is valid until the next one. It must have its name by now.
func (f *FS) Crashes(name string, from int) iter.Seq[*Crash] {
	f.log.mu.Lock()
	operations := slices.Clone(f.log.operations)
	f.log.mu.Unlock()
	child := f.root.GetChild(name)
	return func(yield func(*Crash) bool) {
		if child == nil {
			return
		}
		c := new(Crash)
		for i, o := range operations {
			switch {
			case o.file != child.Operations():
			case o.sync:
				for _, u := range c.unsynced {
					c.synced = u.apply(c.synced)
				}
				c.unsynced = nil
			default:
				c.unsynced = append(c.unsynced, o)
			}
			c.Position = i + 1
			if c.Position >= from && len(c.unsynced) > 0 && !yield(c) {
				return
			}
		}
	}
}

// Unsynced returns how many writes and changes of size were not synced; at least one.
func (c *Crash) Unsynced() int { return len(c.unsynced) }

// Resized reports whether the newest of them is a change of size.
func (c *Crash) Resized() bool { return c.unsynced[len(c.unsynced)-1].resize }

// WriteImage writes what the disk may hold to a new file, readable for its owner.
func (c *Crash) WriteImage(path string, loss Loss, random *rand.Rand) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Truncate(int64(len(c.synced))); err != nil {
		return err
	}
	// Most of a file may be empty: it was made larger to have room.
	const chunk = 64 << 10
	at, zeros := int64(0), make([]byte, chunk)
	for part := range slices.Chunk(c.synced, chunk) {
		if !bytes.Equal(part, zeros[:len(part)]) {
			if _, err := f.WriteAt(part, at); err != nil {
				return err
			}
		}
		at += int64(len(part))
	}
	for _, o := range c.kept(loss, random) {
		if o.resize {
			err = f.Truncate(o.at)
		} else {
			_, err = f.WriteAt(o.data, o.at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// kept chooses what comes to the disk of what was not synced.
func (c *Crash) kept(loss Loss, random *rand.Rand) []operation {
	all := c.unsynced
	switch loss {
	case All:
		return nil
	case Newest:
		return all[:random.IntN(len(all)+1)]
	case Some:
		return some(all, random)
	case Reordered:
		return shuffled(some(all, random), random)
	case Torn:
		return shuffled(some(sectors(some(all, random)), random), random)
	}
	return all
}

// some returns any of the operations, most of them or few.
func some(all []operation, random *rand.Rand) []operation {
	var kept []operation
	share := random.Float64()
	for _, o := range all {
		if random.Float64() < share {
			kept = append(kept, o)
		}
	}
	return kept
}

func shuffled(all []operation, random *rand.Rand) []operation {
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// sectors parts writes as the disk may. A change of size is not parted.
func sectors(all []operation) []operation {
	var parts []operation
	for _, o := range all {
		if o.resize {
			parts = append(parts, o)
			continue
		}
		for data, at := o.data, o.at; len(data) > 0; {
			n := min(int64(len(data)), sector-at%sector)
			parts = append(parts, operation{at: at, data: data[:n]})
			data, at = data[n:], at+n
		}
	}
	return parts
}
