package rpc

import (
	"google.golang.org/grpc/codes"

	"github.com/parleyhq/parley/server/internal/interactionlog"
	"github.com/parleyhq/parley/server/internal/peer"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/store"
)

// historyTooSmall is the refusal of tool results for which the history has no space.
func historyTooSmall(e *turn.HistoryTooSmallError, _ subject) refusal {
	r := refuse(codes.ResourceExhausted, "HISTORY_TOO_SMALL", "tool_results: %v", e)
	if e.MaxBytes > 0 {
		return r.with("max_conversation_bytes", e.MaxBytes)
	}
	return r.with("max_messages", e.MaxMessages)
}

// conversationFull is the refusal of a write to a conversation that keeps all messages.
func conversationFull(e *store.ConversationFullError, about subject) refusal {
	return refuse(codes.ResourceExhausted, "CONVERSATION_FULL", "%s is full: %v; remove messages with ClearConversation, "+
		"or set its retention.keep_all to false", about.name, e).with("limit_bytes", e.Limit)
}

// retentionForbidden is the refusal of a retention that the settings of the server forbid.
func retentionForbidden(e *rules.RetentionError, _ subject) refusal {
	return refuse(codes.FailedPrecondition, "RETENTION_FORBIDDEN", "%v", e).with("field", "retention."+e.Field)
}

// interactionLogOff is the refusal of calls of the interaction log if no server has one.
func interactionLogOff() row {
	return is(interactionlog.ErrOff, refuse(codes.FailedPrecondition, "INTERACTION_LOG_OFF",
		"the interaction log is off; start the server with --interaction-log"))
}

// eraseIncomplete is the refusal of an erasure that some servers have not executed.
func eraseIncomplete(e *peer.EraseError, _ subject) refusal {
	return refuse(codes.Unavailable, "SERVER_UNREACHABLE", "%v", e).
		with("servers", joinNames(e.Servers(), rules.MaxTextBytes)).retryable()
}
