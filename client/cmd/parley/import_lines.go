package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	// Far more than a conversation of 3 MiB, the most that a server keeps, has as JSON.
	maxLine = 64 << 20
	// Messages of one request. A conversation has 3 MiB of them at most, a request 4 MiB.
	partBytes = 1 << 20
	// As proto/parley/v1/conversation.proto has it.
	maxID = 128
	// Some editors put it ahead of a text.
	byteOrderMark = "\ufeff"
	// Structured data may be 16 deep, each of which is at most two messages; there is room
	// for more. What is far deeper a server could not even decode, which would end the call.
	maxDepth = 100
)

// record is a line of an export, as it was read.
type record struct {
	line  int   // From 1.
	size  int64 // Bytes, line feed included.
	whole *parleyv1.ExportConversationsResponse
	fault error // Why there is no whole.
}

// records yields the lines of in that are not blank, until it ends; one of more than most bytes
// is at fault. An error says that in cannot be read on, and comes last, without a record.
func records(in io.Reader, most int64) iter.Seq2[record, error] {
	return func(yield func(record, error) bool) {
		input := bufio.NewReaderSize(in, 64<<10)
		var line []byte
		var err error
		for number := 1; err == nil; number++ {
			var n int64
			line, n, err = readLine(input, line[:0], most)
			if number == 1 {
				line = bytes.TrimPrefix(line, []byte(byteOrderMark))
			}
			if err != nil && !errors.Is(err, io.EOF) {
				yield(record{}, fmt.Errorf("line %d: %w", number, err))
				return
			}
			r := record{line: number, size: n}
			switch {
			case n > most:
				r.fault = fmt.Errorf("longer than %s", size(most))
			case len(bytes.TrimSpace(line)) == 0:
				continue
			default:
				r.whole, r.fault = parse(line)
			}
			if !yield(r, nil) {
				return
			}
		}
	}
}

// readLine appends the next line to line, line feed included, and returns it with its size. Of
// one of more than most bytes the rest is read and left out. With io.EOF it is the last one,
// and may be empty.
func readLine(input *bufio.Reader, line []byte, most int64) (appended []byte, n int64, err error) {
	for {
		part, err := input.ReadSlice('\n')
		n += int64(len(part))
		if n <= most {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, n, err
		}
	}
}

// parse returns the conversation that a line describes, which has an id that can be one.
func parse(line []byte) (*parleyv1.ExportConversationsResponse, error) {
	whole := &parleyv1.ExportConversationsResponse{}
	if err := (protojson.UnmarshalOptions{RecursionLimit: maxDepth}).Unmarshal(line, whole); err != nil {
		// It names the package, and always the first line.
		text := strings.TrimSpace(strings.TrimPrefix(err.Error(), "proto:"))
		return nil, errors.New(short(strings.Replace(text, "(line 1:", "(column ", 1), 200))
	}
	if n := len(whole.GetConversation().GetId()); n == 0 || n > maxID {
		return nil, fmt.Errorf("no conversation with an id of up to %d characters", maxID)
	}
	return whole, nil
}

// requests parts a conversation into requests that the server can take; an error says that
// there are none.
func requests(whole *parleyv1.ExportConversationsResponse, overwrite bool) ([]*parleyv1.ImportConversationsRequest, error) {
	var parts []*parleyv1.ImportConversationsRequest
	var part *parleyv1.ImportConversationsRequest
	begin := func() {
		part = &parleyv1.ImportConversationsRequest{Conversation: whole.GetConversation(), Overwrite: overwrite}
		parts = append(parts, part)
	}
	begin()
	total := 0
	for _, message := range whole.GetMessages() {
		n := proto.Size(message)
		if total > 0 && total+n > partBytes {
			begin()
			total = 0
		}
		part.Messages = append(part.Messages, message)
		total += n
	}
	for _, part := range parts {
		if n := proto.Size(part); n > maxInput {
			return nil, fmt.Errorf("a message, or all else, has %s: no request takes that much", size(int64(n)))
		}
	}
	return parts, nil
}
