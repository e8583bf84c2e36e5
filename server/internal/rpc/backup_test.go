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

// fakeBackuper is a Backuper that makes one backup at a time. All backups have the same bytes.
type fakeBackuper struct {
	bytes []byte
	fault error // returned by Read in place of io.EOF; nil for none
	slot  chan struct{}
}

func newFakeBackuper(size int) *fakeBackuper {
	c := &fakeBackuper{bytes: make([]byte, size), slot: make(chan struct{}, 1)}
	for i := range c.bytes {
		c.bytes[i] = byte(i % 251)
	}
	return c
}

// Backup returns a backup with the bytes.
func (c *fakeBackuper) Backup(ctx context.Context) (*store.Backup, error) {
	select {
	case c.slot <- struct{}{}:
	default:
		return nil, store.ErrBackupRunning
	}
	size := int64(len(c.bytes))
	if c.fault != nil {
		size++
	}
	reader := io.MultiReader(bytes.NewReader(c.bytes), &errorReader{c.fault})
	return &store.Backup{ReadCloser: &fakeBackup{Reader: reader, slot: c.slot}, Size: size}, ctx.Err()
}

// fakeBackup is one backup.
type fakeBackup struct {
	io.Reader
	slot chan struct{}
}

// Close allows the next backup.
func (c *fakeBackup) Close() error {
	<-c.slot
	return nil
}

// errorReader returns an error, or io.EOF if the error is nil.
type errorReader struct{ err error }

func (f *errorReader) Read([]byte) (int, error) {
	if f.err == nil {
		return 0, io.EOF
	}
	return 0, f.err
}

func openWithBackuper(t *testing.T, c *fakeBackuper) *fixture {
	t.Helper()
	return open(t, func(s *setup) { s.Backuper = c })
}

// backup calls BackupStore and returns the bytes, and the size field of each response.
func (f *fixture) backup(ctx context.Context) (got []byte, sizes []int64, err error) {
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
		c := newFakeBackuper(size)
		f := openWithBackuper(t, c)
		for range 2 {
			got, sizes, err := f.backup(t.Context())
			if err != nil || !bytes.Equal(got, c.bytes) {
				t.Errorf("BackupStore of %d bytes = %d bytes, %v", size, len(got), err)
			}
			if want := (size + backupChunk - 1) / backupChunk; len(sizes) != want || sizes[0] != int64(size) {
				t.Errorf(
					"BackupStore of %d bytes = responses with sizes %v, want %d responses, the first with the size",
					size,
					sizes,
					want,
				)
			}
		}
		if got := f.log.lines("level=INFO", "backup sent", "sent="); len(got) != 2 {
			t.Errorf("got %d log lines, want 2", len(got))
		}
	}
}

func TestBackupStoreFailure(t *testing.T) {
	c := newFakeBackuper(3 * backupChunk)
	c.fault = errors.New("bad sector in " + secret)
	f := openWithBackuper(t, c)
	got, _, err := f.backup(t.Context())
	wantError(t, err, codes.Internal, "INTERNAL")
	if len(got) != 3*backupChunk {
		t.Errorf("got %d bytes, want %d", len(got), 3*backupChunk)
	}
	if len(c.slot) != 0 {
		t.Error("the backup is not closed")
	}
	if got := f.log.lines("level=INFO", "backup aborted"); len(got) != 1 {
		t.Errorf("got %d log lines, want 1", len(got))
	}
}

func TestBackupStoreUnsupported(t *testing.T) {
	_, _, err := open(t, nil).backup(t.Context())
	wantError(t, err, codes.FailedPrecondition, "BACKUP_UNSUPPORTED")
}

func TestBackupStoreNeedsAdmin(t *testing.T) {
	f := open(t, func(s *setup) { s.Auth, s.Backuper = byMetadata(), newFakeBackuper(1) })
	for _, pairs := range [][]string{{"tenant", "*"}, {"tenant", "a", "role", "admin"}} {
		_, _, err := f.backup(withMetadata(t, pairs...))
		wantError(t, err, codes.PermissionDenied, "PERMISSION_DENIED")
	}
	if _, _, err := f.backup(withMetadata(t, "tenant", "*", "role", "admin")); err != nil {
		t.Error(err)
	}
}

// TestSlowBackup checks that the server ends the backup of a client that does not read for half a
// minute, and that another client can make a backup then.
func TestSlowBackup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeBackuper(16 << 20)
		f := openWithBackuper(t, c)
		stream, err := f.admin.BackupStore(t.Context(), &parleyv1.BackupStoreRequest{})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		_, _, err = f.backup(t.Context())
		if got := wantError(t, err, codes.ResourceExhausted, "BACKUP_RUNNING"); got.retry == 0 {
			t.Error("the error has no RetryInfo")
		}
		c.slot <- struct{}{} // Waits for the end of the first backup.
		<-c.slot
		for err == nil || statusOf(err).reason == "BACKUP_RUNNING" {
			_, err = stream.Recv()
		}
		wantError(t, err, codes.ResourceExhausted, "SLOW_READER")
		if got, _, err := f.backup(t.Context()); err != nil || !bytes.Equal(got, c.bytes) {
			t.Errorf("BackupStore after the first backup = %d bytes, %v", len(got), err)
		}
	})
}

// TestCancelledBackup checks that a backup ends when its client cancels the call.
func TestCancelledBackup(t *testing.T) {
	c := newFakeBackuper(16 << 20)
	f := openWithBackuper(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := f.admin.BackupStore(ctx, &parleyv1.BackupStoreRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	c.slot <- struct{}{} // Waits for the end of the backup.
	<-c.slot
}
