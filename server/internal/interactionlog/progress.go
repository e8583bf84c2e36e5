package interactionlog

import (
	"os"
	"path/filepath"
	"sync"
	"time"
)

// progress reports how far a CatchUp is, every progressEvery. The goroutines that read ahead
// share it.
type progress struct {
	log *Log

	mu            sync.Mutex
	due           time.Time // when it is to be reported next
	conversations int       // that were listed
	read, total   int64     // bytes of the files
}

// conversation counts one that was listed.
func (p *progress) conversation() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conversations++
	p.report()
}

// files says which files are to be read.
func (p *progress) files(dir string, days []day) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.read, p.total = 0, 0
	for _, d := range days {
		if info, err := os.Stat(filepath.Join(dir, d.fileName())); err == nil {
			p.total += info.Size()
		}
	}
}

// readTo says up to where the files were read.
func (p *progress) readTo(bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.read = max(p.read, bytes)
	p.report()
}

func (p *progress) report() {
	now := p.log.options.Now()
	if now.Before(p.due) {
		return
	}
	p.due = now.Add(progressEvery)
	p.log.options.Log.Info("interaction log: comparing with the store",
		"conversations", p.conversations, "read_bytes", p.read, "total_bytes", p.total)
}

// watchedFile is a file that is read from its end, and whose reading is reported.
type watchedFile struct {
	*openedFile

	progress *progress
	before   int64 // bytes of the files that were read before it
}

// ReadAt implements io.ReaderAt.
func (f *watchedFile) ReadAt(b []byte, offset int64) (int, error) {
	f.progress.readTo(f.before + max(0, f.size-offset))
	return f.openedFile.ReadAt(b, offset)
}
