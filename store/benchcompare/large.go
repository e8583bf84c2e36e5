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
	// starts is how often the start with many conversations is measured.
	starts = 5
	// fileShare is about what a conversation takes in the store's file beyond its text, and
	// rivalShare what one takes with all rivals together.
	fileShare, rivalShare = 3_000, 140_000
	// leastRoom stays free whatever is measured.
	leastRoom = 2 << 30
)

// openLarge fills the largest store, measures how long the service takes to start with it,
// once the file is out of the page cache, and leaves it running with the file in the cache.
func (e *entrants) openLarge(ctx context.Context) error {
	bytes, err := e.largeMessage()
	if err != nil {
		return err
	}
	began := time.Now()
	dir, err := e.fillStore(ctx, sized(e.settings.large), e.settings.large, bytes)
	if err != nil {
		return err
	}
	e.filled = time.Since(began)
	file := filepath.Join(dir, storeFile)
	for range starts {
		if err := uncache(file); err != nil {
			return err
		}
		start := time.Now()
		p, err := startParley(ctx, e.parleyd, dir, logOff()...)
		if err != nil {
			return err
		}
		e.starts = append(e.starts, time.Since(start).Seconds())
		if err := p.close(); err != nil {
			return err
		}
	}
	e.large, err = e.openParley(ctx, sized(e.settings.large), e.settings.large, dir, logOff()...)
	return err
}

// largeMessage returns how many bytes a message of the largest store can have: as many as
// any other's if they fit the disk, else fewer, which is noted.
func (e *entrants) largeMessage() (int, error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(e.dir, &disk); err != nil {
		return 0, fmt.Errorf("free room of %s: %w", e.dir, err)
	}
	free := int64(disk.Bavail) * disk.Bsize
	room, conversations := free-leastRoom, int64(e.conversations)
	fits := ((room-conversations*(keep*messageBytes+fileShare))/int64(e.settings.large) - fileShare) / keep
	if fits < 1 || room < conversations*rivalShare {
		return 0, fmt.Errorf("%s has %d MB free, too few for this run: choose another disk with -dir, or fewer -large or -conversations", e.dir, free>>20)
	}
	if fits >= messageBytes {
		return messageBytes, nil
	}
	e.notes = append(e.notes, fmt.Sprintf("The disk had no room for %s conversations of messages of %d B: theirs have %d B.", count(e.settings.large), messageBytes, fits))
	return int(fits), nil
}

// measureLarge returns the bytes of memory that the service with the largest store has beyond
// the page cache, and notes if that does not hold the store's file.
func (e *entrants) measureLarge() (int64, error) {
	file := filepath.Join(e.dir, fileName(sized(e.settings.large)), storeFile)
	// Older kernels cannot tell.
	if part, err := cached(file); err == nil && part < 0.95 {
		e.notes = append(e.notes, fmt.Sprintf("At the end the page cache held %.0f %% of the file with %s conversations: the rest was read from the disk.", part*100, count(e.settings.large)))
	}
	return anonymousMemory(e.large.pid())
}

// anonymousMemory returns the bytes of memory of a process that are no page cache.
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
	return 0, errors.New("the process's status has no RssAnon")
}
