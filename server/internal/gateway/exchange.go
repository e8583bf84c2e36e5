package gateway

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"google.golang.org/grpc/metadata"
)

// exchangeKey is where the door leaves the exchange for whoever gets the context of a call.
type exchangeKey struct{}

// exchange is an HTTP request that becomes a call, and what is known of it on the way.
type exchange struct {
	// request is as it came in, but for its body, which is read.
	request *http.Request
	// params are the parts of the path that are fields of the request message, by the path
	// of the field: "conversation.id".
	params map[string]string
	query  url.Values
	// text is the body, other than that of an import.
	text []byte
	// sent says that a request message has left: from then on errors are the server's.
	sent bool

	// leave ends the time of a large body; nil for an import.
	leave func()

	// asking says that nothing is to be called: known shall say whether the path is, and
	// streams whether it is that of a stream.
	asking, known, streams bool
}

// exchangeOf returns the exchange that the context of a call, or of its HTTP request, belongs
// to.
func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// readHeader is the part of the header that the generated code may see. The media type of the
// body is not: whatever it is said to be, as a form say by curl, it is taken for JSON. Nor is
// what would make the request one of another method.
func (x *exchange) readHeader() http.Header {
	header := make(http.Header, 2)
	if values := x.request.Header["Accept"]; len(values) > 0 {
		header["Accept"] = values
	}
	if timeout := x.request.Header.Get("Grpc-Timeout"); timeout != "" {
		header["Grpc-Timeout"] = []string{cappedTimeout(timeout)}
	}
	return header
}

// outgoing is the context of the call, with the metadata that goes along and no other.
func (x *exchange) outgoing(ctx context.Context) context.Context {
	var md metadata.MD
	for header, key := range map[string]string{"Authorization": "authorization", "Traceparent": "traceparent"} {
		// gRPC refuses to send values that are not printable. A credential that cannot be
		// sent is none.
		if value := x.request.Header.Get(header); value != "" && isPrintable(value) {
			if md == nil {
				md = make(metadata.MD, 2)
			}
			md[key] = []string{value}
		}
	}
	return metadata.NewOutgoingContext(ctx, md)
}

func isPrintable(text string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) < 0
}

// begin takes in what stands in the path, the query and the header of a request. An error is
// a status.
func (x *exchange) begin(r *http.Request, params map[string]string) error {
	var f faults
	x.params = params
	f.inPath(params)
	var err error
	if x.query, err = url.ParseQuery(r.URL.RawQuery); err != nil {
		f.add(wholeQuery, "is malformed: parameters are parted by & and hold other bytes than letters, digits and - . _ ~ as %%XX")
	}
	if timeout := r.Header.Get("Grpc-Timeout"); timeout != "" && !isTimeout(timeout) {
		f.add("Grpc-Timeout", "is none: 1 to 8 digits and one of H M S m u n, as in 5S")
	}
	// The generated code takes the fields in the query from here, and would else read a form.
	r.Form, r.PostForm = x.query, url.Values{}
	return f.err()
}

// isTimeout says whether a header is the timeout of a call as the protocol of gRPC has it. 0
// is none.
func isTimeout(header string) bool {
	const (
		most  = 8 // digits
		units = "HMSmun"
	)
	last := len(header) - 1
	digits, unit := header[:last], header[last:]
	return digits != "" && len(digits) <= most && strings.Trim(digits, "0123456789") == "" && strings.Trim(digits, "0") != "" &&
		strings.Contains(units, unit)
}

// cappedTimeout returns a timeout of at most a year. The generated code computes in nanoseconds: an
// int64 has space for 292 years, but 8 digits of hours are up to 11,408 years.
func cappedTimeout(header string) string {
	const year = 365 * 24
	digits, inHours := strings.CutSuffix(header, "H")
	if hours, err := strconv.Atoi(digits); inHours && isTimeout(header) && err == nil && hours > year {
		return strconv.Itoa(year) + "H"
	}
	return header
}

// bodyField is the field of the request message that the body is: "*" is the message itself,
// "" is none. A path with a field of a message in it is that of a call to change this message.
func (x *exchange) bodyField() string {
	switch x.request.Method {
	case http.MethodGet, http.MethodHead, http.MethodDelete:
		return ""
	}
	for param := range x.params {
		if field, _, inside := strings.Cut(param, "."); inside {
			return field
		}
	}
	return "*"
}

// setBody takes in the body. An error is a status.
func (x *exchange) setBody(text []byte) error {
	x.text = text
	if x.bodyField() == "" && len(bytes.TrimSpace(text)) > 0 {
		var f faults
		f.add(wholeBody, "is not read with %s: give its fields as parameters of the query", x.request.Method)
		return f.err()
	}
	return nil
}
