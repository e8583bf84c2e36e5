package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
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
	// largeBodyBytes is what a body, or a line of an import, is large above, maxLargeBodies
	// how many of those are decoded and called with at once, and maxLargeWait how long another
	// waits for that.
	largeBodyBytes = 256 << 10
	maxLargeBodies = 8
	maxLargeWait   = 5 * time.Second
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
// ends the connection. It waits for another reader of the body, if there is one: a deadline
// ends what that waits for.
func linger(w http.ResponseWriter, r *http.Request, reader *sync.WaitGroup) {
	control := http.NewResponseController(w)
	limited := control.Flush() == nil && control.SetReadDeadline(time.Now().Add(lingerTime)) == nil
	reader.Wait()
	if limited {
		_, _ = io.CopyN(io.Discard, r.Body, lingerBytes)
	}
}

// sendLess is what to do about what is too large.
const sendLess = "send less at once, or keep large data elsewhere and attach a reference"

func bodyTooLarge() error {
	return newStatus(codes.ResourceExhausted, reasonBodyTooLarge,
		fmt.Sprintf("the body of the request is larger than %d bytes: %s", maxBodyBytes, sendLess)).Err()
}

// largeBodies bounds how many are values in memory at once: one is up to a hundred times as
// large as its text.
type largeBodies chan struct{}

// enter waits for its turn with a body of so many bytes, which lasts until leave is called,
// once or more. An error is a status: too many have been ahead for so long, where 0 is no
// limit, or ctx has ended.
func (l largeBodies) enter(ctx context.Context, size int, within time.Duration) (leave func(), err error) {
	if size <= largeBodyBytes {
		return func() {}, nil
	}
	var late <-chan time.Time
	if within > 0 {
		timer := time.NewTimer(within)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case l <- struct{}{}:
		return sync.OnceFunc(func() { <-l }), nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	case <-late:
		return nil, newStatus(codes.ResourceExhausted, reasonTooManyBodies,
			fmt.Sprintf("the server is busy with other bodies larger than %d bytes: send fewer of them at once, and this one again", largeBodyBytes),
			&errdetails.RetryInfo{RetryDelay: durationpb.New(retrySoon)}).Err()
	}
}
