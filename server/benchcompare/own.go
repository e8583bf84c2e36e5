package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/parleyhq/parley/store/boltstore"
)

// logOff returns the flags of a parleyd without an interaction log. It then stores only conversations,
// as the competitors do.
func logOff() []string { return []string{"--interaction-log=false"} }

// noJournal returns the flags of a parleyd that writes every append to its file, as versions without a journal did.
func noJournal() []string { return append(logOff(), "--journal-budget=0", "--cache-bytes=0") }

// openSizes starts this service with stores of three sizes: small, the size of all targets, and large.
func (t *targets) openSizes(ctx context.Context) error {
	for _, n := range []int{t.small, t.conversations} {
		dir, err := t.fillStore(ctx, sizedName(n), n, messageBytes)
		if err != nil {
			return err
		}
		if _, err := t.openParley(ctx, sizedName(n), n, dir, logOff()...); err != nil {
			return err
		}
	}
	return t.openLarge(ctx)
}

// openOwn starts this service with its variants, its store alone, and the ceiling, each on a copy of the same file.
func (t *targets) openOwn(ctx context.Context) error {
	source, err := t.fillStore(ctx, service, t.conversations, messageBytes)
	if err != nil {
		return err
	}
	copies := make(map[string]string)
	for _, name := range []string{serviceWithLog, serviceBefore, inProcess, plainRead} {
		if copies[name], err = t.subdir(name); err != nil {
			return err
		}
		if err := copyFile(filepath.Join(copies[name], storeFile), filepath.Join(source, storeFile)); err != nil {
			return err
		}
	}
	if t.service, err = t.openParley(ctx, service, t.conversations, source, logOff()...); err != nil {
		return err
	}
	if t.stream, err = t.service.openAppendStream(ctx); err != nil {
		return err
	}
	if _, err = t.openParley(ctx, serviceWithLog, t.conversations, copies[serviceWithLog]); err != nil {
		return err
	}
	if _, err = t.openParley(ctx, serviceBefore, t.conversations, copies[serviceBefore], noJournal()...); err != nil {
		return err
	}
	// As in parleyd, without the summaries.
	b, err := openBolt(copies[inProcess], boltstore.Options{JournalBudget: 256 << 20, CacheBytes: 56 << 20})
	if err != nil {
		return err
	}
	t.closers = append(t.closers, b.close)
	t.all = append(t.all, &target{name: inProcess, conversations: t.conversations, system: b})
	if err := check(ctx, b); err != nil {
		return fmt.Errorf("%s: %w", inProcess, err)
	}
	if t.ceiling, err = startCeiling(ctx, copies[plainRead]); err != nil {
		return err
	}
	t.closers = append(t.closers, t.ceiling.close)
	return nil
}

// sizedName returns the name of the service with a store of this size.
func sizedName(conversations int) string {
	return service + ", " + count(conversations) + " conversations"
}

// count formats a number in short form: 1k, 100k, 1M.
func count(n int) string {
	switch {
	case n >= 1_000_000 && n%100_000 == 0:
		return strconv.FormatFloat(float64(n)/1e6, 'f', -1, 64) + "M"
	case n >= 1000 && n%100 == 0:
		return strconv.FormatFloat(float64(n)/1e3, 'f', -1, 64) + "k"
	}
	return strconv.Itoa(n)
}

// fillStore creates a filled store in a new directory, and returns the directory.
func (t *targets) fillStore(ctx context.Context, name string, conversations, bytes int) (string, error) {
	dir, err := t.subdir(name)
	if err != nil {
		return "", err
	}
	start := time.Now()
	fill := fillOptions{count: conversations, messageBytes: bytes, end: time.Now().Add(ttl)}
	if err := fillFile(ctx, dir, fill); err != nil {
		return "", fmt.Errorf("%s: fill: %w", name, err)
	}
	fmt.Fprintf(t.progress, "%s: filled in %.1f s\n", name, time.Since(start).Seconds())
	return dir, nil
}

// openParley starts the service on a filled store and checks it.
func (t *targets) openParley(
	ctx context.Context, name string, conversations int, dir string, flags ...string,
) (*parley, error) {
	p, err := startParley(ctx, t.parleyd, dir, flags...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	t.closers = append(t.closers, p.close)
	t.all = append(t.all, &target{name: name, conversations: conversations, system: p, version: p.version})
	if err := check(ctx, p); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// copyFile copies a file and syncs the copy, so that no writes are left for later. It drops the copy
// from the page cache; see cache.
func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return errors.Join(err, in.Close())
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, in.Close(), out.Close(), uncache(to))
}

// uncache drops a file from the page cache, as after a reboot.
func uncache(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
}

// cache reads all files of a directory into the page cache with random access. With read-ahead the
// kernel would cache them in large folios, and writes to those are slow.
func cache(ctx context.Context, dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // The running systems create and remove files.
			return nil
		}
		if err != nil || !entry.Type().IsRegular() {
			return errors.Join(err, ctx.Err())
		}
		f, err := os.Open(path) //nolint:gosec // Only the systems of this run write in dir.
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		err = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM)
		for buffer := make([]byte, 1<<20); err == nil; {
			_, err = f.Read(buffer)
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return errors.Join(err, f.Close())
	})
}

// cached returns which part of a file is in the page cache, from 0 to 1.
func cached(path string) (float64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return 0, errors.Join(err, f.Close())
	}
	var pages unix.Cachestat_t
	err = unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &pages, 0)
	return float64(pages.Cache) * float64(os.Getpagesize()) / float64(info.Size()), errors.Join(err, f.Close())
}
