package command

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"
)

// pipeBytes is the most that a pipe can be made to hold without special rights.
const pipeBytes = 1 << 20

// output reads what a program writes to a pipe. It ends when the last writer has gone
// and also, after noMore, when the pipe is empty: a grandchild that has left the process
// group may hold the other end for ever.
type output struct {
	file *os.File
	// ending is set by the reader when it has seen noMore. From then on at most left
	// bytes are read: what the pipe may have held, not what a grandchild still writes.
	ending bool
	left   int
}

// newOutput makes a pipe, and returns beside its reader the end for the program.
func newOutput() (o *output, program *os.File, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	return &output{file: read, left: pipeBytes}, write, nil
}

// Read waits for something to read, as long as a program that may write is there.
func (o *output) Read(b []byte) (int, error) {
	if !o.ending {
		n, err := o.file.Read(b)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if err := o.file.SetReadDeadline(time.Time{}); err != nil {
			return 0, err
		}
		o.ending = true
	}
	return o.readNow(b[:min(len(b), o.left)])
}

// readNow reads what is in the pipe, and ends when that is nothing. A deadline will not
// do for this: one that has passed hides what is there, and one that has not must be
// guessed.
func (o *output) readNow(b []byte) (int, error) {
	connection, err := o.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	n := 0
	if err := connection.Read(func(fd uintptr) bool {
		n, _ = syscall.Read(int(fd), b) // does not block: os.Pipe has seen to it
		return true
	}); err != nil {
		return 0, err
	}
	if n <= 0 {
		return 0, io.EOF
	}
	o.left -= n
	return n, nil
}

// noMore tells the reader, even one that waits, to take what is there and end. May be
// called while another goroutine reads.
func (o *output) noMore() { _ = o.file.SetReadDeadline(time.Unix(1, 0)) }

// close gives the descriptor back; a reader that waits gets an error. May be called
// more than once.
func (o *output) close() { _ = o.file.Close() }
