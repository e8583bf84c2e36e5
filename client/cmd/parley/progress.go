package main

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// progress shows on standard error how far a long piece of work is. Until show nothing is to
// be seen of it, and notes are plain lines.
type progress struct {
	err io.Writer
	bar *progressbar.ProgressBar // nil: not shown.
}

// show shows a bar that is full at total or, where total is -1, a spinner with a count.
func (p *progress) show(what string, total int64, options ...progressbar.Option) {
	p.bar = progressbar.NewOptions64(total, append(options,
		progressbar.OptionSetWriter(p.err),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(),
		progressbar.OptionShowTotalBytes(total > 0),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetSpinnerChangeInterval(0), // Else it draws whenever it likes, also into notes.
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetRenderBlankState(true),
	)...)
}

// add says that n more are done.
func (p *progress) add(n int64) {
	if p.bar != nil {
		_ = p.bar.Add64(n) // It complains of more than the total: there may be more by now.
	}
}

// note writes a line where the bar was; the bar comes back below it.
func (p *progress) note(format string, values ...any) {
	p.clear()
	fmt.Fprintln(p.err, oneLine(fmt.Sprintf(format, values...)))
}

// clear takes the bar away until there is more to show.
func (p *progress) clear() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}
