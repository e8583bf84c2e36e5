package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// maxLineBytes is the maximum length of a line. Any exported line must fit: a message of maxBodyBytes is
// up to six times as long in JSON.
const maxLineBytes = 6 * maxBodyBytes

// importer imports conversations from JSON lines. The generated handler would not report what was
// imported before a malformed line.
type importer struct {
	client parleyv1.ConversationServiceClient
	mux    *runtime.ServeMux
	large  *Bodies
}

func (i *importer) serve(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	if call := httpCallOf(r.Context()); call.probing {
		call.method = parleyv1.ConversationService_ImportConversations_FullMethodName
		return
	}
	// The server may answer before the body ends.
	_ = http.NewResponseController(w).EnableFullDuplex() // It fails only in tests without a network.
	var sending sync.WaitGroup
	ctx, err := runtime.AnnotateContext(r.Context(), i.mux, r,
		parleyv1.ConversationService_ImportConversations_FullMethodName)
	if err == nil {
		var reply *parleyv1.ImportConversationsResponse
		if reply, err = i.run(ctx, r, &sending); err == nil {
			runtime.ForwardResponseMessage(ctx, i.mux, new(marshaler), w, r, reply)
			return
		}
	}
	runtime.HTTPError(r.Context(), i.mux, nil, w, r, err)
	linger(w, r, &sending)
}

// run imports the body of the request. The error is a status. After an error the body may still be
// read until sending is done.
func (i *importer) run(
	ctx context.Context, r *http.Request, sending *sync.WaitGroup,
) (*parleyv1.ImportConversationsResponse, error) {
	call := httpCallOf(r.Context())
	overwrite, err := parseOverwrite(call.query)
	if err != nil {
		return nil, err
	}
	ctx, end := withoutCancellation(ctx)
	defer end()
	stream, err := i.client.ImportConversations(call.outgoing(ctx))
	if err != nil {
		return nil, err
	}
	call.sent = true
	u := &upload{stream: stream, large: i.large, newRequest: func() proto.Message {
		return new(parleyv1.ImportConversationsRequest)
	}, complete: func(m proto.Message) {
		if request, ok := m.(*parleyv1.ImportConversationsRequest); ok && overwrite != nil {
			request.Overwrite = *overwrite
		}
	}}
	var fault *lineFault
	sending.Go(func() { fault = u.sendAll(r.Body) })
	reply := new(parleyv1.ImportConversationsResponse)
	if err := stream.RecvMsg(reply); err != nil {
		return nil, err
	}
	sending.Wait() // The server replies after all lines were sent, so this does not block.
	if fault != nil {
		return nil, fault.status(reply).Err()
	}
	return reply, nil
}

// withoutCancellation returns ctx without its cancellation and with its deadline. net/http treats a body
// that breaks off as a disconnect of the client, but the client must be sent the number of imported
// conversations. The call ends anyway, because the body has ended.
func withoutCancellation(ctx context.Context) (context.Context, context.CancelFunc) {
	alone := context.WithoutCancel(ctx)
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithDeadline(alone, deadline)
	}
	return context.WithCancel(alone)
}

// parseOverwrite returns the value of the query parameter overwrite, which applies to all lines. It
// returns nil if there is none: then each line has its own value. The error is a status.
func parseOverwrite(query url.Values) (*bool, error) {
	const name = "overwrite"
	var f faults
	var all *bool
	for _, other := range slices.Sorted(maps.Keys(query)) {
		value, err := strconv.ParseBool(query.Get(other))
		switch {
		case other != name:
			f.add(quoteName(other), "is not a parameter: an import accepts %s only", name)
		case len(query[name]) > 1:
			f.add(name, "must be given once")
		case err != nil:
			f.add(name, "must be true or false")
		default:
			all = &value
		}
	}
	return all, f.err()
}

// appender appends the batches in JSON lines and writes a reply line for each. The generated handler would not report a
// malformed line, and does not permit HTTP/1.1 to read and write at the same time.
type appender struct {
	client parleyv1.ConversationServiceClient
	mux    *runtime.ServeMux
	large  *Bodies
}

