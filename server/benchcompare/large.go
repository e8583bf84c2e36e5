package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// starts is how often the start with the largest store is measured.
	starts = 5
	// fileOverhead is about the size of a conversation in the store's file without its texts, and
	// competitorBytes its size in all competitors together, in bytes.
	fileOverhead, competitorBytes = 3_000, 140_000
	// minFree is the space that stays free on the disk, in bytes.
	minFree = 2 << 30
)

// openLarge fills the largest store and measures the service's start with it, each time without the file
// in the page cache. It leaves the service running.
func (t *targets) openLarge(ctx context.Context) error {
	bytes, err := t.largeMessage()
	if err != nil {
		return err
	}
	began := time.Now()
	dir, err := t.fillStore(ctx, sizedName(t.settings.large), t.settings.large, bytes)
	if err != nil {
		return err
	}
	t.filled = time.Since(began)
	file := filepath.Join(dir, storeFile)
	for range starts {
		if err := uncache(file); err != nil {
			return err
		}
		start := time.Now()
		p, err := startParley(ctx, t.parleyd, dir, logOff()...)
		if err != nil {
			return err
		}
		t.starts = append(t.starts, time.Since(start).Seconds())
		if err := p.close(); err != nil {
			return err
		}
	}
	t.large, err = t.openParley(ctx, sizedName(t.settings.large), t.settings.large, dir, logOff()...)
	return err
}

// largeMessage returns the size of a message in the largest store. It is messageBytes if that fits on the
// disk, and smaller otherwise, with a note in the table.
func (t *targets) largeMessage() (int, error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(t.dir, &disk); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", t.dir, err)
	}
	free := int64(disk.Bavail) * disk.Bsize
	usable, conversations := free-minFree, int64(t.conversations)
	rest := usable - conversations*(maxMessages*messageBytes+fileOverhead)
	fits := (rest/int64(t.settings.large) - fileOverhead) / maxMessages
	if fits < 1 || usable < conversations*competitorBytes {
		return 0, fmt.Errorf("%s has %d MB free, too little for this run; choose another disk with -dir, or smaller -large "+
			"or -conversations", t.dir, free>>20)
	}
	if fits >= messageBytes {
		return messageBytes, nil
	}
	t.notes = append(t.notes, fmt.Sprintf("The disk had no space for %s conversations with messages of %d B; theirs "+
		"have %d B.", count(t.settings.large), messageBytes, fits))
	return int(fits), nil
}

// measureLarge returns the memory of the service with the largest store, without the page cache, in
// bytes. If the page cache does not hold the store's file, it adds a note.
func (t *targets) measureLarge() (int64, error) {
	file := filepath.Join(t.dir, fileName(sizedName(t.settings.large)), storeFile)
	// Older kernels do not have cachestat.
	if part, err := cached(file); err == nil && part < 0.95 {
		t.notes = append(t.notes, fmt.Sprintf("At the end the page cache held %.0f %% of the file with %s conversations; "+
			"the rest was read from the disk.", part*100, count(t.settings.large)))
	}
	return anonymousMemory(t.large.pid())
}

// anonymousMemory returns the anonymous resident memory of a process in bytes.
func anonymousMemory(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("status of the process has no RssAnon")
}
