package crashfs

import (
	"errors"
	"iter"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"github.com/hanwen/go-fuse/v2/fs"
)

// Crash is a state of the file system in which the machine may crash.
type Crash struct {
	// Position is the number of operations before the crash.
	Position    int
	root        *directory
	files       map[*file]*content
	directories map[*directory]*listing
	unsynced    int
	newest      operation
}

// content is a file on the disk.
type content struct {
	synced   []byte
	used     int64 // offset from which synced has zeros: a file may be grown long before it is written
	unsynced []operation
}

// listing is the names in a directory on the disk.
type listing struct {
	synced   map[string]fs.InodeEmbedder
	unsynced []operation
}

// Loss is the effect of a crash on unsynced operations.
type Loss string

// The kinds of loss. Names in a directory are never torn, and those that are not lost change in order.
const (
	// All unsynced operations are lost.
	All Loss = "all"
	// None of them is lost.
	None Loss = "none"
	// Newest loses a random number of the newest operations of each file and directory.
	Newest Loss = "newest"
	// Some loses random operations.
	Some Loss = "some"
	// Reordered loses random operations, and the other writes reach the disk in random order.
	Reordered Loss = "reordered"
	// Torn loses random sectors of random writes, and the others reach the disk in random order.
	Torn Loss = "torn"
)

// sector is the size in bytes that a disk writes atomically.
const sector = 512

// Crashes yields, in order, the states from position from on in which something is unsynced. A Crash is valid
// until the next one.
func (f *FS) Crashes(from int) iter.Seq[*Crash] {
	f.log.mu.Lock()
	operations := slices.Clone(f.log.operations)
	f.log.mu.Unlock()
	return func(yield func(*Crash) bool) {
		c := &Crash{root: f.root, files: map[*file]*content{}, directories: map[*directory]*listing{}}
		for i, o := range operations {
			c.add(o)
			c.Position = i + 1
			if c.Position >= from && c.unsynced > 0 && !yield(c) {
				return
			}
		}
	}
}

// add adds the next operation.
func (c *Crash) add(o operation) {
	c.newest = o
	switch {
	case o.node == nil:
		for f := range c.files {
			c.sync(f)
		}
		for d := range c.directories {
			c.sync(d)
		}
	case o.sync:
		c.sync(o.node)
	default:
		c.unsynced++
		switch node := o.node.(type) {
		case *file:
			s := c.content(node)
			s.unsynced = append(s.unsynced, o)
		case *directory:
			l := c.listing(node)
			l.unsynced = append(l.unsynced, o)
		}
	}
}

// sync makes the unsynced operations of a file or a directory durable.
func (c *Crash) sync(node fs.InodeEmbedder) {
	switch node := node.(type) {
	case *file:
		s := c.content(node)
		for _, o := range s.unsynced {
			s.synced = o.apply(s.synced)
			if !o.resize {
				s.used = max(s.used, o.at+int64(len(o.data)))
			}
			s.used = min(s.used, int64(len(s.synced)))
		}
		c.unsynced -= len(s.unsynced)
		s.unsynced = nil
	case *directory:
		l := c.listing(node)
		for _, o := range l.unsynced {
			o.rename(l.synced)
		}
		c.unsynced -= len(l.unsynced)
		l.unsynced = nil
	}
}

func (c *Crash) content(f *file) *content {
	if c.files[f] == nil {
		c.files[f] = new(content)
	}
	return c.files[f]
}

func (c *Crash) listing(d *directory) *listing {
	if c.directories[d] == nil {
		c.directories[d] = &listing{synced: map[string]fs.InodeEmbedder{}}
	}
	return c.directories[d]
}

// rename applies a change of names.
func (o *operation) rename(names map[string]fs.InodeEmbedder) {
	for _, n := range o.names {
		if n.node == nil {
			delete(names, n.name)
		} else {
			names[n.name] = n.node
		}
	}
}

// Unsynced returns the number of unsynced operations, at least 1.
func (c *Crash) Unsynced() int { return c.unsynced }

// Resized reports whether the newest operation is a resize of a file.
func (c *Crash) Resized() bool { return c.newest.resize }

// Renamed reports whether the newest operation is a change of names in a directory.
func (c *Crash) Renamed() bool { return len(c.newest.names) > 0 }

// Below reports whether the newest operation is one on a file that is not in the root directory.
func (c *Crash) Below() bool {
	f, ok := c.newest.node.(*file)
	return ok && f.below
}

// Sectors returns the size of the newest operation in sectors, if it is a write, and otherwise 0.
func (c *Crash) Sectors() int { return (len(c.newest.data) + sector - 1) / sector }

// WriteImage writes a possible content of the disk to an empty directory. Files get mode 0600, directories 0700.
func (c *Crash) WriteImage(dir string, loss Loss, random *rand.Rand) error {
	return c.writeDirectory(dir, c.root, loss, random)
}

func (c *Crash) writeDirectory(path string, d *directory, loss Loss, random *rand.Rand) error {
	l := c.listing(d)
	names := maps.Clone(l.synced)
	for _, o := range l.written(loss, random) {
		o.rename(names)
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		var err error
		switch node := names[name].(type) {
		case *file:
			err = c.content(node).writeImage(filepath.Join(path, name), loss, random)
		case *directory:
			child := filepath.Join(path, name)
			if err = os.Mkdir(child, 0o700); err == nil {
				err = c.writeDirectory(child, node, loss, random)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// written chooses the unsynced changes of names that reach the disk.
func (l *listing) written(loss Loss, random *rand.Rand) []operation {
	switch loss {
	case All:
		return nil
	case Newest:
		return l.unsynced[:random.IntN(len(l.unsynced)+1)]
	case Some, Reordered, Torn:
		return some(l.unsynced, random)
	}
	return l.unsynced
}

// writeImage writes a possible content of the file to a new file with mode 0600.
func (s *content) writeImage(path string, loss Loss, random *rand.Rand) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Truncate(int64(len(s.synced))); err != nil {
		return err
	}
	if _, err := f.WriteAt(s.synced[:s.used], 0); err != nil {
		return err
	}
	for _, o := range s.written(loss, random) {
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
func (s *content) written(loss Loss, random *rand.Rand) []operation {
	all := s.unsynced
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
