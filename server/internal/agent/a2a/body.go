package a2a

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	sdk "github.com/a2aproject/a2a-go/v2/a2a"
)

// maxMessageBytes is the maximum size of a response, or of one event of a stream.
const maxMessageBytes = 4 << 20

// errTooLarge is the error of a response that is larger than maxMessageBytes.
var errTooLarge = fmt.Errorf("a message has more than %d bytes", maxMessageBytes)

// limitedBody fails with errTooLarge when the body has more than maxMessageBytes.
type limitedBody struct {
	io.ReadCloser

	size int
}

// Read reads from the body.
func (b *limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.size += n; b.size > maxMessageBytes {
		return 0, errTooLarge
	}
	return n, err
}

// eventBody returns server-sent events line by line. It fails with errTooLarge when a line has more than
// maxMessageBytes, and with an *sdk.Error at an error in the form of HTTP+JSON, which the library does not know in
// streams.
type eventBody struct {
	io.Closer

	in   *bufio.Reader
	line []byte // the current line
	rest []byte // of the line, not returned yet
}

// Read returns the next part of a line.
func (b *eventBody) Read(p []byte) (int, error) {
	if len(b.rest) == 0 {
		if err := b.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// next reads a line.
func (b *eventBody) next() error {
	b.line = b.line[:0]
	for {
		part, err := b.in.ReadSlice('\n')
		b.line = append(b.line, part...)
		switch {
		case len(b.line) > maxMessageBytes:
			return errTooLarge
		case err == nil:
			b.rest = b.line
			return reportIn(b.line)
		case !errors.Is(err, bufio.ErrBufferFull):
			return err // A line without an end is incomplete.
		}
	}
}

// reportIn returns the error in a line of the form {"error": {"code": 400, "message": "…"}}, nil if it has none. Codes
// of JSON-RPC are negative; the library knows them.
func reportIn(line []byte) error {
	data, isData := bytes.CutPrefix(line, []byte("data:"))
	if data = bytes.TrimSpace(data); !isData || !bytes.HasPrefix(data, []byte(`{"error":`)) {
		return nil
	}
	var report struct {
		Error struct {
			Code    int
			Message string
		}
	}
	if err := json.Unmarshal(data, &report); err != nil || report.Error.Code < http.StatusBadRequest {
		return nil //nolint:nilerr // The library reports what is not JSON.
	}
	kind := sdk.ErrInternalError
	switch report.Error.Code {
	case http.StatusNotFound:
		kind = sdk.ErrTaskNotFound
	case http.StatusBadRequest:
		kind = sdk.ErrInvalidRequest
	case http.StatusUnauthorized:
		kind = sdk.ErrUnauthenticated
	case http.StatusForbidden:
		kind = sdk.ErrUnauthorized
	case http.StatusNotImplemented:
		kind = sdk.ErrUnsupportedOperation
	}
	return sdk.NewError(kind, report.Error.Message)
}
