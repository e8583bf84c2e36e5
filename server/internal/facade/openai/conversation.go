package openai

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/gateway"
)

// idempotencyKey is the header with the request_id.
const idempotencyKey = "Idempotency-Key"

// conversationObject is a conversation in the form of OpenAI.
type conversationObject struct {
	ID        string            `json:"id"`
	Object    string            `json:"object"`
	CreatedAt int64             `json:"created_at"`
	Metadata  map[string]string `json:"metadata"`
}

func newConversationObject(c *parleyv1.Conversation) conversationObject {
	metadata := c.GetLabels()
	if metadata == nil {
		metadata = map[string]string{}
	}
	return conversationObject{conversationID(c.GetId()), "conversation", c.GetCreateTime().AsTime().Unix(), metadata}
}

// maxTurns is how many responses a conversation of this API keeps.
const maxTurns = 1000

// keptForever is the retention of a conversation that a client creates: as at OpenAI, it stays until it is deleted.
func keptForever() *parleyv1.Retention {
	return &parleyv1.Retention{KeepAll: true, NoExpiry: true, NoEviction: true, MaxTurns: maxTurns}
}

// keptFor is the retention of a conversation that a response creates. OpenAI keeps responses for 30 days.
func keptFor(ttl time.Duration) *parleyv1.Retention {
	return &parleyv1.Retention{KeepAll: true, Ttl: durationpb.New(ttl), MaxTurns: maxTurns}
}

// create creates a conversation with as much of its retention as the server allows.
func (h *handler) create(q *request, c *parleyv1.Conversation, requestID string) (*parleyv1.Conversation, error) {
	for {
		reply, err := h.api.CreateConversation(q, &parleyv1.CreateConversationRequest{Conversation: c, RequestId: requestID})
		if !relax(c.GetRetention(), err) {
			return reply.GetConversation(), err
		}
	}
}

// relax takes back the field of a retention for which a call failed, because the server forbids it. It returns false if
// the call failed for another reason. A conversation that may not keep all messages keeps as many as possible.
func relax(r *parleyv1.Retention, err error) bool {
	st := status.Convert(err)
	if r == nil || st.Code() != codes.FailedPrecondition || gateway.Reason(st) != "RETENTION_FORBIDDEN" {
		return false
	}
	const maxMessages = 1_000_000
	switch {
	case strings.Contains(st.Message(), "retention.keep_all") && r.GetKeepAll():
		r.KeepAll, r.MaxMessages = false, maxMessages
	case strings.Contains(st.Message(), "retention.no_expiry") && r.GetNoExpiry():
		r.NoExpiry, r.Ttl = false, durationpb.New(responseTTL)
	case strings.Contains(st.Message(), "retention.no_eviction") && r.GetNoEviction():
		r.NoEviction = false
	default:
		return false
	}
	return true
}

func (h *handler) createConversation(q *request) error {
	body, err := parseBody(q.body, true)
	if err != nil {
		return err
	}
	if err := onlyParams(body, "items", "metadata"); err != nil {
		return err
	}
	var items []item
	if list := body.get("items"); list != nil {
		if items, err = parseItems(list, "items"); err != nil {
			return err
		}
	}
	metadata, err := parseMetadata(body.get("metadata"))
	if err != nil {
		return err
	}
	key := q.header.Get(idempotencyKey)
	c, err := h.create(q, &parleyv1.Conversation{Labels: metadata, Retention: keptForever()}, key)
	if err != nil {
		return err
	}
	if len(items) > 0 {
		if _, err := h.append(q, c.GetId(), items, derivedKey(key, "items"), nil); err != nil {
			h.undo(q, func(q *request) error {
				_, err := h.api.DeleteConversation(q, &parleyv1.DeleteConversationRequest{ConversationId: c.GetId()})
				return err
			})
			return err
		}
	}
	writeJSON(q.w, http.StatusOK, newConversationObject(c))
	return nil
}

// derivedKey returns the request_id of a further call of a request with an Idempotency-Key.
func derivedKey(key, step string) string {
	const maxKey = 256
	switch derived := key + "/" + step; {
	case key == "":
		return ""
	case len(derived) > maxKey:
		return uuid.NewSHA1(uuid.Nil, []byte(derived)).String()
	default:
		return derived
	}
}

// append appends items to a conversation in one step.
func (h *handler) append(
	q *request, conversation string, items []item, requestID string, ifVersion *int32,
) (*parleyv1.AppendMessagesResponse, error) {
	e := encode(items)
	return h.api.AppendMessages(q, &parleyv1.AppendMessagesRequest{
		ConversationId: conversation, Messages: e.messages, Records: e.records, MustExist: true, RequestId: requestID,
		IfVersion: ifVersion,
	})
}

func (h *handler) getConversation(q *request) error {
	reply, err := h.api.GetConversation(q, &parleyv1.GetConversationRequest{
		ConversationId: storedConversationID(q.args[0]),
	})
	if err != nil {
		return err
	}
	writeJSON(q.w, http.StatusOK, newConversationObject(reply.GetConversation()))
	return nil
}

func (h *handler) updateConversation(q *request) error {
	body, err := parseBody(q.body, false)
	if err != nil {
		return err
	}
	if err := onlyParams(body, "metadata"); err != nil {
		return err
	}
	if body.raw("metadata") == nil {
		return refuse(codeMissing, "metadata", "is required")
	}
	metadata, err := parseMetadata(body.get("metadata"))
	if err != nil {
		return err
	}
	reply, err := h.api.UpdateConversation(q, &parleyv1.UpdateConversationRequest{
		Conversation: &parleyv1.Conversation{Id: storedConversationID(q.args[0]), Labels: metadata},
		UpdateMask:   &fieldmaskpb.FieldMask{Paths: []string{"labels"}},
	})
	if err != nil {
		return err
	}
	writeJSON(q.w, http.StatusOK, newConversationObject(reply.GetConversation()))
	return nil
}

func (h *handler) deleteConversation(q *request) error {
	_, err := h.api.DeleteConversation(q, &parleyv1.DeleteConversationRequest{
		ConversationId: storedConversationID(q.args[0]),
	})
	if err != nil {
		return err
	}
	writeJSON(q.w, http.StatusOK, struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Deleted bool   `json:"deleted"`
	}{q.args[0], "conversation.deleted", true})
	return nil
}

// onlyParams returns an error for a member of a body that is not among these.
func onlyParams(body object, names ...string) error {
	for _, m := range body {
		known := false
		for _, name := range names {
			known = known || name == m.name
		}
		if !known {
			return refuse(codeUnknown, m.name, "is unknown; use %s", strings.Join(names, ", "))
		}
	}
	return nil
}

// parseMetadata returns the metadata of a request. The server checks the number and the length of the entries.
func parseMetadata(value json.RawMessage) (map[string]string, error) {
	if value == nil {
		return nil, nil
	}
	o, err := parseObject(value, "metadata")
	if err != nil {
		return nil, err
	}
	metadata := make(map[string]string, len(o))
	for _, m := range o {
		if kindOf(m.value) != "a string" {
			return nil, invalid(join("metadata", m.name), "must be a string, is %s", kindOf(m.value))
		}
		metadata[m.name] = textOf(m.value)
	}
	return metadata, nil
}
