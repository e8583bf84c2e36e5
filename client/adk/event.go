package adk

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"google.golang.org/adk/v2/session"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	// nativeEvent is the type of a message with an event: the value is its JSON.
	nativeEvent = "google.adk.event"
	// nativeRecords is the type of a message whose event is in records: the value is an eventReference.
	nativeRecords = "google.adk.event.records"
	// eventKey is the start of the keys of such records. The SHA-256 of the JSON and the number of the part follow.
	eventKey = "adk/event/"
	// eventNumber is the metadata of a message with the number of its event, from 1.
	eventNumber = "adk.event"

	// maxInline is the size of the JSON in a message, in bytes. Larger events are in records, for which a server has more
	// space: 256 MiB in a conversation and not 3 MiB.
	maxInline = 32 << 10
	// maxPart is the size of a record.
	maxPart = 3 << 20
	// maxRequest is the size of a request. The rest up to the limit of 4 MiB is for what gRPC adds.
	maxRequest = client.MaxGRPCBytes - 64<<10
)

// eventReference says where the event of a message is.
type eventReference struct {
	Keys      []string     `json:"keys"` // The values of these records, one after the other, are the JSON.
	Timestamp epochSeconds `json:"timestamp"`
}

// encodeEvent returns an event as JSON. The time is a number, which the frameworks of all languages read.
func encodeEvent(event *session.Event) ([]byte, error) {
	text, err := marshal(struct {
		session.Event
		Timestamp epochSeconds `json:"timestamp"` // Hides that of Event.
	}{*event, epochSeconds(event.Timestamp)})
	if err != nil {
		return nil, fmt.Errorf("event %q: %w", event.ID, err)
	}
	return text, nil
}

// decodeEvent returns the event of its JSON, that of this package or of the adapter for Python.
func decodeEvent(text []byte) (*session.Event, error) {
	event := &session.Event{}
	err := json.Unmarshal(text, event)
	if err == nil && !bytes.Contains(text, []byte(`"invocation_id":`)) {
		return event, nil
	}
	var python any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if decoder.Decode(&python) == nil {
		event = &session.Event{}
		if text, textErr := marshal(translate(python, reflect.TypeFor[session.Event]())); textErr == nil {
			err = json.Unmarshal(text, event)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("decode an event: %w", err)
	}
	return event, nil
}

// translate returns JSON of Python as the JSON of a Go type: with the names of fields in camel case, and with bytes in
// standard base64, not in the URL-safe one. Values of users, which Go has as any, stay as they are.
func translate(value any, as reflect.Type) any {
	switch value := value.(type) {
	case string:
		if as == reflect.TypeFor[[]byte]() {
			return strings.NewReplacer("-", "+", "_", "/").Replace(value)
		}
	case []any:
		if as.Kind() == reflect.Slice {
			for i := range value {
				value[i] = translate(value[i], as.Elem())
			}
		}
	case map[string]any:
		switch as.Kind() {
		case reflect.Pointer:
			return translate(value, as.Elem())
		case reflect.Map:
			for key := range value {
				value[key] = translate(value[key], as.Elem())
			}
		case reflect.Struct:
			return translateFields(value, as)
		}
	}
	return value
}

// translateFields returns an object of Python as the JSON of a Go struct.
func translateFields(object map[string]any, as reflect.Type) map[string]any {
	types := map[string]reflect.Type{}
	for _, field := range reflect.VisibleFields(as) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		types[name] = field.Type
	}
	translated := map[string]any{}
	for name, value := range object {
		if _, ok := types[name]; !ok {
			name = camelCase(name)
		}
		if fieldType, ok := types[name]; ok {
			value = translate(value, fieldType)
		}
		translated[name] = value
	}
	return translated
}

// camelCase returns a name of Python in the form of the API: invocationId for invocation_id.
func camelCase(name string) string {
	words := strings.Split(name, "_")
	for i, word := range words {
		if i > 0 && word != "" {
			words[i] = strings.ToUpper(word[:1]) + word[1:]
		}
	}
	return strings.Join(words, "")
}

// eventRecords returns the writes of the records of an event. Their keys depend on nothing but the JSON: an append that
// is repeated writes the same records.
func eventRecords(text []byte) []*parleyv1.RecordWrite {
	digest := sha256.Sum256(text)
	var writes []*parleyv1.RecordWrite
	for part := range slices.Chunk(text, maxPart) {
		key := fmt.Sprintf("%s%s/%d", eventKey, hex.EncodeToString(digest[:]), len(writes))
		writes = append(writes, &parleyv1.RecordWrite{Key: key, Value: part, MediaType: mediaType})
	}
	return writes
}
