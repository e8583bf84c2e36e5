package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// maxLineBytes bounds a line of an import. What is exported must fit whatever is in it: a
// message of maxBodyBytes is up to six times as long in JSON.
const maxLineBytes = 6 * maxBodyBytes

// importer takes in conversations as JSON lines. The handler that is generated says nothing
// of what was taken in ahead of a line that is malformed.
type importer struct {
	client parleyv1.ConversationServiceClient
	mux    *runtime.ServeMux
}

func (i *importer) serve(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	// A deadline may end the body, see await, and net/http takes one that comes just behind
	// its end for the end of the connection.
	w.Header().Set("Connection", "close")
	ctx, err := runtime.AnnotateContext(r.Context(), i.mux, r, parleyv1.ConversationService_ImportConversations_FullMethodName)
	if err == nil {
		var reply *parleyv1.ImportConversationsResponse
		if reply, err = i.run(ctx, w, r); err == nil {
			runtime.ForwardResponseMessage(ctx, i.mux, new(marshaler), w, r, reply)
			return
		}
	}
	runtime.HTTPError(r.Context(), i.mux, nil, w, r, err)
	linger(w, r)
}

// run imports the body of the request. An error is a status.
func (i *importer) run(ctx context.Context, w http.ResponseWriter, r *http.Request) (*parleyv1.ImportConversationsResponse, error) {
	x := exchangeOf(r.Context())
	overwrite, err := overwrites(x.query)
	if err != nil {
		return nil, err
	}
	stream, err := i.client.ImportConversations(x.outgoing(ctx))
	if err != nil {
		return nil, err
	}
	x.sent = true
	u := &upload{stream: stream, overwrite: overwrite, control: http.NewResponseController(w), ended: make(chan struct{})}
	go u.await()
	fault := u.sendAll(r.Body)
	if err := stream.CloseSend(); err != nil {
		return nil, err
	}
	<-u.ended
	switch {
	case u.err != nil:
		return nil, u.err
	case fault != nil:
		return nil, fault.status(u.reply).Err()
	}
	return u.reply, nil
}

// overwrites reads the query of an import: whether all or none are to be overwritten; nil:
// each line says that for itself. An error is a status.
func overwrites(query url.Values) (*bool, error) {
	const name = "overwrite"
	var f faults
	var all *bool
	for other, values := range query {
		value, err := strconv.ParseBool(values[len(values)-1])
		switch {
		case other != name:
			f.add(other, "is no parameter of an import, which has %s only", name)
		case err != nil:
			f.add(name, "is true or false")
		default:
			all = &value
		}
	}
	return all, f.err()
}

// upload is the import of one body.
type upload struct {
	stream    grpc.ClientStreamingClient[parleyv1.ImportConversationsRequest, parleyv1.ImportConversationsResponse]
	overwrite *bool
	control   *http.ResponseController

	ended chan struct{} // Closed when there is a reply, or an error.
	reply *parleyv1.ImportConversationsResponse
	err   error
}

// await waits for what the server says. If that is ahead of the end of the body it is why
// the rest is not wanted, also while the client sends nothing.
func (u *upload) await() {
	defer close(u.ended)
	u.reply = new(parleyv1.ImportConversationsResponse)
	u.err = u.stream.RecvMsg(u.reply)
	_ = u.control.SetReadDeadline(time.Now()) // In vain only for writers without a network.
}

// sendAll sends what is in the body, up to a line that has a fault. It returns early when
// the server wants no more.
func (u *upload) sendAll(body io.Reader) *lineFault {
	lines := bufio.NewReaderSize(body, 64<<10)
	for n := 1; ; n++ {
		fault := &lineFault{line: n}
		line, err := readLine(lines)
		if len(bytes.TrimSpace(line)) > 0 && (err == nil || errors.Is(err, io.EOF)) {
			request := new(parleyv1.ImportConversationsRequest)
			if fault.search(line, request) {
				return fault
			}
			if u.overwrite != nil {
				request.Overwrite = *u.overwrite
			}
			if u.stream.Send(request) != nil {
				return nil // The server says why.
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
			fault.add(fault.name(), "is not complete: the body ends before its end")
			return fault
		}
	}
}

// errLineTooLong says that a line is longer than maxLineBytes.
var errLineTooLong = errors.New("line too long")

// readLine reads a line, which is only good until the next one; the last with io.EOF.
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

// lineFault is what is wrong with the line that ends an import.
type lineFault struct {
	faults
	line     int // from 1
	tooLarge bool
}

func (f *lineFault) name() string { return fmt.Sprint("line ", f.line) }

// search reads a line, and reports whether there is a fault in it.
func (f *lineFault) search(line []byte, request *parleyv1.ImportConversationsRequest) bool {
	if protojson.Unmarshal(line, request) != nil {
		f.inJSON(f.name(), line, request.ProtoReflect().Descriptor())
		return true
	}
	if size := proto.Size(request); size > maxBodyBytes {
		f.tooLarge = true
		f.add(f.name(), "is %d bytes as a message, and may be %d", size, maxBodyBytes)
	}
	return f.tooLarge
}

// status names the line and says what was taken in ahead of it.
func (f *lineFault) status(taken *parleyv1.ImportConversationsResponse) *status.Status {
	code, reason := codes.InvalidArgument, "INVALID_REQUEST"
	if f.tooLarge {
		code, reason = codes.ResourceExhausted, reasonBodyTooLarge
	}
	var text strings.Builder
	fmt.Fprintf(&text, "the import ends at line %d; ahead of it %d conversations were imported, %d skipped, %d refused",
		f.line, taken.GetImportedCount(), taken.GetSkippedCount(), len(taken.GetFailures()))
	for _, v := range f.violations {
		fmt.Fprintf(&text, "; %s: %s", v.GetField(), v.GetDescription())
	}
	return newStatus(code, reason, text.String(), &errdetails.BadRequest{FieldViolations: f.violations}, taken)
}
