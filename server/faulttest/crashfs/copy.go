package crashfs

import (
	"context"
	"maps"
	"slices"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
)

// Mount mounts a copy of the file system on an empty directory. The copy is what a process finds that starts after all
// others were killed: nothing is lost yet, but a crash may still lose what was not synced.
func (c *Crash) Mount(ctx context.Context, dir string) (*FS, error) {
	f, err := Mount(dir)
	if err != nil {
		return nil, err
	}
	all := copies{log: f.log, nodes: map[fs.InodeEmbedder]fs.InodeEmbedder{c.root: f.root}}
	for original, s := range c.files {
		all.add(operation{node: original, resize: true, at: int64(len(s.synced))})
		all.add(operation{node: original, data: s.synced[:s.used]})
	}
	for original, l := range c.directories {
		var names []name
		for n, node := range l.synced {
			names = append(names, name{n, node})
		}
		all.add(operation{node: original, names: names})
	}
	f.SyncAll()
	for _, s := range c.files {
		all.add(s.unsynced...)
	}
	for _, l := range c.directories {
		all.add(l.unsynced...)
	}
	all.addChildren(ctx, c, f.root, c.root)
	return f, nil
}

// copies are the copies of files and directories by their originals.
type copies struct {
	log   *log
	nodes map[fs.InodeEmbedder]fs.InodeEmbedder
}

func (c copies) of(original fs.InodeEmbedder) fs.InodeEmbedder {
	if original != nil && c.nodes[original] == nil {
		switch original := original.(type) {
		case *directory:
			c.nodes[original] = &directory{log: c.log}
		case *file:
			c.nodes[original] = &file{log: c.log, mode: syscall.S_IFREG | 0o600, below: original.below}
		}
	}
	return c.nodes[original]
}

// add adds operations on originals to the log of the copies.
func (c copies) add(operations ...operation) {
	for _, o := range operations {
		node := c.of(o.node)
		if f, ok := node.(*file); ok {
			f.record(o)
			continue
		}
		o.node, o.names = node, slices.Clone(o.names)
		for i, n := range o.names {
			o.names[i].node = c.of(n.node)
		}
		c.log.add(o)
	}
}

// addChildren makes the copies of what a directory contains visible in its copy.
func (c copies) addChildren(ctx context.Context, crash *Crash, parent, original *directory) {
	l := crash.listing(original)
	names := maps.Clone(l.synced)
	for _, o := range l.unsynced {
		o.rename(names)
	}
	for name, node := range names {
		d, isDir := node.(*directory)
		mode := uint32(syscall.S_IFREG)
		if isDir {
			mode = syscall.S_IFDIR
		}
		copied := c.of(node)
		parent.AddChild(name, parent.NewPersistentInode(ctx, copied, fs.StableAttr{Mode: mode}), true)
		if child, ok := copied.(*directory); ok {
			c.addChildren(ctx, crash, child, d)
		}
	}
}
