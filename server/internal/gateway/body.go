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
	// largeBodyBytes is the size above which a body counts as large while it is read, and above
	// which the decoded value of a body, or of a line of an import, counts as large.
	largeBodyBytes = 256 << 10
	// maxLargeReads is how many large bodies are read at once. maxLargeBytes is the memory in bytes
	// that all large values together may take. maxLargeWait is how long a request waits for either.
	maxLargeReads = 64
	maxLargeBytes = 256 << 20
	maxLargeWait  = 5 * time.Second
	// maxPaceTime is how long the sender of a large body may take for each paceBytes from then on:
	// one that stalls holds the place of another. A steady sender that is cut off by that would not
	// have sent largeBodyBytes within maxBodyTime.
	maxPaceTime = 4 * time.Second
	paceBytes   = 16 << 10
	// bytesPerMark is how much memory a value takes for each of its marks in JSON, as measured:
	// up to 155 for {"":0} in a list, 148 for {} in a list of messages, 72 for [] in a list.
	bytesPerMark = 160
	// maxMarks is the maximum of marks in the JSON of a message of maxBodyBytes: a value takes at
	// least 4 bytes in the message and has 2 marks, as [] in a list.
	maxMarks = maxBodyBytes / 2
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

// largeBodies bounds the memory of the requests that are read and worked on at once: a value is
// up to a hundred times as large as its text. Small ones need no permission.
type largeBodies struct {
	reads   *semaphore.Weighted // Bodies that are read, or wait to be decoded.
	values  *semaphore.Weighted // Bytes of memory.
	maxWait time.Duration       // For either.
	maxPace time.Duration       // For each paceBytes of a large body.
}

func newLargeBodies() *largeBodies {
	return &largeBodies{
		reads: semaphore.NewWeighted(maxLargeReads), values: semaphore.NewWeighted(maxLargeBytes),
		maxWait: maxLargeWait, maxPace: maxPaceTime,
	}
}

// readBody reads the body of a request to its end, which also has the server look out for
// the client's leaving. An error is a status. The caller must call leave when it has decoded
// or refused the body.
func (l *largeBodies) readBody(w http.ResponseWriter, r *http.Request, within time.Duration) (text []byte, leave func(), err error) {
	leave = func() {}
	if r.ContentLength == 0 || r.Body == nil {
		return nil, leave, nil
	}
	if r.ContentLength > maxBodyBytes {
		return nil, leave, bodyTooLarge()
	}
	// Some writers, those of tests, know no deadline.
	control, until := http.NewResponseController(w), time.Now().Add(within)
	if err := control.SetReadDeadline(until); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return nil, leave, fmt.Errorf("read deadline: %w", err)
	}
	var read bytes.Buffer
	read.Grow(int(max(0, min(r.ContentLength, firstBodyBytes))) + bytes.MinRead)
	body := http.MaxBytesReader(w, r.Body, maxBodyBytes)
	if _, err = read.ReadFrom(io.LimitReader(body, largeBodyBytes+1)); err == nil && read.Len() > largeBodyBytes {
		if leave, err = acquire(r.Context(), l.reads, 1, l.maxWait); err != nil {
			return nil, func() {}, err
		}
		err = readPaced(&read, body, control, l.maxPace, until)
	}
	if err != nil {
		return nil, leave, bodyFault(err, read.Len(), within)
	}
	// The deadline would end the call as well.
	if err := control.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return nil, leave, fmt.Errorf("read deadline: %w", err)
	}
	return read.Bytes(), leave, nil
}

// readPaced reads the rest of a body that comes by a deadline, and each paceBytes of it within pace.
func readPaced(read *bytes.Buffer, body io.Reader, control *http.ResponseController, pace time.Duration, until time.Time) error {
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

// bodyFault is the status of a body that could not be read to its end.
func bodyFault(err error, read int, within time.Duration) error {
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return bodyTooLarge()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return newStatus(codes.DeadlineExceeded, reasonBodyTooSlow, fmt.Sprintf(
			"the body of the request did not come within %v, or %d bytes of it beyond %d not within %v", within, paceBytes, largeBodyBytes, maxPaceTime)).Err()
	}
	var f faults
	f.add(wholeBody, "ends before it is complete: %d bytes have come", read)
	return f.status().Err()
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

// enter waits for the memory of a text that is about to be decoded, which lasts until leave is
// called, once or more. An error is a status: the text has too many values, others took the memory
// for as long as this one may wait, where 0 is no limit, or ctx has ended.
func (l *largeBodies) enter(ctx context.Context, text []byte, within time.Duration) (leave func(), err error) {
	marks := countMarks(text)
	if marks > maxMarks {
		return nil, newStatus(codes.ResourceExhausted, reasonBodyTooLarge,
			fmt.Sprintf("the request has more values than a message of %d bytes can have: %s", maxBodyBytes, sendLess)).Err()
	}
	size := len(text) + marks*bytesPerMark
	if size <= largeBodyBytes {
		return func() {}, nil
	}
	return acquire(ctx, l.values, min(int64(size), maxLargeBytes), within)
}

// acquire waits for n units of bound. If within is 0, it waits without a limit. An error is a
// status.
func acquire(ctx context.Context, bound *semaphore.Weighted, n int64, within time.Duration) (leave func(), err error) {
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
	return nil, newStatus(codes.ResourceExhausted, reasonTooManyBodies,
		"limit of large requests reached; send fewer of them at once and retry this one",
		&errdetails.RetryInfo{RetryDelay: durationpb.New(retrySoon)}).Err()
}

// countMarks counts the marks of JSON outside of strings: the bytes "," ":" "[" and "{".
func countMarks(text []byte) int {
	marks := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case ',', ':', '[', '{':
			marks++
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		}
	}
	return marks
}