func (a *appender) serve(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	if call := httpCallOf(r.Context()); call.probing {
		call.method = parleyv1.ConversationService_AppendStream_FullMethodName
		return
	}
	_ = http.NewResponseController(w).EnableFullDuplex() // It fails only in tests without a network.
	var sending sync.WaitGroup
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	ctx, err := runtime.AnnotateContext(ctx, a.mux, r, parleyv1.ConversationService_AppendStream_FullMethodName)
	replies := &replyLines{w: w}
	if err == nil {
		err = a.run(ctx, r, replies, &sending)
	}
	switch {
	case err == nil:
		replies.begin()
		return
	case !replies.begun:
		runtime.HTTPError(r.Context(), a.mux, nil, w, r, err)
	default:
		replies.end(StatusOf(ctx, err))
	}
	cancel()
	linger(w, r, &sending)
}

// run appends the lines of the body of the request and writes the replies. The error is a status. After an error the
// body may still be read until sending is done.
func (a *appender) run(ctx context.Context, r *http.Request, replies *replyLines, sending *sync.WaitGroup) error {
	call := httpCallOf(r.Context())
	for _, name := range slices.Sorted(maps.Keys(call.query)) {
		var f faults
		f.add(quoteName(name), "is not a parameter: an append of lines accepts none")
		return f.err()
	}
	stream, err := a.client.AppendStream(call.outgoing(ctx))
	if err != nil {
		return err
	}
	call.sent = true
	u := &upload{
		stream: stream, large: a.large, newRequest: func() proto.Message { return new(parleyv1.AppendStreamRequest) },
		complete: func(proto.Message) {},
	}
	var fault *lineFault
	sending.Go(func() { fault = u.sendAll(r.Body) })
	if err := replies.copy(stream); err != nil {
		return err
	}
	sending.Wait() // This does not block: the server ends the stream without an error only after the last line.
	if fault != nil {
		return fault.ended("the append ended at line %d; the lines before it were answered", fault.line).Err()
	}
	return nil
}

// replyLines writes the replies of a stream as lines.
type replyLines struct {
	w     http.ResponseWriter
	begun bool // the header was written
}

// begin writes the header once.
func (l *replyLines) begin() {
	if l.begun {
		return
	}
	l.begun = true
	header := l.w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("Content-Type", mediaLines)
	header.Set("X-Accel-Buffering", "no") // A proxy must not buffer the replies.
	l.w.WriteHeader(http.StatusOK)
}

