package rpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// copies is a Backuper of one backup at a time, all of the same bytes.
type copies struct {
	bytes []byte
	fault error // met in place of the end
	slot  chan struct{}
}

func newCopies(size int) *copies {
	c := &copies{bytes: make([]byte, size), slot: make(chan struct{}, 1)}
	for i := range c.bytes {
		c.bytes[i] = byte(i % 251)
	}
	return c
}

// Backup returns the bytes.
func (c *copies) Backup(ctx context.Context) (*store.Backup, error) {
	select {
	case c.slot <- struct{}{}:
	default:
		return nil, store.ErrBackupRunning
	}
	size := int64(len(c.bytes))
	if c.fault != nil {
		size++
	}
	return &store.Backup{ReadCloser: &copied{Reader: io.MultiReader(bytes.NewReader(c.bytes), &failing{c.fault}), slot: c.slot}, Size: size}, ctx.Err()
}

// copied is one backup.
type copied struct {
	io.Reader
	slot chan struct{}
}

// Close makes room for the next.
func (c *copied) Close() error {
	<-c.slot
	return nil
}

type failing struct{ err error }

func (f *failing) Read([]byte) (int, error) {
	if f.err == nil {
		return 0, io.EOF
	}
	return 0, f.err
}

func openBackups(t *testing.T, c *copies) *fixture {
	t.Helper()
	return open(t, func(s *setup) { s.Backuper = c })
}

// backUp returns what a backup brings, and the sizes that its responses name.
func (f *fixture) backUp(ctx context.Context) (got []byte, sizes []int64, err error) {
	stream, err := f.admin.BackupStore(ctx, &parleyv1.BackupStoreRequest{})
	if err != nil {
		return nil, nil, err
	}
	for {
		reply, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return got, sizes, nil
		} else if err != nil {
			return got, sizes, err
		}
		got, sizes = append(got, reply.GetChunk()...), append(sizes, reply.GetSizeBytes())
	}
}

func TestBackupStore(t *testing.T) {
	for _, size := range []int{1, backupChunk, backupChunk + 1, 5*backupChunk - 1} {
		c := newCopies(size)
		f := openBackups(t, c)
		for range 2 {
			got, sizes, err := f.backUp(t.Context())
			if err != nil || !bytes.Equal(got, c.bytes) {
				t.Errorf("%d bytes: got %d, %v", size, len(got), err)
			}
			if want := (size + backupChunk - 1) / backupChunk; len(sizes) != want || sizes[0] != int64(size) {
				t.Errorf("%d bytes: %d responses name the sizes %v, want %d, the first with the size", size, len(sizes), sizes, want)
			}
		}
		if got := f.log.lines("level=INFO", "backed up", "sent="); len(got) != 2 {
			t.Errorf("%d lines in the log, want 2", len(got))
		}
	}
}

func TestBackupStoreThatFails(t *testing.T) {
	c := newCopies(3 * backupChunk)
	c.fault = errors.New("bad sector in " + secret)
	f := openBackups(t, c)
	got, _, err := f.backUp(t.Context())
	wantError(t, err, codes.Internal, "INTERNAL")
	if len(got) != 3*backupChunk {
		t.Errorf("%d bytes had come", len(got))
	}
	if len(c.slot) != 0 {
		t.Error("the backup was not closed")
	}
	if got := f.log.lines("level=INFO", "backup broken off"); len(got) != 1 {
		t.Errorf("%d lines in the log, want 1", len(got))
	}
}

func TestBackupStoreUnsupported(t *testing.T) {
	_, _, err := open(t, nil).backUp(t.Context())
	wantError(t, err, codes.FailedPrecondition, "BACKUP_UNSUPPORTED")
}

func TestBackupStoreNeedsAdmin(t *testing.T) {
	f := open(t, func(s *setup) { s.Authenticate, s.Backuper = signIn, newCopies(1) })
	_, _, err := f.backUp(as(t, "tenant", "a"))
	wantError(t, err, codes.PermissionDenied, "PERMISSION_DENIED")
	if _, _, err := f.backUp(as(t, "tenant", "a", "role", "admin")); err != nil {
		t.Error(err)
	}
}

// TestSlowBackup: a client that takes nothing for half a minute loses its stream, and others
// can have their backup then.
func TestSlowBackup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCopies(16 << 20)
		f := openBackups(t, c)
		stream, err := f.admin.BackupStore(t.Context(), &parleyv1.BackupStoreRequest{})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		_, _, err = f.backUp(t.Context())
		if got := wantError(t, err, codes.ResourceExhausted, "BACKUP_RUNNING"); got.retry == 0 {
			t.Error("nothing says that a retry helps")
		}
		c.slot <- struct{}{} // Waits for the other to go.
		<-c.slot
		for err == nil || toldBy(err).reason == "BACKUP_RUNNING" {
			_, err = stream.Recv()
		}
		wantError(t, err, codes.ResourceExhausted, "SLOW_READER")
		if got, _, err := f.backUp(t.Context()); err != nil || !bytes.Equal(got, c.bytes) {
			t.Errorf("afterwards: %d bytes, %v", len(got), err)
		}
	})
}

// TestLeftBackup: a client that leaves ends its backup.
func TestLeftBackup(t *testing.T) {
	c := newCopies(16 << 20)
	f := openBackups(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := f.admin.BackupStore(ctx, &parleyv1.BackupStoreRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	c.slot <- struct{}{} // Waits for it to go.
	<-c.slot
}
