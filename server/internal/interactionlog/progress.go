package interactionlog

import (
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
)

// progress logs the progress of a CatchUp every progressEvery. The goroutines that read ahead share it.
type progress struct {
	log *Log

	mu            sync.Mutex
	due           time.Time // time of the next report
	conversations int       // conversations listed so far
	read, total   int64     // bytes of the files read so far, and of all files to read
}

// countConversation counts a listed conversation.
func (p *progress) countConversation() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conversations++
	p.report()
}

// setFiles sets the files to read.
func (p *progress) setFiles(dir string, days []dayfile.Day) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.read, p.total = 0, 0
	for _, d := range days {
		if info, err := os.Stat(filepath.Join(dir, d.FileName())); err == nil {
			p.total += info.Size()
		}
	}
}

// readTo records that the first bytes of the files were read, in the order of reading.
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

// progressFile is a file that is read from its end and reports its reads to progress.
type progressFile struct {
	*dayfile.File

	progress *progress
	before   int64 // bytes of the files read before this one
}

// ReadAt implements io.ReaderAt.
func (f *progressFile) ReadAt(b []byte, offset int64) (int, error) {
	f.progress.readTo(f.before + max(0, f.Size-offset))
	return f.File.ReadAt(b, offset)
}
