package store

import (
	"fmt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// MaxRecordBytes is the default of [Options.MaxRecordBytes]: 256 MiB.
const MaxRecordBytes = 256 << 20

// MaxCopiedRecords and MaxCopiedRecordBytes are the maximum number and size of the records that one [Create] copies: 32
// MiB. All writes wait while they are copied; 240 MiB took 5 s. Small records take time by their number.
const (
	MaxCopiedRecords     = 20_000
	MaxCopiedRecordBytes = 32 << 20
)

// WriteRecords writes and deletes records of a conversation, of the tenant, or of both. The store makes its checks in
// this order; the first that applies decides:
//
//  1. The request was already used: return the first result, or ErrRequestReused if its digest differs.
//  2. ConversationID is set and the conversation does not exist: ErrNotFound.
//  3. IfVersion differs: VersionError.
//  4. If_revision of a write differs, the first in the order of Writes: RevisionError.
//  5. The records of the conversation, or those of the tenant, would be too large: RecordsFullError.
//  6. The tenant would exceed its limit of bytes: TenantBytesError; see law 16.
//
// A write that only deletes records which do not exist writes nothing, unless it has a Request. An [Append] with
// Records makes checks 4 and 5 after its own and before that of the capacity.
type WriteRecords struct {
	// Tenant that the records belong to.
	Tenant string
	// ConversationID of the conversation. If empty, all records belong to the tenant.
	ConversationID string
	// UID that the conversation must have, otherwise ErrNotFound. Empty skips the check.
	UID string
	// Writes of different records, at least one. They obey the rules of the API. Without a ConversationID all are of
	// the tenant's records, whatever their tenant_scope.
	Writes []*parleyv1.RecordWrite
	// IfVersion is the version that the conversation must have. Nil skips the check.
	IfVersion *int32
	// Request is optional. A conversation stores it as in law 9. Without a ConversationID the store remembers it for
	// RequestTTL.
	Request *Request
}

// OnlyRemoves reports whether all writes are deletions. Then the call succeeds above the limits of space, also if its
// Request takes more bytes than it removes.
func (w *WriteRecords) OnlyRemoves() bool { return onlyDeletes(w.Writes) }

// onlyDeletes reports whether all writes are deletions.
func onlyDeletes(writes []*parleyv1.RecordWrite) bool {
	for _, w := range writes {
		if !w.GetDelete() {
			return false
		}
	}
	return true
}

// WrittenRecords is the result of WriteRecords.
type WrittenRecords struct {
	// Conversation is the header after the write, without its system prompt; nil without a ConversationID.
	Conversation *parleyv1.Conversation
	// Revision and TenantRevision are those of the records of the conversation and of the tenant that the write wrote
	// or deleted; 0 if there were none.
	Revision, TenantRevision int64
	// Replayed reports that the request was already used and that nothing was written. The revisions are then those
	// of the first call, and Conversation is the present header.
	Replayed bool
}

// GetRecords names records to read.
type GetRecords struct {
	// Tenant that the records belong to.
	Tenant string
	// ConversationID of the conversation; empty for the records of the tenant.
	ConversationID string
	// Keys of the records.
	Keys []string
	// MaxBytes is the maximum size of the records, encoded; the first record may be larger.
	MaxBytes int
}

// ListRecords says which records to list.
type ListRecords struct {
	// Tenant that the records belong to.
	Tenant string
	// ConversationID of the conversation; empty for the records of the tenant.
	ConversationID string
	// Prefix of the keys. Empty means all.
	Prefix string
	// After is the key after which the list begins, in its direction; it need not exist. Empty means from the start.
	After string
	// Descending lists from the last key to the first.
	Descending bool
	// KeysOnly leaves out the values.
	KeysOnly bool
	// Limit is the maximum number of records, at least 1.
	Limit int
	// MaxBytes is the maximum size of the records, encoded; the first record may be larger.
	MaxBytes int
}

// RevisionError is returned if a record does not have the revision that a write requires.
type RevisionError struct {
	// Key of the record.
	Key string
	// TenantScope is true if the record belongs to the tenant.
	TenantScope bool
	// Current revision of the record; 0 if it does not exist.
	Current int64
	// Required is the if_revision of the write.
	Required int64
}

// Error returns the key and the fault.
func (e *RevisionError) Error() string { return fmt.Sprintf("record %.128q %s", e.Key, e.Fault()) }

// Fault says which revision the record has and which one the write requires, as a clause without its subject.
func (e *RevisionError) Fault() string {
	current := fmt.Sprintf("is at revision %d", e.Current)
	switch {
	case e.Current == 0:
		current = "does not exist"
	case e.Required == 0:
		current = fmt.Sprintf("already exists at revision %d", e.Current)
	}
	return fmt.Sprintf("%s, but if_revision is %d", current, e.Required)
}

// RecordsFullError is returned if the records of a conversation, or those of the tenant, would exceed their limit.
type RecordsFullError struct {
	// TenantScope is true if the records belong to the tenant.
	TenantScope bool
	// Bytes is the size that the records would have, for those of the tenant with the requests of their writes.
	Bytes int64
	// Limit is the maximum.
	Limit int64
}

// Error returns the scope, the size and the limit.
func (e *RecordsFullError) Error() string {
	if e.TenantScope {
		return fmt.Sprintf("the records of the tenant, with the requests that are remembered of them, would have %d bytes; "+
			"the limit is %d", e.Bytes, e.Limit)
	}
	return fmt.Sprintf("the records of the conversation would have %d bytes; the limit is %d", e.Bytes, e.Limit)
}

// CopyTooLargeError is returned if a create would copy more than MaxCopiedRecords or MaxCopiedRecordBytes.
type CopyTooLargeError struct {
	// Records is the number of the records, and Bytes their size.
	Records, Bytes int64
}

// Error returns number and size of the records, and the limits.
func (e *CopyTooLargeError) Error() string {
	return fmt.Sprintf("a copy would have %d records with %d bytes; the limits are %d records and %d bytes", e.Records,
		e.Bytes, MaxCopiedRecords, MaxCopiedRecordBytes)
}

// RecordOverhead is what each record adds to its size in limits and counts, in bytes: about what a store needs for a
// record without a value. Without it, 300,000 empty records counted as 1.5 MB and took 38.8 MB.
const RecordOverhead = 128

// RecordBytes is the size of a record in limits and counts, in bytes: key, value, media type, labels and
// RecordOverhead.
func RecordBytes(r *parleyv1.Record) int64 {
	size := RecordOverhead + len(r.GetKey()) + len(r.GetValue()) + len(r.GetMediaType())
	for key, value := range r.GetLabels() {
		size += len(key) + len(value)
	}
	return int64(size)
}
