package interactionlog

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
)

// removeOld removes the files of days more than Options.RetentionDays before today, with their indexes.
func (l *Log) removeOld(today dayfile.Day) {
	if l.options.RetentionDays <= 0 {
		return
	}
	entries, err := os.ReadDir(l.options.Dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			l.options.Log.Warn("interaction log: old files not removed", "error", err)
		}
		return
	}
	for _, entry := range entries {
		d, isDay := dayfile.ParseFileName(entry.Name())
		if !isDay || !entry.Type().IsRegular() || d >= today-dayfile.Day(l.options.RetentionDays) {
			continue
		}
		if err := l.remove(entry.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			l.options.Log.Warn("interaction log: old file not removed", "error", err)
			continue
		}
		_ = os.Remove(filepath.Join(l.options.Dir, d.IndexName())) // There may be none.
		l.options.Log.Info("interaction log: file removed, see --log-retention-days", "file", entry.Name())
	}
}

// remove removes a file of the log. It waits while an Erase replaces a file.
func (l *Log) remove(name string) error {
	l.writer.mu.Lock()
	defer l.writer.mu.Unlock()
	return os.Remove(filepath.Join(l.options.Dir, name))
}
