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

	"golang.org/x/sync/semaphore"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/parleyhq/parley/server/internal/rules"
)

const (
	// maxBodyBytes is the maximum size of a request body, except of an import, and of a line of an
	// import as a message.
	maxBodyBytes = rules.MaxGRPCBytes
	// maxBodyTime is the maximum time to read a body.
	maxBodyTime = time.Minute
	// lingerTime and lingerBytes limit how much of a refused body is still read and discarded. If
	// the connection were reset while the client sends, the client would not read the error.
	lingerTime  = 5 * time.Second
	lingerBytes = 16 * maxBodyBytes
	// firstBodyBytes is the maximum size of the buffer that is allocated before any byte of a body
	// arrives, whatever Content-Length announces.
	firstBodyBytes = 64 << 10
	// largeBodyBytes is the size above which a body counts as large while it is read, and above
	// which the decoded value of a body, or of a line of an import, counts as large.
	largeBodyBytes = 256 << 10
	// maxLargeReads is the maximum number of large bodies that are read at the same time.
	// maxLargeBytes is the maximum memory of all large values together. maxLargeWait is how long a
	// request waits for either.
	maxLargeReads = 64
	maxLargeBytes = 256 << 20
	maxLargeWait  = 5 * time.Second
	// maxPaceTime is the maximum time to receive each paceBytes of a large body after its first
	// largeBodyBytes: a stalled body would keep others from being read. A client that sends
	// steadily and is slower than this pace could not have sent largeBodyBytes within maxBodyTime.
	maxPaceTime = 4 * time.Second
	paceBytes   = 16 << 10
	// bytesPerDelimiter is the memory in bytes that a decoded value needs for each of its delimiters in
	// JSON. It is measured: up to 155 for {"":0} in a list, 148 for {} in a list of messages, 72
	// for [] in a list.
	bytesPerDelimiter = 160
	// maxDelimiters is the maximum number of delimiters in the JSON of a message of maxBodyBytes: a
	// value takes at least 4 bytes in the message and has 2 delimiters, for example [] in a list.
	maxDelimiters = maxBodyBytes / 2
)

// body is a request body that was read completely before the call. A decoder may use text without
// copying it: nothing changes it.
type body struct {
	bytes.Reader
	text []byte
}

func newBody(text []byte) *body {
	b := &body{text: text}
	b.Reset(text)
	return b
}

// Close does nothing: net/http closes the body of the connection.
func (b *body) Close() error { return nil }

// Bodies limits the memory of requests that are read and handled at the same time: a decoded
// value needs up to a hundred times the memory of its text. Small requests are not limited. Its methods
// may be called by several goroutines.
type Bodies struct {
	reads   *semaphore.Weighted // Number of bodies being read or waiting to be decoded.
	values  *semaphore.Weighted // Bytes of decoded values.
	maxWait time.Duration       // Maximum wait for either semaphore.
	maxPace time.Duration       // Maximum time for each paceBytes of a large body.
}

// NewBodies returns the limits of the handlers of one server.
func NewBodies() *Bodies {
	return &Bodies{
		reads: semaphore.NewWeighted(maxLargeReads), values: semaphore.NewWeighted(maxLargeBytes),
		maxWait: maxLargeWait, maxPace: maxPaceTime,
	}
}

// Read reads the complete body of a request, at most [rules.MaxGRPCBytes], within a minute, and acquires the memory
// that the value decoded from it needs. The error is a status. The caller must call release when it no longer needs
// the decoded value. If Read fails, the rest of the body is unread: see [RefuseUnread].
func (l *Bodies) Read(w http.ResponseWriter, r *http.Request) (text []byte, release func(), err error) {
	text, isRead, err := l.readBody(w, r, maxBodyTime)
	defer isRead()
	if err == nil {
		release, err = l.acquireValue(r.Context(), text, l.maxWait)
	}
	if err != nil {
		return nil, func() {}, err
	}
	return text, release, nil
}

