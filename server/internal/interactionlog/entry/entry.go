// Package entry encodes messages and removals as entries of the interaction log and parses entries. It owns
// the format of an entry and its limits.
//
// An entry is one JSON object in UTF-8 on a line, with these keys in this order:
//
//	timestamp   "2026-11-20T09:30:00.123456Z": when the message was committed, in UTC
//	session_id  id of the conversation
//	tenant      of the conversation; an entry without one belongs to "default"
//	agent       of a user: the message's metadata user, or else "User"; otherwise the name of the
//	            agent; of a tool's result without an agent: the name of the tool
//	role        "user", "assistant", "system" or "tool"
//	content     the text; of a tool's result without a text, the result
//	metadata    model, turn_number, exchange, tokens {input, output, cached_input, reasoning},
//	            turn_id, status ("complete" or "incomplete"), structured_data_types,
//	            native {type, bytes}, then the message's own metadata, sorted by key, without keys
//	            that the server has set
//
// An entry has neither the value of a native form nor the reasoning of a message.
//
// turn_number is the message's sequence: 1, 2, 3 … in its conversation. The other keys of the metadata
// are omitted if they are empty, and a count of tokens if it is 0.
//
// A removal of messages has an entry of its own: agent "parley", role "system", and in metadata turn_number 0,
// removed_count and either removed_after, if all messages after this sequence were removed, or
// removed_sequences. The entries of the removed messages stay. Entries written by hand may have any
// spelling that JSON allows. The keys timestamp, session_id, role and content are required.
//
// Start at [Parse].
package entry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	// MaxBytes is the maximum length of an entry in bytes, without its line break. The encoder writes no
	// longer entry, and readers skip one. A message has at most 3 MiB, store.MaxMessageBytes, and
	// JSON escapes a byte as at most six. The remaining bytes are for the keys and for redacted metadata.
	MaxBytes = 20 << 20
	// ReservedID is the tenant and the conversation of loss entries. No caller can have it.
	ReservedID = "*"
	// DefaultTenant is the tenant of an entry without one.
	DefaultTenant = "default"
	// TimestampLayout is the format of times that the encoder writes. Times in it sort like their
	// bytes.
	TimestampLayout = "2006-01-02T15:04:05.000000Z"
	// maxMetadataDepth is the maximum number of nested objects and lists in metadata. Some clients
	// cannot decode more.
	maxMetadataDepth = 16
	// maxMetadataValues is the maximum number of commas and opening brackets in metadata. Each value
	// has one of them and takes many times its bytes in memory. Entries that the server writes have
	// fewer, even if all of their text consists of them.
	maxMetadataValues = 100_000
)

// Errors of Parse and of the encoder. Callers compare them with errors.Is.
var (
	// ErrInvalid reports a line that is not a valid entry.
	ErrInvalid = errors.New("not an entry of the interaction log")
	// ErrTooLong reports a line longer than MaxBytes.
	ErrTooLong = errors.New("longer than 20 MiB")
)

// Entry is an entry of the log, written by the server or by hand.
type Entry struct {
	Tenant      string
	Interaction *parleyv1.Interaction
}

// Parse parses an entry in any spelling that JSON allows. The keys timestamp, session_id, role
// and content are required, each with a string. A time without a zone is in UTC. Unknown keys are
// ignored. The error wraps ErrInvalid and quotes no content.
func Parse(b []byte) (*Entry, error) {
	var raw struct {
		Timestamp *string         `json:"timestamp"`
		SessionID *string         `json:"session_id"`
		Tenant    string          `json:"tenant"`
		Agent     string          `json:"agent"`
		Role      *string         `json:"role"`
		Content   *string         `json:"content"`
		Metadata  json.RawMessage `json:"metadata"`
	}
	if err := json.Unmarshal(b, &raw); err != nil {
		return nil, describeJSONError(err)
	}
	if raw.Timestamp == nil || raw.SessionID == nil || raw.Role == nil || raw.Content == nil {
		return nil, fmt.Errorf("%w: timestamp, session_id, role and content are required", ErrInvalid)
	}
	at, err := parseTimestamp(*raw.Timestamp)
	if err != nil {
		return nil, err
	}
	role := parseRole(*raw.Role)
	if role == parleyv1.Role_ROLE_UNSPECIFIED {
		return nil, fmt.Errorf(`%w: role is not "user", "assistant", "system" or "tool"`, ErrInvalid)
	}
	metadata, err := newMetadata(raw.Metadata)
	if err != nil {
		return nil, err
	}
	if raw.Tenant == "" {
		raw.Tenant = DefaultTenant
	}
	return &Entry{Tenant: raw.Tenant, Interaction: &parleyv1.Interaction{
		Timestamp: at, ConversationId: *raw.SessionID, Agent: raw.Agent, Role: role, Content: *raw.Content,
		Metadata: metadata,
	}}, nil
}

