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
	// maxLine is much larger than the JSON of a conversation of 3 MiB, the server's limit.
	maxLine = 64 << 20
	// partBytes limits the messages of one request. The server's limits are 3 MiB of messages in a
	// conversation and 4 MiB in a request.
	partBytes = 1 << 20
	// maxID is the limit of proto/parley/v1/conversation.proto.
	maxID = 128
	// byteOrderMark precedes the text in files of some editors.
	byteOrderMark = "\ufeff"
	// maxDepth limits the nesting of messages. Structured data may have 16 levels of at most two
	// messages each, so 100 is more than enough. The server could not decode much deeper data, which
	// would end the call.
	maxDepth = 100
)

// importLine is a line of an export file.
type importLine struct {
	number       int   // The line number, from 1.
	size         int64 // The size in bytes, line feed included.
	conversation *parleyv1.ExportConversationsResponse
	err          error // The reason why there is no conversation.
}

// readLines returns the lines of in that are not blank. A line of more than maxBytes has an error. If in
// cannot be read, the last element is an error without a line.
func readLines(in io.Reader, maxBytes int64) iter.Seq2[importLine, error] {
	return func(yield func(importLine, error) bool) {
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
				yield(importLine{}, fmt.Errorf("line %d: %w", number, err))
				return
			}
			line := importLine{number: number, size: n}
			switch {
			case n > maxBytes:
				line.err = fmt.Errorf("longer than %s", size(maxBytes))
			case len(bytes.TrimSpace(text)) == 0:
				continue
			default:
				line.conversation, line.err = parse(text)
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

// parse returns the conversation of a line. It is an error if the id is empty or too long.
func parse(line []byte) (*parleyv1.ExportConversationsResponse, error) {
	conversation := &parleyv1.ExportConversationsResponse{}
	if err := (protojson.UnmarshalOptions{RecursionLimit: maxDepth}).Unmarshal(line, conversation); err != nil {
		// The message contains the package name and always line 1.
		text := strings.TrimSpace(strings.TrimPrefix(err.Error(), "proto:"))
		return nil, errors.New(short(strings.Replace(text, "(line 1:", "(column ", 1), 200))
	}
	if n := len(conversation.GetConversation().GetId()); n == 0 || n > maxID {
		return nil, fmt.Errorf("the conversation needs an id of 1 to %d characters", maxID)
	}
	return conversation, nil
}

// requests divides a conversation into requests within the server's size limit. It returns an error if one
// message or the header exceeds that limit.
func requests(
	conversation *parleyv1.ExportConversationsResponse, overwrite bool,
) ([]*parleyv1.ImportConversationsRequest, error) {
	var parts []*parleyv1.ImportConversationsRequest
	var part *parleyv1.ImportConversationsRequest
	addPart := func() {
		part = &parleyv1.ImportConversationsRequest{Conversation: conversation.GetConversation(), Overwrite: overwrite}
		parts = append(parts, part)
	}
	addPart()
	total := 0
	for _, message := range conversation.GetMessages() {
		n := proto.Size(message)
		if total > 0 && total+n > partBytes {
			addPart()
			total = 0
		}
		part.Messages = append(part.Messages, message)
		total += n
	}
	for _, part := range parts {
		if n := proto.Size(part); n > maxInput {
			return nil, fmt.Errorf("a message or the header has %s, more than one request may have", size(int64(n)))
		}
	}
	return parts, nil
}
