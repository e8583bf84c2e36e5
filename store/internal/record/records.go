package record

import (
	"errors"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/records"
)

var errNoInput = errors.New("an append with records needs their states")

// decideRecords decides the records of an append. accepted is the time of the call, and now the time of the write of
// the conversation.
func (r *Record) decideRecords(
	a *store.Append, in *records.Input, accepted, now time.Time, o *store.Options,
) (*records.Edits, error) {
	switch {
	case in == nil && len(a.Records) > 0:
		return nil, errNoInput
	case in == nil:
		return nil, nil //nolint:nilnil // A nil *Edits changes nothing.
	case in.Decided != nil:
		return in.Decided, nil
	}
	return records.Decide(a.Records, in, &records.Conversation{
		Revision: int64(r.Conversation().GetVersion()) + 1, Time: now,
		Bytes: r.Conversation().GetRecordBytes(), Limit: o.MaxRecordBytes,
	}, accepted)
}

// countRecords adds the edits of the conversation's records to its counts.
func (r *Record) countRecords(edits *records.Edits) {
	if edits != nil {
		r.Conversation().RecordCount += int32(edits.Conversation.Records)
		r.Conversation().RecordBytes += edits.Conversation.RecordBytes
	}
}

// RecordCounts returns the counts of the conversation's records.
func (r *Record) RecordCounts() records.Counts {
	return records.Of(int64(r.Conversation().GetRecordCount()), r.Conversation().GetRecordBytes())
}

// recordChanges returns the changes of the conversation's records.
func (r *Record) recordChanges(tenant string, edits *records.Edits, now time.Time) (changes []store.Change) {
	if !edits.Any() {
		return nil
	}
	for _, e := range edits.All {
		if e.TenantScope {
			continue
		}
		change := r.change(tenant, parleyv1.ChangeKind_CHANGE_KIND_RECORD, now)
		change.Record = &parleyv1.RecordChange{Key: e.Key, Revision: edits.Revision, Deleted: e.Value == nil}
		changes = append(changes, change)
	}
	return changes
}

// AppendOf returns the append that does what a store.WriteRecords with a conversation must do. Written returns the
// result of its outcome.
func AppendOf(w *store.WriteRecords) *store.Append {
	return &store.Append{
		Tenant: w.Tenant, ConversationID: w.ConversationID, UID: w.UID, Records: w.Writes, IfVersion: w.IfVersion,
		Request: w.Request, MustExist: true,
	}
}

// Written returns the result of a store.WriteRecords whose AppendOf had this outcome.
func Written(out *Outcome) *store.WrittenRecords {
	w := &store.WrittenRecords{Conversation: out.Result.Conversation, Replayed: out.Result.Replayed}
	w.Revision, w.TenantRevision = out.Records.Revisions()
	return w
}
