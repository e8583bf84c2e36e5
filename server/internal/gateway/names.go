package gateway

import (
	"context"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// jsonPath converts the path of a field from the names of the protos to those of JSON: structured_data[0].type becomes
// structuredData[0].type. Keys of maps, which are quoted, stay as they are.
func jsonPath(path string) string {
	var out strings.Builder
	quoted, upper := false, false
	for i := 0; i < len(path); i++ {
		c := path[i]
		switch {
		case c == '\\' && quoted && i+1 < len(path):
			out.WriteByte(c)
			i++
			c = path[i]
		case c == '"':
			quoted = !quoted
		case c == '_' && !quoted:
			upper = true
			continue
		case upper && 'a' <= c && c <= 'z':
			c -= 'a' - 'A'
		}
		upper = false
		out.WriteByte(c)
	}
	return out.String()
}

// jsonNamesConn is a connection whose errors name the fields of a request as in JSON. The server names them as in the
// protos, because gRPC has no other names.
type jsonNamesConn struct{ grpc.ClientConnInterface }

// Invoke makes a unary call.
func (c jsonNamesConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return withJSONNames(c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...))
}

// NewStream starts a streaming call.
func (c jsonNamesConn) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	stream, err := c.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	if err != nil {
		return nil, withJSONNames(err)
	}
	return jsonNamesStream{stream}, nil
}

type jsonNamesStream struct{ grpc.ClientStream }

// RecvMsg receives a reply. The error of one request of an append of lines is in its reply.
func (s jsonNamesStream) RecvMsg(reply any) error {
	if err := s.ClientStream.RecvMsg(reply); err != nil {
		return withJSONNames(err)
	}
	if appended, ok := reply.(*parleyv1.AppendStreamResponse); ok {
		setJSONNames(appended.GetError())
	}
	return nil
}

// withJSONNames returns err with the fields of its violations in the names of JSON. Other errors, such as io.EOF, are
// returned unchanged.
func withJSONNames(err error) error {
	carrier, ok := err.(interface{ GRPCStatus() *status.Status })
	if !ok {
		return err
	}
	st := carrier.GRPCStatus().Proto()
	if !setJSONNames(st) {
		return err
	}
	return status.ErrorProto(st)
}

// setJSONNames changes the fields of the violations of st, and where the message names them before a colon. It reports
// whether st has violations.
func setJSONNames(st *rpcstatus.Status) (changed bool) {
	for i, detail := range st.GetDetails() {
		bad := new(errdetails.BadRequest)
		if detail.UnmarshalTo(bad) != nil {
			continue
		}
		for _, v := range bad.GetFieldViolations() {
			path := jsonPath(v.GetField())
			st.Message = strings.Replace(st.GetMessage(), v.GetField()+":", path+":", 1)
			v.Field = path
		}
		if named, err := anypb.New(bad); err == nil {
			st.Details[i], changed = named, true
		}
	}
	return changed
}
