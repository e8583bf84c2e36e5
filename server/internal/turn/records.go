package turn

import (
	"context"
	"errors"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// maxReadBytes limits the records that one read returns to check the records of a request.
const maxReadBytes = 3 << 20

// refusalOfRecords returns why the records of a request would be refused at its start: one of them does not have the
// revision that the request requires, or the records of the conversation would be too large. c is the conversation;
// nil if it does not exist.
func (m *Manager) refusalOfRecords(
	ctx context.Context, at key, writes []*parleyv1.RecordWrite, c *parleyv1.Conversation,
) error {
	limit := m.o.MaxRecordBytes
	mayExceed := limit > 0 && c.GetRecordBytes()+growth(writes, nil) > limit
	var own, tenants []*parleyv1.RecordWrite // those whose present record is needed
	for _, w := range writes {
		switch {
		case w.GetTenantScope() && w.IfRevision != nil:
			tenants = append(tenants, w)
		case !w.GetTenantScope() && (w.IfRevision != nil || mayExceed):
			own = append(own, w)
		}
	}
	stored, err := m.checkRevisions(ctx, at, own)
	if err != nil {
		return err
	}
	if _, err := m.checkRevisions(ctx, key{tenant: at.tenant}, tenants); err != nil {
		return err
	}
	delta := growth(writes, stored)
	if mayExceed && delta > 0 && c.GetRecordBytes()+delta > limit {
		return &store.RecordsFullError{Bytes: c.GetRecordBytes() + delta, Limit: limit}
	}
	return nil
}

// checkRevisions returns the records of these writes, by key, or the error of the first one that does not have the
// revision that its write requires. If the id in at is empty, they belong to the tenant.
func (m *Manager) checkRevisions(
	ctx context.Context, at key, writes []*parleyv1.RecordWrite,
) (map[string]storedRecord, error) {
	stored, err := m.storedRecords(ctx, at, writes)
	if err != nil {
		return nil, err
	}
	for _, w := range writes {
		if current := stored[w.GetKey()].revision; w.IfRevision != nil && w.GetIfRevision() != current {
			return nil, &store.RevisionError{
				Key: w.GetKey(), TenantScope: at.id == "", Current: current, Required: w.GetIfRevision(),
			}
		}
	}
	return stored, nil
}

// storedRecord is what a write of a record depends on.
type storedRecord struct {
	revision int64
	bytes    int64 // as store.RecordBytes counts them
}

// storedRecords returns the records of these writes, by key. It reads them at once, unless they are large.
func (m *Manager) storedRecords(
	ctx context.Context, at key, writes []*parleyv1.RecordWrite,
) (map[string]storedRecord, error) {
	stored := make(map[string]storedRecord, len(writes))
	var left []string
	for _, w := range writes {
		left = append(left, w.GetKey())
	}
	for len(left) > 0 {
		found, omitted, err := m.o.Store.GetRecords(ctx, &store.GetRecords{
			Tenant: at.tenant, ConversationID: at.id, Keys: left, MaxBytes: maxReadBytes,
		})
		if errors.Is(err, store.ErrNotFound) {
			return stored, nil
		}
		if err != nil {
			return nil, err
		}
		all, err := found.Records()
		if err != nil {
			return nil, err
		}
		for _, r := range all {
			stored[r.GetKey()] = storedRecord{r.GetRevision(), store.RecordBytes(r)}
		}
		left = omitted
	}
	return stored, nil
}

// growth returns the number of bytes by which writes change the size of a conversation's records. stored has the
// present ones; without them, it returns the most that is possible.
func growth(writes []*parleyv1.RecordWrite, stored map[string]storedRecord) (bytes int64) {
	for _, w := range writes {
		if w.GetTenantScope() {
			continue
		}
		bytes -= stored[w.GetKey()].bytes
		if !w.GetDelete() {
			bytes += store.RecordBytes(&parleyv1.Record{
				Key: w.GetKey(), Value: w.GetValue(), MediaType: w.GetMediaType(), Labels: w.GetLabels(),
			})
		}
	}
	return bytes
}
