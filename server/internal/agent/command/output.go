package command

import (
	"errors"
	"io"
	"os"
	"time"
)

// pipeBytes is the maximum capacity of a pipe without special privileges.
const pipeBytes = 1 << 20

// output reads what a program writes to a pipe. Reading ends when the last writer has closed the
// pipe. After finish, it also ends when the pipe is empty, because a grandchild outside the process
// group may keep the pipe open forever.
type output struct {
	file *os.File
	// ending is set by the reader when it has noticed finish. From then on it reads at most left
	// bytes: the capacity of the pipe, but not what a grandchild continues to write.
	ending bool
	left   int
}

// newOutput creates a pipe. It returns the reader, and the end for the program.
func newOutput() (o *output, program *os.File, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	return &output{file: read, left: pipeBytes}, write, nil
}

// Read waits for output while a process may write.
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

// readNow reads what is in the pipe and returns io.EOF if it is empty. A read deadline cannot do
// this: an expired deadline hides available data, and a later one would have to be guessed.
func (o *output) readNow(b []byte) (int, error) {
	connection, err := o.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	n := 0
	if err := connection.Read(func(fd uintptr) bool {
		n = readDescriptor(fd, b) // It does not block, because os.Pipe sets O_NONBLOCK.
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

// finish makes the reader read what is available and then end, even if it is waiting. It may be
// called while another goroutine reads.
func (o *output) finish() { _ = o.file.SetReadDeadline(time.Unix(1, 0)) }

// close closes the descriptor. A waiting reader gets an error. close may be called several times.
func (o *output) close() { _ = o.file.Close() }
