package crashfs

import (
	"bytes"
	"errors"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
)

// Crash is a state of one file in which the machine may crash.
type Crash struct {
	// Position is the number of writes and syncs before the crash.
	Position int
	synced   []byte
	unsynced []operation
}

// Loss is the effect of a crash on unsynced writes.
type Loss string

// The kinds of loss.
const (
	// All unsynced writes are lost.
	All Loss = "all"
	// None of them is lost.
	None Loss = "none"
	// Newest loses a random number of the newest writes.
	Newest Loss = "newest"
	// Some loses random writes.
	Some Loss = "some"
	// Reordered loses random writes, and the others reach the disk in random order.
	Reordered Loss = "reordered"
	// Torn loses random sectors of random writes, and the others reach the disk in random order.
	Torn Loss = "torn"
)

// sector is the size in bytes that a disk writes atomically.
const sector = 512

// Crashes yields, in order, the states from position from on in which the named file has unsynced
// writes. The file must have this name now. A Crash is valid until the next one.
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

// Unsynced returns the number of unsynced writes and resizes, at least 1.
func (c *Crash) Unsynced() int { return len(c.unsynced) }

// Resized reports whether the newest of them is a resize.
func (c *Crash) Resized() bool { return c.unsynced[len(c.unsynced)-1].resize }

// WriteImage writes a possible content of the disk to a new file with mode 0600.
func (c *Crash) WriteImage(path string, loss Loss, random *rand.Rand) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Truncate(int64(len(c.synced))); err != nil {
		return err
	}
	// Skip zeros: most of a file that was grown in advance is empty.
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
	for _, o := range c.written(loss, random) {
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

// written chooses the unsynced operations that reach the disk.
func (c *Crash) written(loss Loss, random *rand.Rand) []operation {
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

// some returns a random share of the operations.
func some(all []operation, random *rand.Rand) []operation {
	var chosen []operation
	share := random.Float64()
	for _, o := range all {
		if random.Float64() < share {
			chosen = append(chosen, o)
		}
	}
	return chosen
}

func shuffled(all []operation, random *rand.Rand) []operation {
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// sectors splits writes at the boundaries of sectors. It does not split a resize.
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