// copy writes all replies of a stream. It flushes them when no further reply has arrived. It returns the error of the
// stream, or nil if the stream ended without one.
func (l *replyLines) copy(stream grpc.ServerStreamingClient[parleyv1.AppendStreamResponse]) error {
	const buffered = 64
	replies := make(chan *parleyv1.AppendStreamResponse, buffered)
	ended := make(chan error, 1)
	go func() { // It ends when the call ends.
		defer close(replies)
		for {
			reply, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			replies <- reply
		}
	}()
	for reply := range replies {
		l.begin()
		l.write(reply)
		if len(replies) == 0 {
			_ = http.NewResponseController(l.w).Flush() // responseWriter ends the request if it fails.
		}
	}
	if err := <-ended; !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// end writes a last line with the error that ended the stream.
func (l *replyLines) end(st *status.Status) {
	l.write(&parleyv1.AppendStreamResponse{Result: &parleyv1.AppendStreamResponse_Error{Error: st.Proto()}})
}

func (l *replyLines) write(reply proto.Message) {
	line, err := new(marshaler).Marshal(reply)
	if err != nil { // The details of a status have a type that this server does not know.
		line = []byte(`{"error":{"code":13,"message":"internal error"}}` + "\n")
	}
	_, _ = l.w.Write(line) // responseWriter ends the request if it fails.
}

// upload sends the lines of one body as requests of a stream.
type upload struct {
	stream     grpc.ClientStream
	large      *Bodies
	newRequest func() proto.Message
	complete   func(proto.Message) // sets further fields of a request before it is sent
}

// sendAll sends the lines of the body until a line has a fault, and then closes the stream for sending. It returns
// early if the server ends the call.
func (u *upload) sendAll(body io.Reader) *lineFault {
	defer u.stream.CloseSend() //nolint:errcheck // It never fails.
	lines := bufio.NewReaderSize(body, 64<<10)
	for n := 1; ; n++ {
		fault := &lineFault{line: n}
		line, err := readLine(lines)
		if len(bytes.TrimSpace(line)) > 0 && (err == nil || errors.Is(err, io.EOF)) {
			if ok := u.send(line, fault); !ok {
				if len(fault.violations) == 0 {
					return nil
				}
				return fault
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, errLineTooLong):
			fault.tooLarge = true
			fault.add(fault.name(), "is larger than %d bytes", maxLineBytes)
			return fault
		case err != nil:
			fault.add(fault.name(), "is not complete: the body ends within it")
			return fault
		}
	}
}

// send sends a line, unless it has a fault. It reports whether the server accepts more lines.
func (u *upload) send(line []byte, fault *lineFault) bool {
	release, err := u.large.acquireValue(u.stream.Context(), line, 0)
	if err != nil {
		if status.Code(err) == codes.ResourceExhausted {
			fault.tooLarge = true
			fault.add(fault.name(), "has more values than a message of %d bytes can contain", maxBodyBytes)
		}
		return false // For any other error the call itself has ended with a status.
	}
	defer release()
	request := u.newRequest()
	if fault.decode(line, request) {
		return false
	}
	u.complete(request)
	return u.stream.SendMsg(request) == nil // If it fails, RecvMsg returns the reason.
}

// errLineTooLong is returned if a line is longer than maxLineBytes.
var errLineTooLong = errors.New("line too long")

// readLine reads a line, which is valid until the next read. The last line is returned with io.EOF.
func readLine(from *bufio.Reader) ([]byte, error) {
	line, err := from.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, err
	}
	long := bytes.Clone(line)
	for errors.Is(err, bufio.ErrBufferFull) {
		if len(long) > maxLineBytes {
			return nil, errLineTooLong
		}
		line, err = from.ReadSlice('\n')
		long = append(long, line...)
	}
	return long, err
}

// lineFault describes the faults of the line that ended a stream of lines.
type lineFault struct {
	faults
	line     int // from 1
	tooLarge bool
}

func (f *lineFault) name() string { return fmt.Sprint("line ", f.line) }

// decode decodes a line into request and reports whether the line has a fault.
func (f *lineFault) decode(line []byte, request proto.Message) bool {
	if protojson.Unmarshal(line, request) != nil {
		f.checkJSON(f.name(), line, request.ProtoReflect().Descriptor())
		return true
	}
	if size := proto.Size(request); size > maxBodyBytes {
		f.tooLarge = true
		f.add(f.name(), "is %d bytes as a message, more than the limit of %d", size, maxBodyBytes)
	}
	return f.tooLarge
}

// status returns the error of an import, with the line's faults and what was imported before the line.
func (f *lineFault) status(taken *parleyv1.ImportConversationsResponse) *status.Status {
	st := f.ended("the import ended at line %d; before it %d conversations were imported, %d skipped, %d refused",
		f.line, taken.GetImportedCount(), taken.GetSkippedCount(), len(taken.GetFailures()))
	if detailed, err := st.WithDetails(taken); err == nil {
		return detailed
	}
	return st
}

// ended returns an error with the text of format, which says what ended, and the line's faults.
func (f *lineFault) ended(format string, args ...any) *status.Status {
	code, reason := codes.InvalidArgument, "INVALID_REQUEST"
	if f.tooLarge {
		code, reason = codes.ResourceExhausted, reasonBodyTooLarge
	}
	text := fmt.Appendf(nil, format, args...)
	for _, v := range f.violations {
		text = fmt.Appendf(text, "; %s: %s", v.GetField(), v.GetDescription())
	}
	return NewStatus(code, reason, string(text), &errdetails.BadRequest{FieldViolations: f.violations})
}
