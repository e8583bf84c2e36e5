package storetest

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// oracleRecords are the records of a scope, by key.
type oracleRecords map[string]*parleyv1.Record

// oracleTenant is what the oracle knows of a tenant besides its conversations.
type oracleTenant struct {
	records  oracleRecords
	revision int64
	requests map[string]oracleTenantRequest // by method and id
}

// oracleTenantRequest is a stored request of a tenant.
type oracleTenantRequest struct {
	digest   [32]byte
	revision int64
	ends     time.Time
}

// sorted returns the records in the order of their keys.
func (s oracleRecords) sorted() []*parleyv1.Record {
	var all []*parleyv1.Record
	for _, key := range slices.Sorted(maps.Keys(s)) {
		all = append(all, s[key])
	}
	return all
}

// size returns the size of the records.
func (s oracleRecords) size() int64 {
	size := int64(0)
	for _, r := range s {
		size += store.RecordBytes(r)
	}
	return size
}

// expireRecords removes records and requests of the tenant that have expired.
func (o *oracle) expireRecords(now time.Time) {
	ended := func(end time.Time) bool {
		if now.Before(end) {
			return false
		}
		if end.After(o.lastExpiry) {
			o.lastExpiry = end
		}
		return true
	}
	maps.DeleteFunc(o.tenant.records, func(_ string, r *parleyv1.Record) bool {
		return r.GetExpireTime() != nil && ended(r.GetExpireTime().AsTime())
	})
	maps.DeleteFunc(o.tenant.requests, func(_ string, q oracleTenantRequest) bool { return ended(q.ends) })
}

// recordStep is what a batch does, before it is done.
type recordStep struct {
	own, common oracleRecords   // the scopes after the batch
	edited      []string        // keys of the conversation that are written or deleted, in order
	deleted     map[string]bool // those that are deleted
	inTenant    bool            // a record of the tenant is written or deleted
}

// stepOfAppend is tryRecords for an append. c is its conversation, or nil.
func (o *oracle) stepOfAppend(c *oracleConversation, w *store.Append, now time.Time) (*recordStep, error) {
	version, at := int32(1), now
	if c != nil {
		version = c.header.GetVersion() + 1
		if last := c.header.GetUpdateTime().AsTime(); at.Before(last) {
			at = last
		}
	}
	return o.tryRecords(c.recordsOf(), w.ConversationID, version, w.Records, at, now)
}

// tryRecords applies a batch to copies of the scopes. own are the records of the conversation, id its id, version its
// version after the batch and at the time of its write.
func (o *oracle) tryRecords(
	own oracleRecords, id string, version int32, writes []*parleyv1.RecordWrite, at, now time.Time,
) (*recordStep, error) {
	s := &recordStep{own: oracleRecords{}, common: maps.Clone(o.tenant.records), deleted: map[string]bool{}}
	maps.Copy(s.own, own)
	for _, w := range writes {
		scope, inTenant := s.own, id == "" || w.GetTenantScope()
		if inTenant {
			scope = s.common
		}
		old := scope[w.GetKey()]
		if w.IfRevision != nil && w.GetIfRevision() != old.GetRevision() {
			return nil, &store.RevisionError{
				Key: w.GetKey(), TenantScope: inTenant, Current: old.GetRevision(), Required: w.GetIfRevision(),
			}
		}
		if w.GetDelete() && old == nil {
			continue
		}
		if inTenant {
			s.inTenant = true
		} else {
			s.edited = append(s.edited, w.GetKey())
			s.deleted[w.GetKey()] = w.GetDelete()
		}
		delete(scope, w.GetKey())
		if w.GetDelete() {
			continue
		}
		r := &parleyv1.Record{
			ConversationId: id, Key: w.GetKey(), Value: w.GetValue(), MediaType: w.GetMediaType(), Labels: w.GetLabels(),
			Revision: int64(version), UpdateTime: timestamppb.New(at), SizeBytes: int32(len(w.GetValue())),
		}
		if inTenant {
			r.ConversationId, r.Revision, r.UpdateTime = "", o.tenant.revision+1, timestamppb.New(now)
			if w.GetTtl() != nil {
				r.ExpireTime = timestamppb.New(now.Add(w.GetTtl().AsDuration()))
			}
		}
		scope[w.GetKey()] = r
	}
	if after := s.own.size(); id != "" && after > own.size() && after > o.options.MaxRecordBytes {
		return nil, &store.RecordsFullError{Bytes: after, Limit: o.options.MaxRecordBytes}
	}
	return s, nil
}

