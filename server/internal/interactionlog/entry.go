package interactionlog

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
	// defaultTenant is the tenant of an entry without one.
	defaultTenant = "default"
	// timestampLayout is the format of times that the encoder writes. Times in it sort like their
	// bytes.
	timestampLayout = "2006-01-02T15:04:05.000000Z"
	// maxMetadataDepth is the maximum number of nested objects and lists in metadata. Some clients
	// cannot decode more.
	maxMetadataDepth = 16
	// maxMetadataValues is the maximum number of commas and opening brackets in metadata. Each value
	// has one of them and takes many times its bytes in memory. Entries that the server writes have
	// fewer, even if all of their text consists of them.
	maxMetadataValues = 100_000
)

// errInvalid reports a line that is not a valid entry.
var errInvalid = errors.New("not an entry of the interaction log")

// parsedEntry is an entry of the log, written by the server or by hand.
type parsedEntry struct {
	tenant      string
	interaction *parleyv1.Interaction
}

// parseEntry parses an entry in any spelling that JSON allows. The keys timestamp, session_id, role
// and content are required, each with a string. A time without a zone is in UTC. Unknown keys are
// ignored. The error wraps errInvalid and quotes no content.
func parseEntry(b []byte) (*parsedEntry, error) {
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
		return nil, fmt.Errorf("%w: timestamp, session_id, role and content are required", errInvalid)
	}
	at, err := parseTimestamp(*raw.Timestamp)
	if err != nil {
		return nil, err
	}
	role := parseRole(*raw.Role)
	if role == parleyv1.Role_ROLE_UNSPECIFIED {
		return nil, fmt.Errorf(`%w: role is not "user", "assistant", "system" or "tool"`, errInvalid)
	}
	metadata, err := newMetadata(raw.Metadata)
	if err != nil {
		return nil, err
	}
	if raw.Tenant == "" {
		raw.Tenant = defaultTenant
	}
	return &parsedEntry{tenant: raw.Tenant, interaction: &parleyv1.Interaction{
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
		return nil, fmt.Errorf("%w: timestamp is not an ISO 8601 time such as %s", errInvalid, timestampLayout)
	}
	return stamp, nil
}

// describeJSONError describes an error of the JSON decoder without the names of Go types.
func describeJSONError(err error) error {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return fmt.Errorf("%w: %w", errInvalid, err)
	}
	kind, _, _ := strings.Cut(wrong.Value, " ") // The rest is the number.
	if wrong.Field == "" {
		return fmt.Errorf("%w: it has the JSON type %s, not object", errInvalid, kind)
	}
	return fmt.Errorf("%w: %s has the JSON type %s, not string", errInvalid, wrong.Field, kind)
}

func newMetadata(raw json.RawMessage) (*structpb.Struct, error) {
	if bytes.Count(raw, []byte{','})+bytes.Count(raw, []byte{'['})+bytes.Count(raw, []byte{'{'}) > maxMetadataValues {
		return nil, fmt.Errorf("%w: metadata has more than about %d values", errInvalid, maxMetadataValues)
	}
	var values map[string]any
	if raw != nil {
		if err := json.Unmarshal(raw, &values); err != nil {
			return nil, fmt.Errorf("%w: metadata is not an object or has a number that is too large", errInvalid)
		}
	}
	if len(values) == 0 {
		return nil, nil
	}
	if deeperThan(values, maxMetadataDepth) {
		return nil, fmt.Errorf("%w: metadata has more than %d levels", errInvalid, maxMetadataDepth)
	}
	metadata, err := structpb.NewStruct(values)
	if err != nil {
		return nil, fmt.Errorf("%w: metadata: %w", errInvalid, err)
	}
	return metadata, nil
}

// deeperThan reports whether a value has more than so many levels of nested objects and lists.
func deeperThan(value any, levels int) bool {
	switch v := value.(type) {
	case map[string]any:
		for _, inner := range v {
			if levels == 0 || deeperThan(inner, levels-1) {
				return true
			}
		}
		return levels == 0
	case []any:
		for _, inner := range v {
			if levels == 0 || deeperThan(inner, levels-1) {
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

// entryHead is the beginning of an entry as the encoder writes it. It is enough to skip most lines
// without parsing them.
type entryHead struct {
	timestamp      []byte // in timestampLayout
	conversationID []byte
	tenant         []byte
}

const (
	timestampKey    = `{"timestamp":"`
	conversationKey = `","session_id":"`
	tenantKey       = `","tenant":"`
)

// parseHead parses the head of a line. ok is false if the line does not begin exactly as the encoder
// writes it, for example because it was written by hand or because JSON escapes an id. parseHead does
// not check that the rest of the line is complete.
func parseHead(b []byte) (entryHead, bool) {
	var h entryHead
	rest, ok := bytes.CutPrefix(b, []byte(timestampKey))
	if !ok || len(rest) < len(timestampLayout) {
		return h, false
	}
	h.timestamp, rest = rest[:len(timestampLayout)], rest[len(timestampLayout):]
	if !isTimestamp(h.timestamp) {
		return h, false
	}
	if rest, ok = bytes.CutPrefix(rest, []byte(conversationKey)); !ok {
		return h, false
	}
	end := bytes.IndexByte(rest, '"')
	if end < 0 {
		return h, false
	}
	h.conversationID, rest = rest[:end], rest[end:]
	if rest, ok = bytes.CutPrefix(rest, []byte(tenantKey)); !ok {
		return h, false
	}
	if end = bytes.IndexByte(rest, '"'); end < 0 {
		return h, false
	}
	h.tenant = rest[:end]
	return h, end > 0 && bytes.IndexByte(h.conversationID, '\\') < 0 && bytes.IndexByte(h.tenant, '\\') < 0
}

// isTimestamp reports whether b has the length and the separators of timestampLayout.
func isTimestamp(b []byte) bool {
	for i, c := range b {
		switch want := timestampLayout[i]; {
		case want >= '0' && want <= '9':
			if c < '0' || c > '9' {
				return false
			}
		case c != want:
			return false
		}
	}
	return len(b) == len(timestampLayout)
}
