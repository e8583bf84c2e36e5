package openai

import (
	"encoding/base64"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// Prefixes of ids.
const (
	conversationPrefix = "conv_"
	responsePrefix     = "resp_"
	messagePrefix      = "msg_"
	callPrefix         = "fc_"
	resultPrefix       = "fco_"
	otherPrefix        = "item_"
)

// compact returns a UUID in its usual form as 32 digits.
func compact(id string) (string, bool) {
	u, err := uuid.Parse(id)
	if err != nil || u.String() != id {
		return "", false
	}
	return hex.EncodeToString(u[:]), true
}

// expand is the inverse of compact.
func expand(digits string) (string, bool) {
	b, err := hex.DecodeString(digits)
	if err != nil || len(b) != len(uuid.UUID{}) || digits != strings.ToLower(digits) {
		return "", false
	}
	return uuid.UUID(b).String(), true
}

// conversationID returns the id of a conversation in the form of OpenAI: conv_ with the digits of a UUID. An id that is
// not a UUID, which another client chose, stays as it is.
func conversationID(id string) string {
	if digits, ok := compact(id); ok {
		return conversationPrefix + digits
	}
	return id
}

// storedConversationID is the inverse of conversationID.
func storedConversationID(id string) string {
	if digits, found := strings.CutPrefix(id, conversationPrefix); found {
		if stored, ok := expand(digits); ok {
			return stored
		}
	}
	return id
}

// turnRef names a turn.
type turnRef struct{ conversation, turn string }

// responseID returns the id of a response: the digits of the turn, and those of the conversation or its encoded id.
func (t turnRef) responseID() string {
	digits, _ := compact(t.turn) // The id of a turn is always a UUID.
	if conversation, ok := compact(t.conversation); ok {
		return responsePrefix + digits + conversation
	}
	return responsePrefix + digits + "_" + base64.RawURLEncoding.EncodeToString([]byte(t.conversation))
}

// parseResponseID is the inverse of responseID.
func parseResponseID(id string) (turnRef, bool) {
	const digits = 32
	rest, found := strings.CutPrefix(id, responsePrefix)
	if !found || len(rest) <= digits {
		return turnRef{}, false
	}
	turn, ok := expand(rest[:digits])
	if !ok {
		return turnRef{}, false
	}
	encoded, isOther := strings.CutPrefix(rest[digits:], "_")
	if !isOther {
		conversation, ok := expand(encoded)
		return turnRef{conversation, turn}, ok
	}
	conversation, err := base64.RawURLEncoding.DecodeString(encoded)
	return turnRef{string(conversation), turn}, err == nil && len(conversation) > 0
}

// outputID returns the id of an output item of a response. It is known before the item is stored.
func outputID(prefix, turn string, index int) string {
	digits, _ := compact(turn)
	return prefix + digits + "_" + strconv.Itoa(index)
}

// parseOutputID is the inverse of outputID.
func parseOutputID(id string) (turn string, index int, ok bool) {
	for _, prefix := range []string{messagePrefix, callPrefix} {
		if rest, found := strings.CutPrefix(id, prefix); found {
			digits, number, _ := strings.Cut(rest, "_")
			turn, isTurn := expand(digits)
			index, err := strconv.Atoi(number)
			return turn, index, isTurn && err == nil && index >= 0
		}
	}
	return "", 0, false
}

// itemID returns the id of an item of a stored message: the prefix of its kind, the digits of the UUID of the message
// or its encoded id, and the position of the item if the message has several.
func itemID(prefix, message string, index, count int) string {
	id, ok := compact(message)
	if !ok {
		id = "x" + base64.RawURLEncoding.EncodeToString([]byte(message))
	}
	if count > 1 {
		id += "." + strconv.Itoa(index)
	}
	return prefix + id
}

// parseItemID is the inverse of itemID.
func parseItemID(id string) (message string, index int, ok bool) {
	for _, prefix := range []string{messagePrefix, callPrefix, resultPrefix, otherPrefix} {
		rest, found := strings.CutPrefix(id, prefix)
		if !found {
			continue
		}
		encoded, number, several := strings.Cut(rest, ".")
		if several {
			var err error
			if index, err = strconv.Atoi(number); err != nil || index < 0 {
				return "", 0, false
			}
		}
		if other, isOther := strings.CutPrefix(encoded, "x"); isOther {
			decoded, err := base64.RawURLEncoding.DecodeString(other)
			return string(decoded), index, err == nil && len(decoded) > 0
		}
		message, ok = expand(encoded)
		return message, index, ok
	}
	return "", 0, false
}