// changes reports whether the batch writes or deletes a record.
func (s *recordStep) changes() bool { return s.inTenant || len(s.edited) > 0 }

// commitRecords makes a batch take effect and returns the revisions. c is its conversation, or nil.
func (o *oracle) commitRecords(s *recordStep, c *oracleConversation) (revision, tenantRevision int64) {
	if s.inTenant {
		o.tenant.records = s.common
		o.tenant.revision++
		tenantRevision = o.tenant.revision
	}
	if c != nil {
		c.setRecords(s.own)
	}
	if len(s.edited) > 0 {
		revision = int64(c.header.GetVersion())
	}
	return revision, tenantRevision
}

// reportRecords reports the changes of a batch.
func (o *oracle) reportRecords(s *recordStep, id string, c *oracleConversation) {
	for _, key := range s.edited {
		o.changes = append(o.changes, c.summary("RECORD", id, len(c.messages), 0)+recordSummary(&parleyv1.RecordChange{
			Key: key, Revision: int64(c.header.GetVersion()), Deleted: s.deleted[key],
		}))
	}
}

// setRecords sets the records of a conversation and their counts.
func (c *oracleConversation) setRecords(records oracleRecords) {
	c.records = records
	c.header.RecordCount, c.header.RecordBytes = int32(len(records)), records.size()
}

// copyRecords returns records as those of another conversation.
func copyRecords(all []*parleyv1.Record, id string, version int32, now time.Time) oracleRecords {
	copied := oracleRecords{}
	for _, r := range all {
		r = proto.CloneOf(r)
		r.ConversationId, r.Revision, r.UpdateTime = id, int64(version), timestamppb.New(now)
		r.ExpireTime, r.SizeBytes = nil, int32(len(r.GetValue()))
		copied[r.GetKey()] = r
	}
	return copied
}

// recordsOf returns the records of a conversation; nil if c is nil.
func (c *oracleConversation) recordsOf() oracleRecords {
	if c == nil {
		return nil
	}
	return c.records
}

// writeRecords makes a write of records.
func (o *oracle) writeRecords(w *store.WriteRecords, now time.Time) (*store.WrittenRecords, error) {
	if w.ConversationID == "" {
		return o.writeTenant(w, now)
	}
	c := o.conversations[w.ConversationID]
	if c == nil {
		return nil, store.ErrNotFound
	}
	result, err := o.append(&store.Append{
		ConversationID: w.ConversationID, Records: w.Writes, IfVersion: w.IfVersion, Request: w.Request,
	}, now)
	if err != nil {
		return nil, err
	}
	written := &store.WrittenRecords{
		Conversation: result.Conversation, TenantRevision: result.TenantRevision, Replayed: result.Replayed,
		Revision: o.newest,
	}
	if first, err := c.findRequest(w.Request); err == nil && first != nil {
		written.Revision = first.revision
	}
	return written, nil
}

// writeTenant makes a write without a conversation.
func (o *oracle) writeTenant(w *store.WriteRecords, now time.Time) (*store.WrittenRecords, error) {
	key := ""
	if w.Request != nil {
		key = w.Request.Method + " " + w.Request.ID
		if first, ok := o.tenant.requests[key]; ok && first.digest != w.Request.Digest {
			return nil, store.ErrRequestReused
		} else if ok {
			return &store.WrittenRecords{TenantRevision: first.revision, Replayed: true}, nil
		}
	}
	step, err := o.tryRecords(nil, "", 0, w.Writes, now, now)
	if err != nil {
		return nil, err
	}
	_, revision := o.commitRecords(step, nil)
	if w.Request != nil {
		o.tenant.requests[key] = oracleTenantRequest{w.Request.Digest, revision, now.Add(store.RequestTTL)}
	}
	return &store.WrittenRecords{TenantRevision: revision}, nil
}
