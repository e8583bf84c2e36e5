// Package crashfs implements a file system in memory, mounted through FUSE, that records every write,
// every change of a directory and every sync in order. For a crash between any two of them it returns the
// possible contents of the disk.
//
// The rules are those of POSIX: a sync of a file makes its content durable, and a sync of a directory the
// names in it. A file whose name is not synced may be missing after a crash, also if its content is synced.
//
// The process that mounts it must not map its files into memory, and should not open them. A thread
// that waits for a page may block the Go scheduler, which has to serve that page. Start at [Mount].
package crashfs

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// FS is a mounted file system. It keeps all data that is ever written to it in memory.
type FS struct {
	server *fuse.Server
	root   *directory
	log    *log
}

// Mount mounts a new file system on an empty directory. The caller must call Unmount.
func Mount(dir string) (*FS, error) {
	l := new(log)
	root := &directory{log: l}
	server, err := fs.Mount(dir, root, &fs.Options{MountOptions: fuse.MountOptions{
		FsName: "crashfs", Name: "crashfs", DirectMountStrict: true, // Mounts as root, without fusermount.
	}})
	if err != nil {
		return nil, fmt.Errorf("mount on %s: %w", dir, err)
	}
	return &FS{server: server, root: root, log: l}, nil
}

// Unmount unmounts the file system. It fails while a file is open. Crashes remains usable.
func (f *FS) Unmount() error { return f.server.Unmount() }

// Position returns the number of operations so far.
func (f *FS) Position() int {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	return len(f.log.operations)
}

// Lie makes every later sync succeed without an effect.
func (f *FS) Lie() {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	f.log.lies = true
}

// SyncAll makes everything durable.
func (f *FS) SyncAll() {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	f.log.operations = append(f.log.operations, operation{sync: true})
}

// log is the sequence of operations on the files and directories.
type log struct {
	mu         sync.Mutex // guards also the content of files
	operations []operation
	lies       bool
}

// operation is a write, a resize, a change of names, or a sync.
type operation struct {
	node   fs.InodeEmbedder // a *file or a *directory; nil for a sync of all of them
	sync   bool
	resize bool
	at     int64 // of a write, or the new size
	data   []byte
	names  []name // of a directory
}

// name is a new name in a directory, or a removed one, without a node.
type name struct {
	name string
	node fs.InodeEmbedder
}

// directory is a directory.
type directory struct {
	fs.Inode
	log *log
}

var (
	_ fs.NodeCreater  = (*directory)(nil)
	_ fs.NodeMkdirer  = (*directory)(nil)
	_ fs.NodeRenamer  = (*directory)(nil)
	_ fs.NodeUnlinker = (*directory)(nil)
	_ fs.NodeRmdirer  = (*directory)(nil)
	_ fs.NodeFsyncer  = (*directory)(nil)
)

// Create creates an empty file.
func (d *directory) Create(
	ctx context.Context, created string, _, mode uint32, out *fuse.EntryOut,
) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	f := &file{log: d.log, mode: mode, below: !d.IsRoot()}
	out.Mode = mode
	d.log.add(operation{node: d, names: []name{{created, f}}})
	return d.NewPersistentInode(ctx, f, fs.StableAttr{Mode: syscall.S_IFREG}), nil, 0, 0
}

// Mkdir creates an empty directory.
func (d *directory) Mkdir(ctx context.Context, created string, mode uint32, out *fuse.EntryOut) (
	*fs.Inode, syscall.Errno,
) {
	child := &directory{log: d.log}
	out.Mode = mode
	d.log.add(operation{node: d, names: []name{{created, child}}})
	return d.NewPersistentInode(ctx, child, fs.StableAttr{Mode: syscall.S_IFDIR}), 0
}

// Rename allows every rename within the directory without flags. The library does it.
func (d *directory) Rename(_ context.Context, from string, parent fs.InodeEmbedder, to string, flags uint32,
) syscall.Errno {
	child := d.GetChild(from)
	if flags != 0 || parent.EmbeddedInode() != d.EmbeddedInode() || child == nil {
		return syscall.EINVAL
	}
	d.log.add(operation{node: d, names: []name{{from, nil}, {to, child.Operations()}}})
	return 0
}

// Unlink allows every removal of a file. The library does it.
func (d *directory) Unlink(_ context.Context, removed string) syscall.Errno {
	d.log.add(operation{node: d, names: []name{{removed, nil}}})
	return 0
}

// Rmdir allows every removal of an empty directory. The library does it.
func (d *directory) Rmdir(ctx context.Context, removed string) syscall.Errno {
	if child := d.GetChild(removed); child != nil && len(child.Children()) > 0 {
		return syscall.ENOTEMPTY
	}
	return d.Unlink(ctx, removed)
}

// Fsync records that all previous changes of the directory are on the disk.
func (d *directory) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	d.log.add(operation{node: d, sync: true})
	return 0
}

// add appends an operation.
func (l *log) add(o operation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !o.sync || !l.lies {
		l.operations = append(l.operations, o)
	}
}

// file is a regular file.
type file struct {
	fs.Inode
	log   *log
	mode  uint32
	below bool // in a directory other than the root
	data  []byte
}

var (
	_ fs.NodeOpener    = (*file)(nil)
	_ fs.NodeReader    = (*file)(nil)
	_ fs.NodeWriter    = (*file)(nil)
	_ fs.NodeFsyncer   = (*file)(nil)
	_ fs.NodeGetattrer = (*file)(nil)
	_ fs.NodeSetattrer = (*file)(nil)
)

// Open allows the kernel to keep cached pages, which a shared mapping of the file needs.
func (f *file) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_KEEP_CACHE, 0
}

// Read returns the newest data, synced or not.
func (f *file) Read(_ context.Context, _ fs.FileHandle, to []byte, at int64) (fuse.ReadResult, syscall.Errno) {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	n := copy(to, f.data[min(at, int64(len(f.data))):])
	return fuse.ReadResultData(to[:n]), 0
}

// Write records a write.
func (f *file) Write(_ context.Context, _ fs.FileHandle, data []byte, at int64) (uint32, syscall.Errno) {
	f.record(operation{at: at, data: slices.Clone(data)})
	return uint32(len(data)), 0
}

// Fsync records that all previous writes are on the disk.
func (f *file) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	f.log.add(operation{node: f, sync: true})
	return 0
}

// Getattr returns size and mode. Times are constant: a new time would make the kernel drop its pages.
func (f *file) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	out.Mode, out.Size, out.Blksize = f.mode, uint64(len(f.data)), 4096
	return 0
}

// Setattr changes size and mode.
func (f *file) Setattr(ctx context.Context, handle fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if size, ok := in.GetSize(); ok {
		f.record(operation{resize: true, at: int64(size)})
	}
	if mode, ok := in.GetMode(); ok {
		f.log.mu.Lock()
		f.mode = mode
		f.log.mu.Unlock()
	}
	return f.Getattr(ctx, handle, out)
}

// record applies a write or a resize to the file and appends it to the log.
func (f *file) record(o operation) {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	o.node = f
	f.data = o.apply(f.data)
	f.log.operations = append(f.log.operations, o)
}

// apply returns the content of a file after a write or a resize, for the content data before it.
func (o *operation) apply(data []byte) []byte {
	size := max(int64(len(data)), o.at+int64(len(o.data)))
	if o.resize {
		size = o.at
	}
	if grow := size - int64(len(data)); grow > 0 {
		data = append(data, make([]byte, grow)...)
	}
	data = data[:size:size] // The capacity ends here, so that a later append does not restore truncated data.
	copy(data[min(o.at, size):], o.data)
	return data
}
