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
)

// logOff are the flags of a parleyd that keeps conversations, as its rivals do, and no log
// of every word beside them.
func logOff() []string { return []string{"--interaction-log=false"} }

// openSizes starts this service with few, as many as everyone, and many conversations.
func (e *entrants) openSizes(ctx context.Context) error {
	for _, n := range []int{e.small, e.conversations} {
		dir, err := e.fillStore(ctx, sized(n), n, messageBytes)
		if err != nil {
			return err
		}
		if _, err := e.openParley(ctx, sized(n), n, dir, logOff()...); err != nil {
			return err
		}
	}
	return e.openLarge(ctx)
}

// openOwn starts this service, its store alone, and the ceiling, each on a copy of one file.
func (e *entrants) openOwn(ctx context.Context) error {
	source, err := e.fillStore(ctx, service, e.conversations, messageBytes)
	if err != nil {
		return err
	}
	copies := make(map[string]string)
	for _, name := range []string{serviceWithLog, inProcess, bareRead} {
		if copies[name], err = e.subdir(name); err != nil {
			return err
		}
		if err := copyFile(filepath.Join(copies[name], storeFile), filepath.Join(source, storeFile)); err != nil {
			return err
		}
	}
	if e.service, err = e.openParley(ctx, service, e.conversations, source, logOff()...); err != nil {
		return err
	}
	if _, err = e.openParley(ctx, serviceWithLog, e.conversations, copies[serviceWithLog]); err != nil {
		return err
	}
	b, err := openBolt(copies[inProcess])
	if err != nil {
		return err
	}
	e.closers = append(e.closers, b.close)
	e.all = append(e.all, &entrant{name: inProcess, conversations: e.conversations, system: b})
	if err := check(ctx, b); err != nil {
		return fmt.Errorf("%s: %w", inProcess, err)
	}
	if e.ceiling, err = startCeiling(ctx, copies[bareRead]); err != nil {
		return err
	}
	e.closers = append(e.closers, e.ceiling.close)
	return nil
}

// sized is what the service is called with so many conversations.
func sized(conversations int) string { return service + ", " + count(conversations) + " conversations" }

// count writes a number short: 1k, 100k, 1M.
func count(n int) string {
	switch {
	case n >= 1_000_000 && n%100_000 == 0:
		return strconv.FormatFloat(float64(n)/1e6, 'f', -1, 64) + "M"
	case n >= 1000 && n%100 == 0:
		return strconv.FormatFloat(float64(n)/1e3, 'f', -1, 64) + "k"
	}
	return strconv.Itoa(n)
}

// fillStore fills the file of a store with conversations and returns its directory.
func (e *entrants) fillStore(ctx context.Context, name string, conversations, bytes int) (string, error) {
	dir, err := e.subdir(name)
	if err != nil {
		return "", err
	}
	start := time.Now()
	if err := fillFile(ctx, dir, filling{count: conversations, messageBytes: bytes, end: time.Now().Add(life)}); err != nil {
		return "", fmt.Errorf("%s: fill: %w", name, err)
	}
	fmt.Fprintf(e.progress, "%s: filled in %.1f s\n", name, time.Since(start).Seconds())
	return dir, nil
}

// openParley starts the service on a store that was filled, and checks it.
func (e *entrants) openParley(ctx context.Context, name string, conversations int, dir string, flags ...string) (*parley, error) {
	p, err := startParley(ctx, e.parleyd, dir, flags...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	e.closers = append(e.closers, p.close)
	e.all = append(e.all, &entrant{name: name, conversations: conversations, system: p, version: p.version})
	if err := check(ctx, p); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// copyFile copies a store, durably, so that no writing is left to be done later, and leaves
// none of it in the page cache, see cache.
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

// uncache drops a file that is on disk from the page cache, as if the machine had just been
// started.
func uncache(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
}

// cache reads all files in a directory into the page cache, as whoever reads at random does:
// what the kernel reads ahead it keeps in large pieces, and writes to those are slow.
func cache(ctx context.Context, dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // The systems are at work.
			return nil
		}
		if err != nil || !entry.Type().IsRegular() {
			return errors.Join(err, ctx.Err())
		}
		f, err := os.Open(path) //nolint:gosec // Only the systems that were started here write there.
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

// cached returns which part of a file the page cache holds, 0 to 1.
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
