package record

import (
	"time"

	"google.golang.org/protobuf/proto"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/records"
)

// Import decides a store.Import. old is the conversation with the id, if any: if Import returns an
// outcome, that conversation is deleted. history is i.Messages as NewHistory decoded it. uid is
// that of the new conversation. held reports whether a client holds the id.
func Import(old *Record, i *store.Import, history *History, uid string, now time.Time, held bool,
	o *store.Options,
) (*Outcome, error) {
	var changes []store.Change
	at := now
	if old != nil {
		if !i.Overwrite {
			return nil, store.ErrConversationExists
		}
		if old.Running() {
			return nil, &store.BusyError{TurnID: old.Conversation().GetActiveTurnId()}
		}
		at = old.writeTime(now)
		changes = append(changes, old.RemovalChange(i.Tenant, parleyv1.ChangeKind_CHANGE_KIND_DELETED, at))
	}
	r := newImported(i, history, uid, o)
	if err := r.checkHeader(); err != nil {
		return nil, err
	}
	r.removeExpiredLease(now)
	if !held && r.Expired(now, Ephemeral{}) {
		return nil, store.ErrExpired
	}
	if err := r.checkCopy(o); err != nil {
		return nil, err
	}
	edits, err := records.Imported(i.Records, int64(r.Conversation().GetVersion()), at, o.MaxRecordBytes)
	if err != nil {
		return nil, err
	}
	r.countRecords(edits)
	trimmed, err := r.dropOldest(o)
	if err != nil {
		return nil, err
	}
	created := r.change(i.Tenant, parleyv1.ChangeKind_CHANGE_KIND_CREATED, at)
	created.Trimmed = trimmed
	return &Outcome{
		Record:  r,
		Result:  &store.Result{Conversation: proto.CloneOf(r.Conversation()), Created: true},
		Changes: append(changes, created),
		Records: edits,
	}, nil
}

// newImported makes the record of an imported conversation with all its messages.
func newImported(i *store.Import, history *History, uid string, o *store.Options) *Record {
	c := proto.CloneOf(i.Conversation)
	r := &Record{
		Header: &storev1.Header{Conversation: c, Tenant: i.Tenant},
		Prompt: []byte(c.GetSystemPrompt()),
	}
	c.SystemPrompt, c.ActiveTurnId, c.MessageCount, c.SizeBytes = "", "", 0, 0
	c.RecordCount, c.RecordBytes = 0, 0
	// The uid in the header is not used: the header may be an export of the conversation that the
	// import replaces, which may have changed since.
	c.Uid = uid
	c.Retention = withDefaults(c.GetRetention(), o)
	last := c.GetLastSequence() // The newest messages may have been cleared.
	r.setHistory(history)
	c.LastSequence = last
	r.setExpireTime()
	return r
}
