// Package routing sums a conversation up for a coordinator, which has to decide who gets
// the next message. It is pure; begin at Summarize. The parts are worked out here, the one
// line of text in text.go, the cut to a budget of bytes in budget.go.
package routing

import (
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Options says how much of the messages a summary carries.
type Options struct {
	// MessageLimit is the number of recent messages; 0 or less is none. Callers apply the
	// default.
	MessageLimit int
	// MaxBytes bounds the encoded size of recent messages and referenced data together,
	// the bytes that frame them in the summary included; 0 or less is no bound. What does
	// not fit is left out and Truncated set: referenced data first, the oldest before the
	// newer, then messages from the oldest on. Of the newest message the end is cut; see
	// cut. All else in a summary is there in full, however small MaxBytes is.
	MaxBytes int
}

// Summarize returns what a coordinator needs to know of a conversation. Header c must be
// of the same version as messages, which are all that is kept, oldest first. A nil c and
// no messages give an empty summary. Nothing that is passed in is changed, but the summary
// shares messages, data, calls and times with it: change neither afterwards.
//
// A lease in c is taken as it stands; whether it has lapsed is for the caller to say.
func Summarize(c *parleyv1.Conversation, messages []*parleyv1.Message, o Options) *parleyv1.RoutingSummary {
	older := len(messages) - min(max(o.MessageLimit, 0), len(messages))
	types, referenced := structuredData(messages, older)
	s := &parleyv1.RoutingSummary{
		ConversationId:      c.GetId(),
		RecentMessages:      slices.Clone(messages[older:]),
		Version:             c.GetVersion(),
		StructuredDataTypes: types,
		ReferencedData:      referenced,
		Text:                text(messages),
		ActiveAgent:         c.GetActiveAgent(),
		RecentAgents:        recentAgents(messages),
		AwaitingAnswer:      awaitingAnswer(messages),
		PendingToolCalls:    pendingToolCalls(messages),
		ActiveTurnId:        c.GetActiveTurnId(),
		MessageCount:        c.GetMessageCount(),
		LastSequence:        c.GetLastSequence(),
		UpdateTime:          c.GetUpdateTime(),
		ExpireTime:          c.GetExpireTime(),
		Uid:                 c.GetUid(),
	}
	if o.MaxBytes > 0 {
		fit(s, o.MaxBytes)
	}
	return s
}

// structuredData returns every type of data with its use, newest first, and the newest
// value of each type that only the first older messages carry, newest first. Of the values
// of one message the later is the newer.
func structuredData(messages []*parleyv1.Message, older int) (types []*parleyv1.StructuredDataUse, referenced []*parleyv1.ReferencedData) {
	uses := map[string]*parleyv1.StructuredDataUse{}
	for i, m := range slices.Backward(messages) {
		for _, data := range slices.Backward(m.GetStructuredData()) {
			if use, met := uses[data.GetType()]; met {
				use.Count++
				continue
			}
			use := &parleyv1.StructuredDataUse{
				Type: data.GetType(), Count: 1, LastSequence: m.GetSequence(), LastAgent: m.GetAgent(),
			}
			uses[data.GetType()] = use
			types = append(types, use)
			if i < older {
				referenced = append(referenced, &parleyv1.ReferencedData{
					Sequence: m.GetSequence(), Agent: m.GetAgent(), Data: data,
				})
			}
		}
	}
	return types, referenced
}

// recentAgents returns the agents that wrote an assistant message, newest first.
func recentAgents(messages []*parleyv1.Message) []*parleyv1.AgentUse {
	var agents []*parleyv1.AgentUse
	met := map[string]bool{}
	for _, m := range slices.Backward(messages) {
		if m.GetRole() != parleyv1.Role_ROLE_ASSISTANT || m.GetAgent() == "" || met[m.GetAgent()] {
			continue
		}
		met[m.GetAgent()] = true
		agents = append(agents, &parleyv1.AgentUse{
			Agent: m.GetAgent(), LastSequence: m.GetSequence(), LastTime: m.GetCreateTime(),
		})
	}
	return agents
}

// awaitingAnswer reports whether a person asks and nobody has answered. A system message
// after the question answers nothing and is passed over. A cut-off answer is one, since
// somebody took the question; a tool's result is a step of an answer that has begun.
func awaitingAnswer(messages []*parleyv1.Message) bool {
	for _, m := range slices.Backward(messages) {
		if m.GetRole() != parleyv1.Role_ROLE_SYSTEM {
			return m.GetRole() == parleyv1.Role_ROLE_USER
		}
	}
	return false
}

// pendingToolCalls returns the calls without a result after them, oldest first. A result
// answers every earlier call of its id: a second call of the same id, without a result
// between them, is the first one asked again. What a user says in between answers nothing.
func pendingToolCalls(messages []*parleyv1.Message) []*parleyv1.ToolCall {
	var pending []*parleyv1.ToolCall
	answered := map[string]bool{}
	for _, m := range slices.Backward(messages) {
		if m.GetRole() == parleyv1.Role_ROLE_TOOL {
			answered[m.GetToolResult().GetCallId()] = true
		}
		for _, call := range slices.Backward(m.GetToolCalls()) {
			if !answered[call.GetId()] {
				pending = append(pending, call)
			}
		}
	}
	slices.Reverse(pending)
	return pending
}
