package dayfile

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
)

// Appender is the file of a day, open for appending entries.
type Appender struct {
	*os.File

	Day  Day
	Path string
	Info fs.FileInfo // identifies the file, so that another one of the same name is noticed
	// End is the offset after the last entry that the log has written. If the file has another size,
	// another process has written to it.
	End int64
}

// OpenAppender opens the file of a day and creates it if it is missing.
func OpenAppender(dir string, d Day) (*Appender, error) {
	path := filepath.Join(dir, d.FileName())
	f, info, err := OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	return &Appender{File: f, Day: d, Path: path, Info: info, End: -1}, nil
}

// Revalidate reports whether the file still has its name, repairs its permissions and returns its size.
func (f *Appender) Revalidate() (size int64, same bool) {
	size, permissions, same := statFile(f.Path, f.Info)
	if !same || permissions != FileMode && f.Chmod(FileMode) != nil {
		return 0, false
	}
	return size, true
}

// Append writes entries in one write to the file, which has the given size. entries begin with a line
// break, which is written only if the file does not end with one. Append returns how many bytes of the
// entries, without that line break, are in the file. After an error these are complete entries only, or
// none if all is set, and the rest is truncated again. If truncating fails too, the next Append ends the
// partial entry with a line break.
func (f *Appender) Append(size int64, entries []byte, all bool) (kept int, err error) {
	start := 1
	if size != f.End && size > 0 {
		var last [1]byte
		if _, err := f.ReadAt(last[:], size-1); err != nil {
			return 0, err
		}
		if last[0] != '\n' {
			start = 0
		}
	}
	n, err := f.Write(entries[start:])
	if err == nil {
		f.End = size + int64(n)
		return len(entries) - 1, nil
	}
	written := entries[start : start+n]
	complete := bytes.LastIndexByte(written, '\n') + 1
	keep := complete
	if all {
		keep = 0
	}
	if keep < n && f.cut(size+int64(n), size+int64(keep)) {
		complete = keep
	}
	f.End = size + int64(complete)
	return max(0, complete-(1-start)), err
}

// cut truncates the file from one size to another. It does nothing if another process has appended to
// the file.
func (f *Appender) cut(from, to int64) bool {
	info, err := f.Stat()
	return err == nil && info.Size() == from && f.Truncate(to) == nil
}
