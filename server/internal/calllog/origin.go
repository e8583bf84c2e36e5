package calllog

import (
	"context"
	"net/http"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// Keys of the metadata of a call.
const (
	// CallIDKey is the key of an id that the caller gives to the call. Over HTTP it is the header X-Request-Id.
	CallIDKey = "x-request-id"
	// traceKey is the key of the trace context of the caller; see W3C Trace Context.
	traceKey = "traceparent"
	// peerKey is the key of the address of an HTTP client, on the calls that the HTTP transport makes in memory. It has
	// no effect on a call that arrives over a network.
	peerKey = "parley-peer"
)

// Forwarded returns the metadata with which the HTTP transport passes on what entries contain about a request. The
// caller must not pass on metadata with the same keys from its clients.
func Forwarded(r *http.Request) metadata.MD {
	md := metadata.MD{peerKey: {r.RemoteAddr}}
	if id := validCallID(r.Header.Get(CallIDKey)); id != "" {
		md[CallIDKey] = []string{id}
	}
	return md
}

// callOrigin says where a call comes from.
type callOrigin struct {
	transport string // "grpc" or "http"
	peer      string // address of the client
	callID    string // that the caller gave to the call
}

func origin(ctx context.Context, inProcess bool) callOrigin {
	o := callOrigin{callID: validCallID(first(ctx, CallIDKey))}
	if inProcess {
		o.transport, o.peer = "http", first(ctx, peerKey)
		return o
	}
	o.transport = "grpc"
	if from, ok := peer.FromContext(ctx); ok {
		o.peer = from.Addr.String()
	}
	return o
}

// first returns the first value of a key of the metadata that a call arrived with, or "".
func first(ctx context.Context, key string) string {
	if values := metadata.ValueFromIncomingContext(ctx, key); len(values) > 0 {
		return values[0]
	}
	return ""
}

// sentTraceID returns the id of the trace that a caller sent, or "".
func sentTraceID(ctx context.Context) string {
	const (
		version = 2
		traceID = 32
	)
	sent := first(ctx, traceKey) // VERSION-TRACEID-PARENTID-FLAGS
	if len(sent) < version+1+traceID+1 || sent[version] != '-' || sent[version+1+traceID] != '-' {
		return ""
	}
	id := sent[version+1 : version+1+traceID]
	if strings.Trim(id, "0123456789abcdef") != "" || strings.Trim(id, "0") == "" {
		return ""
	}
	return id
}
