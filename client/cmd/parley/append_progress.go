package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/google/uuid"
)

// maxUnsaved limits the lines for one conversation that a run has sent but not saved in its progress file. A
// conversation remembers its newest 32 request ids, and other callers may use some of them before a run continues.
const maxUnsaved = 24

// appendProgress is the progress of a run of append --from. It is stored in a file beside the input, so that the same
// command continues a run that was broken off. The lines of a run have request ids that are made of its id and the line
// number. So the lines after the stored ones, which the server may have stored, are not stored twice.
type appendProgress struct {
	Run   string `json:"run"`
	Lines int    `json:"lines"` // The number of the last line that is done; blank lines included.
	Sum   uint64 `json:"sum"`   // A checksum of the lines up to that one.

	file *os.File // nil if the input is not a file.
}

// openAppendProgress returns the progress of the last run of the input file, or of a new run. If input is empty, the
// progress is not stored.
func openAppendProgress(input string) (*appendProgress, error) {
	p := &appendProgress{Run: uuid.NewString()}
	if input == "" {
		return p, nil
	}
	name := input + ".progress"
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	p.file = file
	if err := p.read(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	if err := p.save(p.Lines, p.Sum); err != nil { // The id of a new run is stored before its first line is sent.
		return nil, errors.Join(err, file.Close())
	}
	return p, nil
}

// read locks the file and reads it. An empty file belongs to a new run.
func (p *appendProgress) read() error {
	locked, err := lock(p.file)
	switch {
	case err != nil:
		return err
	case !locked:
		return usageError(fmt.Sprintf("%q: another parley append --from reads the same input", p.file.Name()))
	}
	text, err := io.ReadAll(io.LimitReader(p.file, 1<<10))
	if err != nil || len(text) == 0 {
		return err
	}
	if err := json.Unmarshal(text, p); err != nil || p.Run == "" {
		return fmt.Errorf("%q is not a progress file; delete it to append all lines", p.file.Name())
	}
	return nil
}

// save stores that all lines up to a line are done. It syncs the file. So after a crash of this machine, the next run
// only repeats lines whose request ids the server still remembers.
func (p *appendProgress) save(line int, sum uint64) error {
	p.Lines, p.Sum = line, sum
	if p.file == nil {
		return nil
	}
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	// The text never gets shorter than the one before: only white space may follow it.
	text = fmt.Appendf(nil, "%-128s\n", text)
	if _, err := p.file.WriteAt(text, 0); err != nil {
		return err
	}
	return p.file.Sync()
}

// close removes the file if the run is complete. Otherwise the next run continues after the saved line.
func (p *appendProgress) close(complete bool) error {
	if p.file == nil {
		return nil
	}
	if !complete {
		return p.file.Close()
	}
	// Another run that locks the file before it is removed finds no progress, and begins with the first line.
	return errors.Join(p.file.Truncate(0), p.file.Close(), os.Remove(p.file.Name()))
}
