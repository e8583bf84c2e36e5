package main

import (
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/schollz/progressbar/v3"
)

// progress shows the progress of a long command on standard error. It is invisible until show is called; notes
// are then plain lines.
type progress struct {
	err io.Writer
	bar *progressbar.ProgressBar // nil if not shown
}

// show shows a bar that is full at total. If total is -1, it shows a spinner with a count.
func (p *progress) show(what string, total int64, options ...progressbar.Option) {
	p.bar = progressbar.NewOptions64(total, append(options,
		progressbar.OptionSetWriter(p.err),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(),
		progressbar.OptionShowTotalBytes(total > 0),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetSpinnerChangeInterval(0), // Otherwise a timer draws the spinner, also into notes.
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetRenderBlankState(true),
	)...)
}

// showReading shows a bar for reading in. It reports whether the bar counts bytes, because the size of in is known. The
// bar counts lines otherwise.
func (p *progress) showReading(what string, in io.Reader) (countsBytes bool) {
	if file, ok := in.(interface{ Stat() (fs.FileInfo, error) }); ok {
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			p.show(what, info.Size(), progressbar.OptionShowBytes(true), progressbar.OptionUseIECUnits(true))
			return true
		}
	}
	p.show(what, -1)
	return false
}

// add advances the bar by n.
func (p *progress) add(n int64) {
	if p.bar != nil {
		_ = p.bar.Add64(n) // The error means more than total, which is possible if the data has grown.
	}
}

// note writes a line in place of the bar. The next update shows the bar below it.
func (p *progress) note(format string, values ...any) {
	p.clear()
	fmt.Fprintln(p.err, oneLine(fmt.Sprintf(format, values...)))
}

// clear removes the bar until the next update.
func (p *progress) clear() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}