// readBody reads the complete body of a request. net/http detects a disconnect of the client only
// after that. The error is a status. The caller must call release when it has decoded or refused the
// body.
func (l *Bodies) readBody(
	w http.ResponseWriter, r *http.Request, within time.Duration,
) (text []byte, release func(), err error) {
	release = func() {}
	if r.ContentLength == 0 || r.Body == nil {
		return nil, release, nil
	}
	if r.ContentLength > maxBodyBytes {
		return nil, release, bodyTooLarge()
	}
	// Some response writers of tests do not support deadlines.
	control, until := http.NewResponseController(w), time.Now().Add(within)
	if err := control.SetReadDeadline(until); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return nil, release, fmt.Errorf("read deadline: %w", err)
	}
	var read bytes.Buffer
	read.Grow(int(max(0, min(r.ContentLength, firstBodyBytes))) + bytes.MinRead)
	body := http.MaxBytesReader(w, r.Body, maxBodyBytes)
	if _, err = read.ReadFrom(io.LimitReader(body, largeBodyBytes+1)); err == nil && read.Len() > largeBodyBytes {
		if release, err = acquire(r.Context(), l.reads, 1, l.maxWait); err != nil {
			return nil, func() {}, err
		}
		err = readPaced(&read, body, control, l.maxPace, until)
	}
	if err != nil {
		return nil, release, bodyFault(err, read.Len(), within)
	}
	// If the deadline stayed, it would also end the call.
	if err := control.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return nil, release, fmt.Errorf("read deadline: %w", err)
	}
	return read.Bytes(), release, nil
}

// readPaced reads the rest of a body until deadline until, and each paceBytes of it within pace.
func readPaced(
	read *bytes.Buffer, body io.Reader, control *http.ResponseController, pace time.Duration, until time.Time,
) error {
	for {
		deadline := time.Now().Add(pace)
		if deadline.After(until) {
			deadline = until
		}
		_ = control.SetReadDeadline(deadline)
		switch _, err := io.CopyN(read, body, paceBytes); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// bodyFault returns the status for a body that could not be read completely. read is the number of
// bytes that were read.
func bodyFault(err error, read int, within time.Duration) error {
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return bodyTooLarge()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return NewStatus(codes.DeadlineExceeded, reasonBodyTooSlow, fmt.Sprintf(
			"the body of the request did not arrive within %v, or %d bytes of it after the first %d not within %v; "+
				"send it faster", within, paceBytes, largeBodyBytes, maxPaceTime)).Err()
	}
	var f faults
	f.add(wholeBody, "ends before it is complete: %d bytes were received", read)
	return f.status().Err()
}

// linger lets a client whose body was refused read the response, which has been written, before the
// connection is closed. If another goroutine reads the body, linger waits for it; a read deadline
// ends that wait.
func linger(w http.ResponseWriter, r *http.Request, reader *sync.WaitGroup) {
	control := http.NewResponseController(w)
	limited := control.Flush() == nil && control.SetReadDeadline(time.Now().Add(lingerTime)) == nil
	reader.Wait()
	if limited {
		_, _ = io.CopyN(io.Discard, r.Body, lingerBytes)
	}
}

// reduceSizeHint describes how to make a request smaller.
const reduceSizeHint = "send less in one request, or store large data elsewhere and attach a reference"

func bodyTooLarge() error {
	return NewStatus(codes.ResourceExhausted, reasonBodyTooLarge,
		fmt.Sprintf("the body of the request is larger than %d bytes: %s", maxBodyBytes, reduceSizeHint)).Err()
}

// acquireValue waits for the memory of the decoded value of text. release releases that memory and
// may be called several times. The wait ends after within; if within is 0, it has no limit. The
// error is a status: text has too many values, the limit is reached, or ctx has ended.
func (l *Bodies) acquireValue(ctx context.Context, text []byte, within time.Duration) (release func(), err error) {
	delimiters := countDelimiters(text)
	if delimiters > maxDelimiters {
		return nil, NewStatus(codes.ResourceExhausted, reasonBodyTooLarge,
			fmt.Sprintf("the request has more values than a message of %d bytes can contain: %s",
				maxBodyBytes, reduceSizeHint)).Err()
	}
	size := len(text) + delimiters*bytesPerDelimiter
	if size <= largeBodyBytes {
		return func() {}, nil
	}
	return acquire(ctx, l.values, min(int64(size), maxLargeBytes), within)
}

// acquire waits for n units of bound. If within is 0, the wait has no limit. The error is a status.
func acquire(
	ctx context.Context, bound *semaphore.Weighted, n int64, within time.Duration,
) (release func(), err error) {
	timely := ctx
	if within > 0 {
		var cancel context.CancelFunc
		timely, cancel = context.WithTimeout(ctx, within)
		defer cancel()
	}
	switch {
	case bound.Acquire(timely, n) == nil:
		return sync.OnceFunc(func() { bound.Release(n) }), nil
	case ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return nil, NewStatus(codes.ResourceExhausted, reasonTooManyBodies,
		"limit of large requests reached; send fewer of them at once and retry this one",
		&errdetails.RetryInfo{RetryDelay: durationpb.New(retryDelay)}).Err()
}

// countDelimiters counts the delimiters of JSON outside strings that begin a value or separate values:
// the bytes "," ":" "[" and "{".
func countDelimiters(text []byte) int {
	delimiters := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case ',', ':', '[', '{':
			delimiters++
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		}
	}
	return delimiters
}
