package rpc

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Limits of imported fields that otherwise only the server sets. They apply in addition to the rules in
// the protos. Options.MaxMessageBytes does not apply to imports, because it does not limit the answers
// of agents.
const (
	// maxImportAhead is the maximum time that the clock of the exporting server may be ahead.
	maxImportAhead = time.Minute
	// maxImportNumber is the maximum of versions, sequences and exchanges. It leaves space to count up.
	maxImportNumber = 1 << 30
	maxTurnIDBytes  = 64
	maxAgentBytes   = 128
	maxReasonBytes  = 1 << 10
	maxIDBytes      = 128
)

// checkImportedHeader adds the faults of the header of an imported conversation.
func (e *invalidError) checkImportedHeader(c *parleyv1.Conversation, now time.Time) {
	const (
		created  = "conversation.create_time"
		appended = "conversation.last_append_time"
		updated  = "conversation.update_time"
	)
	if c == nil {
		return // A rule in the protos requires a header.
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

// checkForkOrigin adds the faults of a fork origin that ForkConversation cannot have created.
func (e *invalidError) checkForkOrigin(c *parleyv1.Conversation) {
	const path = "conversation.forked_from."
	e.checkBytes(path+"conversation_id", c.GetForkedFrom().GetConversationId(), maxIDBytes)
	sequence := c.GetForkedFrom().GetSequence()
	e.checkNumber(path+"sequence", sequence, 0)
	// The messages up to this sequence came from the source of the fork, and the interaction log has no
	// entries for them. Later messages are the conversation's own.
	if sequence > c.GetLastSequence() {
		e.add(
			path+"sequence",
			"is %d, must be at most %d, the conversation's last_sequence",
			sequence,
			c.GetLastSequence(),
		)
	}
}

// checkLease adds the faults of a lease that SetActiveAgent cannot have granted.
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

// checkImportedMessage adds the faults of a message of the conversation c. last is the sequence of the
// message before, or 0 if there is none.
func (e *invalidError) checkImportedMessage(
	path string, m *parleyv1.Message, last int32, c *parleyv1.Conversation, now time.Time,
) {
	if size := proto.Size(m); size > maxImportBytes {
		e.add(path[:len(path)-1], "has %d bytes in encoded form, the limit is %d", size, maxImportBytes)
	}
	if m.GetId() == "" {
		e.add(path+"id", "is required")
	}
	switch sequence := m.GetSequence(); {
	case sequence <= last:
		e.add(path+"sequence", "is %d, must be more than %d, the sequence of the message before", sequence, last)
	case sequence > c.GetLastSequence():
		e.add(
			path+"sequence",
			"is %d, must be at most %d, the conversation's last_sequence",
			sequence,
			c.GetLastSequence(),
		)
	}
	e.checkNumber(path+"exchange", m.GetExchange(), 0)
	e.checkBytes(path+"turn_id", m.GetTurnId(), maxTurnIDBytes)
	e.checkTime(path+"create_time", m.GetCreateTime(), now)
}

// invalidTime describes the fault of a timestamp that is not valid.
const invalidTime = "must be between the years 1 and 9999, with nanos below one second"

// checkTime adds the fault of a time that the server cannot have set. It reports whether the time is
// valid.
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

// checkNumber adds a fault if n is not between lowest and maxImportNumber.
func (e *invalidError) checkNumber(field string, n, lowest int32) {
	if n < lowest || n > maxImportNumber {
		e.add(field, "must be between %d and %d", lowest, maxImportNumber)
	}
}

// checkBytes adds a fault if text has more than limit bytes.
func (e *invalidError) checkBytes(field, text string, limit int) {
	if len(text) > limit {
		e.add(field, "must be at most %d bytes", limit)
	}
}
