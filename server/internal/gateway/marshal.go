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

// marshaler encodes and decodes JSON. Names are written in camelCase and enums by name; fields that
// are empty or 0 are omitted. Input may use snake_case names; unknown names are errors. Each reply
// of a stream is a line or a server-sent event.
type marshaler struct {
	runtime.JSONPb
	events bool
}

// marshalerOptions returns the mux options that select server-sent events if the Accept header is
// exactly mediaEvents, and lines otherwise; see [LimitWrites].
func marshalerOptions() []runtime.ServeMuxOption {
	return []runtime.ServeMuxOption{
		runtime.WithMarshalerOption(runtime.MIMEWildcard, &marshaler{}),
		runtime.WithMarshalerOption(mediaEvents, &marshaler{events: true}),
	}
}

// StreamContentType returns the media type of the replies of a stream.
func (m *marshaler) StreamContentType(any) string {
	if m.events {
		return mediaEvents
	}
	return mediaLines
}

// Marshal encodes a message on one line, or a reply of a stream without its Delimiter. The gateway
// library passes a reply in a map under "result", and the status that ends a stream under "error".
// Any other value is a field of a message.
func (m *marshaler) Marshal(v any) ([]byte, error) {
	switch v := v.(type) {
	case proto.Message:
		body, err := appendJSON(make([]byte, 0, proto.Size(v)*5/4+64), v)
		return append(body, '\n'), err // A shell prints its prompt on the next line.
	case map[string]any:
		switch reply := v["result"].(type) {
		case replyWithID:
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

// replyWithID is a reply of a stream with the id of its event.
type replyWithID struct {
	proto.Message
	id string
}

func (m *marshaler) marshalReply(id string, reply proto.Message) ([]byte, error) {
	if !m.events {
		return appendJSON(nil, reply)
	}
	return appendEvent("id", id, reply)
}

// marshalError encodes the last reply of a stream that failed.
func (m *marshaler) marshalError(status proto.Message) ([]byte, error) {
	if m.events {
		return appendEvent("event", "error", status)
	}
	line := []byte(`{"error":`)
	line, err := appendJSON(line, status)
	return append(line, '}'), err
}

// appendEvent appends a server-sent event with a field, which is omitted if value is empty. JSON on
// one line contains no line break, which would end the data.
func appendEvent(field, value string, data proto.Message) ([]byte, error) {
	event := make([]byte, 0, 128)
	if value != "" {
		event = fmt.Appendf(event, "%s: %s\n", field, value)
	}
	event = append(event, "data: "...)
	event, err := appendJSON(event, data)
	return append(event, '\n'), err
}

// Delimiter returns what follows each reply of a stream: the end of its line or event.
func (m *marshaler) Delimiter() []byte { return []byte{'\n'} }

// Unmarshal decodes one message, or a field that is a message. It refuses data after the message.
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
	return fmt.Errorf("%T cannot be decoded from the body of a request", v)
}

// NewDecoder returns a decoder that reads all of r as one message. It returns io.EOF if r contains
// only white space.
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
