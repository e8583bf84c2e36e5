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
	"strings"
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

// maxLineBytes bounds a line of an import. What is exported must fit whatever is in it: a
// message of maxBodyBytes is up to six times as long in JSON.
const maxLineBytes = 6 * maxBodyBytes

// importer takes in conversations as JSON lines. The handler that is generated says nothing
// of what was taken in ahead of a line that is malformed.
type importer struct {
	client parleyv1.ConversationServiceClient
	mux    *runtime.ServeMux
	large  *largeBodies
}

func (i *importer) serve(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	// What the server says ahead of the end of the body is the answer at once.
	_ = http.NewResponseController(w).EnableFullDuplex() // In vain only for writers without a network.
	var sending sync.WaitGroup
	ctx, err := runtime.AnnotateContext(r.Context(), i.mux, r, parleyv1.ConversationService_ImportConversations_FullMethodName)
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

// run imports the body of the request. An error is a status, with which the body may still be
// in use as long as sending says so.
func (i *importer) run(ctx context.Context, r *http.Request, sending *sync.WaitGroup) (*parleyv1.ImportConversationsResponse, error) {
	x := exchangeOf(r.Context())
	overwrite, err := overwrites(x.query)
	if err != nil {
		return nil, err
	}
	ctx, end := outlasting(ctx)
	defer end()
	stream, err := i.client.ImportConversations(x.outgoing(ctx))
	if err != nil {
		return nil, err
	}
	x.sent = true
	u := &upload{stream: stream, overwrite: overwrite, large: i.large}
	var fault *lineFault
	sending.Go(func() {
		fault = u.sendAll(r.Body)
		_ = stream.CloseSend() // It never fails.
	})
	reply := new(parleyv1.ImportConversationsResponse)
	if err := stream.RecvMsg(reply); err != nil {
		return nil, err
	}
	sending.Wait() // There is a reply since all has been sent.
	if fault != nil {
		return nil, fault.status(reply).Err()
	}
	return reply, nil
}

// outlasting is ctx without the end that a client gives it: net/http takes a body that breaks
// off for the client's leaving, but what was taken in ahead is to be told. The call ends all
// the same, since without a body there is nothing more to send.
func outlasting(ctx context.Context) (context.Context, context.CancelFunc) {
	alone := context.WithoutCancel(ctx)
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithDeadline(alone, deadline)
	}
	return context.WithCancel(alone)
}

// overwrites reads the query of an import: whether all or none are to be overwritten; nil:
// each line says that for itself. An error is a status.
func overwrites(query url.Values) (*bool, error) {
	const name = "overwrite"
	var f faults
	var all *bool
	for _, other := range slices.Sorted(maps.Keys(query)) {
		value, err := strconv.ParseBool(query.Get(other))
		switch {
		case other != name:
			f.add(plain(other), "is no parameter of an import, which has %s only", name)
		case len(query[name]) > 1:
			f.add(name, "must be given once")
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
	large     *largeBodies
}

// sendAll sends what is in the body, up to a line that has a fault. It returns early when
// the server wants no more.
func (u *upload) sendAll(body io.Reader) *lineFault {
	lines := bufio.NewReaderSize(body, 64<<10)
	for n := 1; ; n++ {
		fault := &lineFault{line: n}
		line, err := readLine(lines)
		if len(bytes.TrimSpace(line)) > 0 && (err == nil || errors.Is(err, io.EOF)) {
			if goesOn := u.send(line, fault); !goesOn {
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
			fault.add(fault.name(), "is not complete: the body ends before its end")
			return fault
		}
	}
}

// send sends a line, unless there is a fault in it, and reports whether the server wants more.
func (u *upload) send(line []byte, fault *lineFault) bool {
	leave, err := u.large.enter(u.stream.Context(), line, 0)
	if err != nil {
		if status.Code(err) == codes.ResourceExhausted {
			fault.tooLarge = true
			fault.add(fault.name(), "has more values than a message of %d bytes can have", maxBodyBytes)
		}
		return false // On another error the call has ended with its own status.
	}
	defer leave()
	request := new(parleyv1.ImportConversationsRequest)
	if fault.search(line, request) {
		return false
	}
	if u.overwrite != nil {
		request.Overwrite = *u.overwrite
	}
	return u.stream.Send(request) == nil // If not, the server says why.
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
