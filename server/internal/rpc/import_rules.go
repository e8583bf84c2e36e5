package rpc

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// What an import may say of the fields that are the server's own elsewhere, beside the rules
// in the protos. Messages are not bound to Options.MaxMessageBytes: agents' answers are not.
const (
	// maxImportAhead is how far the clock of the exporting server may be ahead.
	maxImportAhead = time.Minute
	// maxImportNumber bounds versions, sequences and exchanges: they are counted on.
	maxImportNumber = 1 << 30
	maxTurnIDBytes  = 64
	maxAgentBytes   = 128
	maxReasonBytes  = 1 << 10
	maxIDBytes      = 128
)

// checkImportedHeader finds what is wrong with the header of an imported conversation.
func (e *invalidError) checkImportedHeader(c *parleyv1.Conversation, now time.Time) {
	const (
		created  = "conversation.create_time"
		appended = "conversation.last_append_time"
		updated  = "conversation.update_time"
	)
	if c == nil {
		return // A rule says that it is required.
	}
	if c.GetId() == "" {
		e.add("conversation.id", "is required")
	}
	e.checkNumber("conversation.version", c.GetVersion(), 1)
	e.checkNumber("conversation.last_sequence", c.GetLastSequence(), 0)
	valid := e.checkTime(created, c.GetCreateTime(), now)
	valid = e.checkTime(appended, c.GetLastAppendTime(), now) && valid
	valid = e.checkTime(updated, c.GetUpdateTime(), now) && valid
	if valid {
		if c.GetCreateTime().GetSeconds() < 0 {
			e.add(created, "must not be before 1970")
		}
		if c.GetLastAppendTime().AsTime().Before(c.GetCreateTime().AsTime()) {
			e.add(appended, "must not be before create_time")
		}
		if c.GetUpdateTime().AsTime().Before(c.GetLastAppendTime().AsTime()) {
			e.add(updated, "must not be before last_append_time")
		}
	}
	if a := c.GetActiveAgent(); a != nil {
		e.checkLease(a, now)
	}
	if c.GetForkedFrom() != nil {
		e.checkForkOrigin(c)
	}
}

// checkForkOrigin finds what ForkConversation would not have made.
func (e *invalidError) checkForkOrigin(c *parleyv1.Conversation) {
	const path = "conversation.forked_from."
	e.checkBytes(path+"conversation_id", c.GetForkedFrom().GetConversationId(), maxIDBytes)
	sequence := c.GetForkedFrom().GetSequence()
	e.checkNumber(path+"sequence", sequence, 0)
	// The messages up to there came from the fork's source, so that the interaction log has no
	// entries for them. Later ones are the conversation's own.
	if sequence > c.GetLastSequence() {
		e.add(path+"sequence", "is %d, must be at most the conversation's last_sequence, %d", sequence, c.GetLastSequence())
	}
}

// checkLease finds what SetActiveAgent would not have made.
func (e *invalidError) checkLease(a *parleyv1.ActiveAgent, now time.Time) {
	const path = "conversation.active_agent."
	if a.GetAgent() == "" {
		e.add(path+"agent", "is required")
	}
	e.checkBytes(path+"agent", a.GetAgent(), maxAgentBytes)
	e.checkBytes(path+"reason", a.GetReason(), maxReasonBytes)
	e.checkTime(path+"start_time", a.GetStartTime(), now)
	if end := a.GetLeaseExpireTime(); end != nil && !end.IsValid() {
		e.add(path+"lease_expire_time", "%s", invalidTime)
	}
}

// checkImportedMessage finds what is wrong with a message that follows the sequence last in
// the conversation c.
func (e *invalidError) checkImportedMessage(path string, m *parleyv1.Message, last int32, c *parleyv1.Conversation, now time.Time) {
	if size := proto.Size(m); size > maxImportBytes {
		e.add(path[:len(path)-1], "has %d bytes in encoded form, the limit is %d", size, maxImportBytes)
	}
	if m.GetId() == "" {
		e.add(path+"id", "is required")
	}
	switch sequence := m.GetSequence(); {
	case sequence <= last:
		e.add(path+"sequence", "is %d, which must be more than %d, that of the message before", sequence, last)
	case sequence > c.GetLastSequence():
		e.add(path+"sequence", "is %d, which must not be more than %d, the conversation's last_sequence", sequence, c.GetLastSequence())
	}
	e.checkNumber(path+"exchange", m.GetExchange(), 0)
	e.checkBytes(path+"turn_id", m.GetTurnId(), maxTurnIDBytes)
	e.checkTime(path+"create_time", m.GetCreateTime(), now)
}

const invalidTime = "must be between the years 1 and 9999, and have less than a second of nanos"

// checkTime reports whether a time is one that the server may have set.
func (e *invalidError) checkTime(field string, t *timestamppb.Timestamp, now time.Time) bool {
	switch {
	case t == nil:
		e.add(field, "is required")
	case !t.IsValid():
		e.add(field, "%s", invalidTime)
	case t.AsTime().After(now.Add(maxImportAhead)):
		e.add(field, "is more than %s ahead of this server's clock", maxImportAhead)
	default:
		return true
	}
	return false
}

func (e *invalidError) checkNumber(field string, n, least int32) {
	if n < least || n > maxImportNumber {
		e.add(field, "must be between %d and %d", least, maxImportNumber)
	}
}

func (e *invalidError) checkBytes(field, text string, most int) {
	if len(text) > most {
		e.add(field, "must be at most %d bytes", most)
	}
}
