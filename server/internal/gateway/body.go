package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"google.golang.org/grpc/codes"
)

const (
	// maxBodyBytes bounds the body of a request, import aside, and a single value of an
	// import. Requests over gRPC have the same bound.
	maxBodyBytes = 4 << 20
	// maxBodyTime is how long a body may take to come.
	maxBodyTime = time.Minute
	// lingerTime and lingerBytes bound what is still taken of a body that was refused, and
	// thrown away: a client that is reset in the middle of sending does not read why.
	lingerTime  = 5 * time.Second
	lingerBytes = 16 * maxBodyBytes
	// firstBodyBytes is what a body is given to begin with, whatever its sender announces.
	firstBodyBytes = 64 << 10
)

// body is that of a request, read as a whole ahead of the call. Who knows it may take the
// bytes, which nobody changes, instead of copying them.
type body struct {
	bytes.Reader
	text []byte
}

func newBody(text []byte) *body {
	b := &body{text: text}
	b.Reset(text)
	return b
}

// Close does nothing: the server closes the body of the connection.
func (b *body) Close() error { return nil }

// readBody reads the body of a request to its end, which also has the server look out for
// the client's leaving. An error is a status.
func readBody(w http.ResponseWriter, r *http.Request, within time.Duration) ([]byte, error) {
	if r.ContentLength == 0 || r.Body == nil {
		return nil, nil
	}
	if r.ContentLength > maxBodyBytes {
		return nil, bodyTooLarge()
	}
	// Some writers, those of tests, know no deadline.
	control := http.NewResponseController(w)
	if err := control.SetReadDeadline(time.Now().Add(within)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return nil, fmt.Errorf("read deadline: %w", err)
	}
	var text bytes.Buffer
	text.Grow(int(max(0, min(r.ContentLength, firstBodyBytes))) + bytes.MinRead)
	_, err := text.ReadFrom(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	if err == nil {
		// The deadline would end the call as well.
		if err := control.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return nil, fmt.Errorf("read deadline: %w", err)
		}
		return text.Bytes(), nil
	}
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return nil, bodyTooLarge()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, newStatus(codes.DeadlineExceeded, reasonBodyTooSlow, fmt.Sprintf("the body of the request did not come within %v", within)).Err()
	}
	var f faults
	f.add(wholeBody, "ends before it is complete: %d bytes have come", text.Len())
	return nil, f.status().Err()
}

// linger has a client whose body was refused read the answer, which has been written, and
// ends the connection.
func linger(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	if control.Flush() == nil && control.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		_, _ = io.CopyN(io.Discard, r.Body, lingerBytes)
	}
}

func bodyTooLarge() error {
	return newStatus(codes.ResourceExhausted, reasonBodyTooLarge, fmt.Sprintf("the body of the request is larger than %d bytes: "+
		"send less at once, or keep large data elsewhere and attach a reference", maxBodyBytes)).Err()
}
