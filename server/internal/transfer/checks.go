package transfer

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/server/internal/rules/ids"
	"github.com/parleyhq/parley/store"
)

// Limits of imported fields that otherwise only the server sets. They apply in addition to the rules in
// the protos. Options.MaxMessageBytes does not apply to imports, because it does not limit the answers
// of agents.
const (
	// maxClockSkew is the maximum time by which imported times may be later than the server's clock.
	maxClockSkew = time.Minute
	// maxNumber is the maximum of versions, sequences and exchanges. It leaves space to count up.
	maxNumber      = 1 << 30
	maxTurnIDBytes = 64
	maxAgentBytes  = 128
	maxReasonBytes = 1 << 10
)

// faults are the faults of one request.
type faults []rules.Fault

func (f *faults) add(field, format string, args ...any) {
	*f = append(*f, rules.Fault{Field: field, Rule: fmt.Sprintf(format, args...)})
}

// String returns all faults, separated by semicolons.
func (f *faults) String() string {
	texts := make([]string, len(*f))
	for i, fault := range *f {
		texts[i] = fault.String()
	}
	return strings.Join(texts, "; ")
}

// checkHeader adds the faults of the header of an imported conversation.
func (f *faults) checkHeader(c *parleyv1.Conversation, now time.Time) {
	const (
		created  = "conversation.create_time"
		appended = "conversation.last_append_time"
		updated  = "conversation.update_time"
	)
	if c == nil {
		return // A rule in the protos requires a header.
	}
	if c.GetId() == "" {
		f.add("conversation.id", "is required")
	}
	f.checkNumber("conversation.version", c.GetVersion(), 1)
	f.checkNumber("conversation.last_sequence", c.GetLastSequence(), 0)
	valid := f.checkTime(created, c.GetCreateTime(), now)
	valid = f.checkTime(appended, c.GetLastAppendTime(), now) && valid
	valid = f.checkTime(updated, c.GetUpdateTime(), now) && valid
	if valid {
		if c.GetCreateTime().GetSeconds() < 0 {
			f.add(created, "must not be before 1970")
		}
		if c.GetLastAppendTime().AsTime().Before(c.GetCreateTime().AsTime()) {
			f.add(appended, "must not be before create_time")
		}
		if c.GetUpdateTime().AsTime().Before(c.GetLastAppendTime().AsTime()) {
			f.add(updated, "must not be before last_append_time")
		}
	}
	if a := c.GetActiveAgent(); a != nil {
		f.checkLease(a, now)
	}
	if c.GetForkedFrom() != nil {
		f.checkForkOrigin(c)
	}
}

// checkForkOrigin adds the faults of a fork origin that ForkConversation cannot have created.
func (f *faults) checkForkOrigin(c *parleyv1.Conversation) {
	const path = "conversation.forked_from."
	f.checkBytes(path+"conversation_id", c.GetForkedFrom().GetConversationId(), ids.MaxBytes)
	sequence := c.GetForkedFrom().GetSequence()
	f.checkNumber(path+"sequence", sequence, 0)
	// The messages up to this sequence came from the source of the fork, and the interaction log has no
	// entries for them. Later messages are the conversation's own.
	if sequence > c.GetLastSequence() {
		f.add(
			path+"sequence",
			"is %d, must be at most %d, the conversation's last_sequence",
			sequence,
			c.GetLastSequence(),
		)
	}
}

// checkLease adds the faults of a lease that SetActiveAgent cannot have granted.
func (f *faults) checkLease(a *parleyv1.ActiveAgent, now time.Time) {
	const path = "conversation.active_agent."
	if a.GetAgent() == "" {
		f.add(path+"agent", "is required")
	}
	f.checkBytes(path+"agent", a.GetAgent(), maxAgentBytes)
	f.checkBytes(path+"reason", a.GetReason(), maxReasonBytes)
	f.checkTime(path+"start_time", a.GetStartTime(), now)
	if end := a.GetLeaseExpireTime(); end != nil && !end.IsValid() {
		f.add(path+"lease_expire_time", "%s", invalidTime)
	}
}

// checkMessage adds the faults of a message of the conversation c. last is the sequence of the
// message before, or 0 if there is none.
func (f *faults) checkMessage(
	path string, m *parleyv1.Message, last int32, c *parleyv1.Conversation, now time.Time,
) {
	if size := proto.Size(m); size > store.MaxMessageBytes {
		f.add(path[:len(path)-1], "has %d bytes in encoded form, the limit is %d", size, store.MaxMessageBytes)
	}
	if m.GetId() == "" {
		f.add(path+"id", "is required")
	}
	switch sequence := m.GetSequence(); {
	case sequence <= last:
		f.add(path+"sequence", "is %d, must be more than %d, the sequence of the message before", sequence, last)
	case sequence > c.GetLastSequence():
		f.add(
			path+"sequence",
			"is %d, must be at most %d, the conversation's last_sequence",
			sequence,
			c.GetLastSequence(),
		)
	}
	f.checkNumber(path+"exchange", m.GetExchange(), 0)
	f.checkBytes(path+"turn_id", m.GetTurnId(), maxTurnIDBytes)
	f.checkTime(path+"create_time", m.GetCreateTime(), now)
}

// invalidTime describes the fault of a timestamp that is not valid.
const invalidTime = "must be between the years 1 and 9999, with nanos below one second"

// checkTime adds the fault of a time that the server cannot have set. It reports whether the time is
// valid.
func (f *faults) checkTime(field string, t *timestamppb.Timestamp, now time.Time) bool {
	switch {
	case t == nil:
		f.add(field, "is required")
	case !t.IsValid():
		f.add(field, "%s", invalidTime)
	case t.AsTime().After(now.Add(maxClockSkew)):
		f.add(field, "is more than %s ahead of this server's clock", maxClockSkew)
	default:
		return true
	}
	return false
}

// checkNumber adds a fault if n is not between lowest and maxNumber.
func (f *faults) checkNumber(field string, n, lowest int32) {
	if n < lowest || n > maxNumber {
		f.add(field, "must be between %d and %d", lowest, maxNumber)
	}
}

// checkBytes adds a fault if text has more than limit bytes.
func (f *faults) checkBytes(field, text string, limit int) {
	if len(text) > limit {
		f.add(field, "must be at most %d bytes", limit)
	}
}
