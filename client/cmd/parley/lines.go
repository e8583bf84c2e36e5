package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

const (
	// maxLine is much larger than a line of export, see maxLineMessages, or one that other programs write for a
	// conversation of 3 MiB, the server's limit by default.
	maxLine = 64 << 20
	// byteOrderMark precedes the text in files of some editors.
	byteOrderMark = "\ufeff"
	// maxDepth limits the nesting of messages. Structured data may have 16 levels of at most two
	// messages each, so 100 is more than enough. The server could not decode much deeper data, which
	// would end the call.
	maxDepth = 100
)

// inputLine is a line of a file with one value on each line.
type inputLine[T any] struct {
	number int   // The line number, from 1.
	size   int64 // The size in bytes, line feed included.
	value  T
	err    error // The reason why there is no value.
}

// lineReader reads lines in a goroutine of its own, because a read of a terminal cannot be cancelled.
type lineReader[T any] struct {
	lines <-chan inputLine[T] // Closed at the end of the input.
	err   error               // The error that ended the input early, if any; set before lines is closed.
}

// startReading starts to read the lines of in. The goroutine ends at the end of in, or at the next line after ctx has
// ended.
func startReading[T any](ctx context.Context, in io.Reader, parse func([]byte) (T, error)) *lineReader[T] {
	lines := make(chan inputLine[T])
	r := &lineReader[T]{lines: lines}
	go func() {
		defer close(lines)
		for line, err := range readLines(in, maxLine, parse) {
			if err != nil {
				r.err = err
				return
			}
			select {
			case lines <- line:
			case <-ctx.Done():
				return
			}
		}
	}()
	return r
}

// readLines returns the lines of in that are not blank. A line of more than maxBytes has an error. If in
// cannot be read, the last element is an error without a line.
func readLines[T any](
	in io.Reader, maxBytes int64, parse func([]byte) (T, error),
) iter.Seq2[inputLine[T], error] {
	return func(yield func(inputLine[T], error) bool) {
		input := bufio.NewReaderSize(in, 64<<10)
		var text []byte
		var err error
		for number := 1; err == nil; number++ {
			var n int64
			text, n, err = readLine(input, text[:0], maxBytes)
			if number == 1 {
				text = bytes.TrimPrefix(text, []byte(byteOrderMark))
			}
			if err != nil && !errors.Is(err, io.EOF) {
				yield(inputLine[T]{}, fmt.Errorf("line %d: %w", number, err))
				return
			}
			line := inputLine[T]{number: number, size: n}
			switch {
			case n > maxBytes:
				line.err = fmt.Errorf("longer than %s", size(maxBytes))
			case len(bytes.TrimSpace(text)) == 0:
				continue
			default:
				line.value, line.err = parse(text)
			}
			if !yield(line, nil) {
				return
			}
		}
	}
}

// readLine appends the next line of input to line, line feed included, and returns it with its size. It
// reads a line of more than maxBytes to its end, but does not append the part after maxBytes. The last
// line, which may be empty, is returned with io.EOF.
func readLine(input *bufio.Reader, line []byte, maxBytes int64) (appended []byte, n int64, err error) {
	for {
		part, err := input.ReadSlice('\n')
		n += int64(len(part))
		if n <= maxBytes {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, n, err
		}
	}
}

// unmarshal decodes the JSON of a line into message.
func unmarshal(line []byte, message proto.Message) error {
	return unmarshalWith(protojson.UnmarshalOptions{}, line, message)
}

func unmarshalWith(options protojson.UnmarshalOptions, line []byte, message proto.Message) error {
	options.RecursionLimit = maxDepth
	if err := options.Unmarshal(line, message); err != nil {
		// The message contains the package name and always line 1.
		text := strings.TrimSpace(strings.TrimPrefix(err.Error(), "proto:"))
		return errors.New(short(strings.Replace(text, "(line 1:", "(column ", 1), 200))
	}
	return nil
}
