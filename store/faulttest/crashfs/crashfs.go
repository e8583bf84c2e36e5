// Package crashfs is a file system in memory, mounted through FUSE, that remembers every write
// and every sync in order, and tells what a disk may hold of a file if the machine goes down
// between any two of them. Begin with [Mount].
//
// It is one flat directory. Making, renaming and removing files counts as synced at once: what
// may be torn is what files hold.
//
// The process that has mounted it must not map its files into memory, nor open them without
// need: who waits for a page holds up the Go scheduler, which is to answer.
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

// FS is a mounted file system. It keeps all that is ever written to it.
type FS struct {
	server *fuse.Server
	root   *directory
	log    *log
}

// Mount mounts a new file system on an empty directory. The caller must Unmount it.
func Mount(dir string) (*FS, error) {
	l := new(log)
	root := &directory{log: l}
	server, err := fs.Mount(dir, root, &fs.Options{MountOptions: fuse.MountOptions{
		FsName: "crashfs", Name: "crashfs", DirectMountStrict: true, // As root, without a helper program.
	}})
	if err != nil {
		return nil, fmt.Errorf("mount on %s: %w", dir, err)
	}
	return &FS{server: server, root: root, log: l}, nil
}

// Unmount ends the file system. It fails while a file is open. What was written can still be
// asked for.
func (f *FS) Unmount() error { return f.server.Unmount() }

// Position returns how many writes and syncs there were so far.
func (f *FS) Position() int {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	return len(f.log.operations)
}

// Lie has every sync from now on say that it was done, and do nothing.
func (f *FS) Lie() {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	f.log.lies = true
}

// log is what was done to the files, in order.
type log struct {
	mu         sync.Mutex // also of what files hold
	operations []operation
	lies       bool
}

// operation is a write, a change of size, or a sync.
type operation struct {
	file   *file
	sync   bool
	resize bool
	at     int64 // of a write, or the new size
	data   []byte
}

// directory is the root.
type directory struct {
	fs.Inode
	log *log
}

var (
	_ fs.NodeCreater  = (*directory)(nil)
	_ fs.NodeRenamer  = (*directory)(nil)
	_ fs.NodeUnlinker = (*directory)(nil)
	_ fs.NodeFsyncer  = (*directory)(nil)
)

// Create makes an empty file.
func (d *directory) Create(ctx context.Context, _ string, _, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	f := &file{log: d.log, mode: mode}
	out.Mode = mode
	return d.NewPersistentInode(ctx, f, fs.StableAttr{Mode: syscall.S_IFREG}), nil, 0, 0
}

// Rename allows it, the library does it.
func (d *directory) Rename(_ context.Context, _ string, _ fs.InodeEmbedder, _ string, flags uint32) syscall.Errno {
	if flags != 0 {
		return syscall.EINVAL
	}
	return 0
}

// Unlink allows it, the library does it.
func (d *directory) Unlink(context.Context, string) syscall.Errno { return 0 }

// Fsync has nothing to do.
func (d *directory) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno { return 0 }

// file is a regular file.
type file struct {
	fs.Inode
	log  *log
	mode uint32
	data []byte
}

var (
	_ fs.NodeOpener    = (*file)(nil)
	_ fs.NodeReader    = (*file)(nil)
	_ fs.NodeWriter    = (*file)(nil)
	_ fs.NodeFsyncer   = (*file)(nil)
	_ fs.NodeGetattrer = (*file)(nil)
	_ fs.NodeSetattrer = (*file)(nil)
)

// Open lets the kernel keep pages, without which a file cannot be mapped and shared.
func (f *file) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_KEEP_CACHE, 0
}

// Read returns what was written last, synced or not.
func (f *file) Read(_ context.Context, _ fs.FileHandle, to []byte, at int64) (fuse.ReadResult, syscall.Errno) {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	n := copy(to, f.data[min(at, int64(len(f.data))):])
	return fuse.ReadResultData(to[:n]), 0
}

// Write notes what is written.
func (f *file) Write(_ context.Context, _ fs.FileHandle, data []byte, at int64) (uint32, syscall.Errno) {
	f.note(operation{at: at, data: slices.Clone(data)})
	return uint32(len(data)), 0
}

// Fsync notes that all that was written before is on the disk.
func (f *file) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	f.note(operation{sync: true})
	return 0
}

// Getattr tells size and mode. Times stand still: a new one would have the kernel drop pages.
func (f *file) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	out.Mode, out.Size, out.Blksize = f.mode, uint64(len(f.data)), 4096
	return 0
}

// Setattr changes size and mode.
func (f *file) Setattr(ctx context.Context, handle fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if size, ok := in.GetSize(); ok {
		f.note(operation{resize: true, at: int64(size)})
	}
	if mode, ok := in.GetMode(); ok {
		f.log.mu.Lock()
		f.mode = mode
		f.log.mu.Unlock()
	}
	return f.Getattr(ctx, handle, out)
}

// note does an operation to the file and adds it to the log.
func (f *file) note(o operation) {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	if o.sync && f.log.lies {
		return
	}
	o.file = f
	f.data = o.apply(f.data)
	f.log.operations = append(f.log.operations, o)
}

// apply returns what a file holds that held data.
func (o *operation) apply(data []byte) []byte {
	size := int64(len(data))
	switch {
	case o.resize:
		size = o.at
	case !o.sync:
		size = max(size, o.at+int64(len(o.data)))
	}
	if grow := size - int64(len(data)); grow > 0 {
		data = append(data, make([]byte, grow)...)
	}
	data = data[:size:size] // What was cut off must not come back.
	copy(data[min(o.at, size):], o.data)
	return data
}
