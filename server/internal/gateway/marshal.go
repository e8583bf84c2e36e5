package gateway

import (
	"bytes"
	"fmt"
	"io"
	"reflect"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// The media types of streams.
const (
	mediaLines  = "application/x-ndjson"
	mediaEvents = "text/event-stream"
)

// marshaler is the JSON of this door: camelCase names, enums by name, without fields that
// are empty or 0. What comes in may have snake_case names as well; names that nobody knows
// are errors. The replies of a stream are lines of their own, or server-sent events.
type marshaler struct {
	runtime.JSONPb
	events bool
}

// marshalerOptions have lines for everybody and events for those whose Accept header is
// nothing but mediaEvents; see [withOutlet].
func marshalerOptions() []runtime.ServeMuxOption {
	return []runtime.ServeMuxOption{
		runtime.WithMarshalerOption(runtime.MIMEWildcard, &marshaler{}),
		runtime.WithMarshalerOption(mediaEvents, &marshaler{events: true}),
	}
}

// StreamContentType is that of the replies of a stream.
func (m *marshaler) StreamContentType(any) string {
	if m.events {
		return mediaEvents
	}
	return mediaLines
}

// Marshal writes a message on a line, or a reply of a stream without its Delimiter: the
// gateway wraps those into a map, by the name "result", or "error" for a status that ends
// the stream. The rest is what a message has as a field.
func (m *marshaler) Marshal(v any) ([]byte, error) {
	switch v := v.(type) {
	case proto.Message:
		body, err := appendJSON(make([]byte, 0, proto.Size(v)*5/4+64), v)
		return append(body, '\n'), err // A shell goes on below it.
	case map[string]any:
		switch reply := v["result"].(type) {
		case numbered:
			return m.marshalReply(reply.id, reply.Message)
		case proto.Message:
			return m.marshalReply("", reply)
		}
	case map[string]proto.Message:
		if status, ok := v["error"]; ok {
			return m.marshalError(status)
		}
	}
	return m.JSONPb.Marshal(v)
}

// numbered is a reply of a stream with the id of its event.
type numbered struct {
	proto.Message
	id string
}

func (m *marshaler) marshalReply(id string, reply proto.Message) ([]byte, error) {
	if !m.events {
		return appendJSON(nil, reply)
	}
	return appendEvent("id", id, reply)
}

// marshalError writes the last reply of a stream that has failed.
func (m *marshaler) marshalError(status proto.Message) ([]byte, error) {
	if m.events {
		return appendEvent("event", "error", status)
	}
	line := []byte(`{"error":`)
	line, err := appendJSON(line, status)
	return append(line, '}'), err
}

// appendEvent writes a server-sent event, unless its field has no value without that field.
// JSON on one line has no line ends, which would end the data.
func appendEvent(field, value string, data proto.Message) ([]byte, error) {
	event := make([]byte, 0, 128)
	if value != "" {
		event = fmt.Appendf(event, "%s: %s\n", field, value)
	}
	event = append(event, "data: "...)
	event, err := appendJSON(event, data)
	return append(event, '\n'), err
}

// Delimiter is behind every reply of a stream: the end of its line, or of its event.
func (m *marshaler) Delimiter() []byte { return []byte{'\n'} }

// Unmarshal reads one message, or a field of one that is a message itself, and nothing else
// may come behind it.
func (m *marshaler) Unmarshal(data []byte, v any) error {
	if message, ok := v.(proto.Message); ok {
		return protojson.Unmarshal(data, message)
	}
	if field := reflect.ValueOf(v); field.Kind() == reflect.Pointer && field.Elem().Kind() == reflect.Pointer {
		value := reflect.New(field.Elem().Type().Elem())
		if message, ok := reflect.TypeAssert[proto.Message](value); ok {
			field.Elem().Set(value)
			return protojson.Unmarshal(data, message)
		}
	}
	return fmt.Errorf("%T cannot be the body of a request", v)
}

// NewDecoder returns one that takes all that r has for one message; io.EOF if that is nothing
// but blanks.
func (m *marshaler) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		whole, ok := r.(*body)
		if !ok {
			text, err := io.ReadAll(r)
			if err != nil {
				return err
			}
			whole = newBody(text)
		}
		if len(bytes.TrimSpace(whole.text)) == 0 {
			return io.EOF
		}
		return m.Unmarshal(whole.text, v)
	})
}