func parseTimestamp(text string) (*timestamppb.Timestamp, error) {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		at, err = time.Parse("2006-01-02T15:04:05.999999999", text)
	}
	stamp := timestamppb.New(at)
	if err != nil || !stamp.IsValid() {
		return nil, fmt.Errorf("%w: timestamp is not an ISO 8601 time such as %s", ErrInvalid, TimestampLayout)
	}
	return stamp, nil
}

// describeJSONError describes an error of the JSON decoder without the names of Go types.
func describeJSONError(err error) error {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	kind, _, _ := strings.Cut(wrong.Value, " ") // The rest is the number.
	if wrong.Field == "" {
		return fmt.Errorf("%w: it has the JSON type %s, not object", ErrInvalid, kind)
	}
	return fmt.Errorf("%w: %s has the JSON type %s, not string", ErrInvalid, wrong.Field, kind)
}

func newMetadata(raw json.RawMessage) (*structpb.Struct, error) {
	if bytes.Count(raw, []byte{','})+bytes.Count(raw, []byte{'['})+bytes.Count(raw, []byte{'{'}) > maxMetadataValues {
		return nil, fmt.Errorf("%w: metadata has more than about %d values", ErrInvalid, maxMetadataValues)
	}
	var values map[string]any
	if raw != nil {
		if err := json.Unmarshal(raw, &values); err != nil {
			return nil, fmt.Errorf("%w: metadata is not an object or has a number that is too large", ErrInvalid)
		}
	}
	if len(values) == 0 {
		return nil, nil
	}
	if nestedDeeperThan(values, maxMetadataDepth) {
		return nil, fmt.Errorf("%w: metadata has more than %d levels", ErrInvalid, maxMetadataDepth)
	}
	metadata, err := structpb.NewStruct(values)
	if err != nil {
		return nil, fmt.Errorf("%w: metadata: %w", ErrInvalid, err)
	}
	return metadata, nil
}

// nestedDeeperThan reports whether a value has more than a number of levels of nested objects and lists.
func nestedDeeperThan(value any, levels int) bool {
	switch v := value.(type) {
	case map[string]any:
		for _, inner := range v {
			if levels == 0 || nestedDeeperThan(inner, levels-1) {
				return true
			}
		}
		return levels == 0
	case []any:
		for _, inner := range v {
			if levels == 0 || nestedDeeperThan(inner, levels-1) {
				return true
			}
		}
		return levels == 0
	}
	return false
}

// roleName returns the name of a role in entries.
func roleName(role parleyv1.Role) string {
	switch role {
	case parleyv1.Role_ROLE_USER:
		return "user"
	case parleyv1.Role_ROLE_ASSISTANT:
		return "assistant"
	case parleyv1.Role_ROLE_SYSTEM:
		return "system"
	case parleyv1.Role_ROLE_TOOL:
		return "tool"
	default: // The server accepts no such message.
		return "unspecified"
	}
}

func parseRole(name string) parleyv1.Role {
	for role := range parleyv1.Role_name {
		if role != 0 && roleName(parleyv1.Role(role)) == name {
			return parleyv1.Role(role)
		}
	}
	return parleyv1.Role_ROLE_UNSPECIFIED
}
