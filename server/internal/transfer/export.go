package transfer

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

const (
	// maxExportBytes is the maximum size of the messages or records in a response, unless a single one is
	// larger. A client on a slow connection receives such a response in seconds.
	maxExportBytes = 256 << 10
	// maxExportRecords is the maximum number of records in a response. An import accepts as many in a request.
	maxExportRecords = 1000
	// exportPage is the number of ids that an export reads at a time.
	exportPage = 256
	// maxDamagedIDs is the maximum number of damaged conversations that a DamagedError names.
	maxDamagedIDs = 100
	// maxJoinedBytes is the maximum length of what JoinedIDs returns. It is part of the trailers of a call.
	maxJoinedBytes = 8 << 10
)

// DamagedError means that an export omitted conversations because they are damaged, and sent all others.
type DamagedError struct {
	// IDs are the ids of the first 100 conversations.
	IDs []string
	// Count is the number of conversations.
	Count int
	// Unnamed is the number of conversations whose ids are damaged, too. It is part of Count.
	Unnamed int
}

// Error returns a text with the number and the ids of the conversations.
func (e *DamagedError) Error() string {
	names := slices.Clone(e.IDs)
	if e.Unnamed > 0 {
		names = append(names, fmt.Sprintf("%d with damaged ids", e.Unnamed))
	}
	return fmt.Sprintf("%d conversations are damaged and were omitted, all others were sent: %s",
		e.Count, strings.Join(names, ", "))
}

// JoinedIDs returns IDs separated by commas and percent-encoded as in the paths of HTTP, because an id may contain a
// comma. It leaves out what is longer than maxJoinedBytes.
func (e *DamagedError) JoinedIDs() string {
	var joined strings.Builder
	for _, id := range e.IDs {
		escaped := url.PathEscape(id)
		if joined.Len()+len(escaped) >= maxJoinedBytes {
			break
		}
		if joined.Len() > 0 {
			joined.WriteByte(',')
		}
		joined.WriteString(escaped)
	}
	return joined.String()
}

// Exported counts what an export sent and omitted.
type Exported struct {
	Conversations int64
	Messages      int64
	Records       int64
	// Damaged is the number of conversations that were omitted because they are damaged.
	Damaged int
}

// Export sends complete conversations of a tenant. It reads each conversation after it has sent the one
// before. So a slow send blocks nothing in the store.
//
// If r has ids, the export ends with an error at the first conversation that is missing or damaged.
// Without ids, it sends all conversations of the tenant that exist when it starts. It omits those that
// are deleted before it reads them. It also omits damaged ones: after it has sent all others, it returns
// a DamagedError.
//
// While as many large conversations are being exported as large allows, the export waits before it reads another one.
//
// Records are sent if r.IncludeRecords is set; otherwise the headers do not count them.
//
// Errors about a conversation are ConversationErrors. Errors of send are returned unchanged. The counts
// are valid if there is an error, too.
func Export(
	ctx context.Context, s store.Store, large *LargeReads, tenant string, r *parleyv1.ExportConversationsRequest,
	send func(*parleyv1.ExportConversationsResponse) error,
) (Exported, error) {
	e := &exporter{store: s, large: large, tenant: tenant, sendPart: send}
	if r.GetIncludeRecords() {
		e.prefixes = []string{""}
	}
	err := e.run(ctx, r.GetConversationIds())
	e.exported.Damaged = e.damaged.Count
	return e.exported, err
}

// exporter runs one export.
type exporter struct {
	store    store.Store
	large    *LargeReads
	tenant   string
	sendPart func(*parleyv1.ExportConversationsResponse) error
	prefixes []string // of the records to export; nil without records
	exported Exported
	damaged  DamagedError
}

func (e *exporter) run(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return e.sendAll(ctx)
	}
	seen := make(map[string]bool, len(ids))
	for _, id := range ids {
		if seen[id] {
			continue // A client could not distinguish a repeated conversation from one in two parts.
		}
		seen[id] = true
		if err := e.send(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// sendAll sends the tenant's conversations up to the newest one at the start. An export that also sent
// newer ones might never end.
func (e *exporter) sendAll(ctx context.Context) error {
	last, err := e.newestCreateTime(ctx)
	if err != nil {
		return err
	}
	list := &store.List{Tenant: e.tenant, OldestFirst: true, PageSize: exportPage}
	for more := true; more; {
		var ids []string
		if ids, more, err = e.nextPage(ctx, list, last); err != nil {
			return err
		}
		for _, id := range ids {
			if err := e.send(ctx, id); err != nil && !e.omit(id, err) {
				return err
			}
		}
	}
	if e.damaged.Count > 0 {
		return &e.damaged
	}
	return nil
}

// newestCreateTime returns the create time of the tenant's newest conversation, or the zero time if
// there is none.
func (e *exporter) newestCreateTime(ctx context.Context) (time.Time, error) {
	list := &store.List{Tenant: e.tenant, PageSize: 1}
	for {
		page, err := e.store.List(ctx, list)
		switch {
		case err != nil:
			return time.Time{}, err
		case len(page.Entries) > 0:
			return page.Entries[0].GetConversation().GetCreateTime().AsTime(), nil
		case page.NextPageToken == "":
			return time.Time{}, nil
		}
		list.PageToken = page.NextPageToken
	}
}

// nextPage returns the ids of the next page of list, and whether there are more pages. It sets the
// page token of list. It ends at conversations that were created after last.
func (e *exporter) nextPage(
	ctx context.Context, list *store.List, last time.Time,
) (ids []string, more bool, err error) {
	page, err := e.store.List(ctx, list)
	if err != nil {
		return nil, false, err
	}
	e.damaged.Count, e.damaged.Unnamed = e.damaged.Count+page.Damaged, e.damaged.Unnamed+page.Damaged
	for _, entry := range page.Entries {
		if entry.GetConversation().GetCreateTime().AsTime().After(last) {
			return ids, false, nil
		}
		ids = append(ids, entry.GetConversation().GetId())
	}
	list.PageToken = page.NextPageToken
	return ids, list.PageToken != "", nil
}

// omit reports whether an export of all conversations continues without a conversation whose read
// failed with err. It records damaged conversations.
func (e *exporter) omit(id string, err error) bool {
	if errors.Is(err, store.ErrCorrupt) {
		e.damaged.Count++
		if len(e.damaged.IDs) < maxDamagedIDs {
			e.damaged.IDs = append(e.damaged.IDs, id)
		}
		return true
	}
	return errors.Is(err, store.ErrNotFound)
}

// send sends a conversation in one or more responses.
func (e *exporter) send(ctx context.Context, id string) error {
	snapshot, done, err := e.large.Read(ctx, e.store, &store.Read{
		Tenant: e.tenant, ConversationID: id, RecordPrefixes: e.prefixes,
	})
	if err != nil {
		return &ConversationError{ID: id, Err: err}
	}
	defer done()
	c := snapshot.Conversation
	// These fields depend on this server. Where the conversation is imported, no turn is running, and
	// the size of the messages may differ by a few bytes.
	c.ActiveTurnId, c.SizeBytes = "", 0
	if e.prefixes == nil {
		c.RecordCount, c.RecordBytes = 0, 0
	}
	rest, records, sent := snapshot.Messages, snapshot.Records, 0
	for more := true; more; {
		part := firstMessages(rest)
		rest = rest[len(part):]
		more = len(part) > 0 && len(rest) > 0
		reply := new(parleyv1.ExportConversationsResponse)
		if !more {
			reply.Records = firstRecords(records, len(part))
			records = records[len(reply.GetRecords()):]
			sent = len(reply.GetRecords())
		}
		reply.Conversation = countRecords(c, sent, len(records) > 0 || snapshot.MoreRecords)
		// The response has the messages in their stored form as unknown fields. Clients decode them as the
		// regular field.
		reply.ProtoReflect().SetUnknown(protoreflect.RawFields(part))
		if err := e.sendPart(reply); err != nil {
			return err
		}
	}
	snapshot.Messages = nil // The records may take long.
	done()
	if err := e.sendRecords(ctx, snapshot, records, sent); err != nil {
		return err
	}
	e.exported.Conversations++
	e.exported.Messages += int64(c.GetMessageCount())
	return nil
}

// sendRecords sends records of a conversation in further responses: first rest, the end of those of the snapshot, then
// the others as they are when they are read. sent is the number of those that were sent before. The error of a
// conversation that ended in the meantime is store.ErrNotFound.
func (e *exporter) sendRecords(
	ctx context.Context, snapshot *store.Snapshot, rest []*parleyv1.Record, sent int,
) error {
	c, more, last := snapshot.Conversation, snapshot.MoreRecords, ""
	if n := len(snapshot.Records); n > 0 {
		last = snapshot.Records[n-1].GetKey()
	}
	for len(rest) > 0 || more {
		// A response has the final number of records if it is the last one. So the next records are read before.
		for len(rest) == 0 || more && len(firstRecords(rest, 0)) == len(rest) {
			var read []*parleyv1.Record
			var err error
			if read, more, err = e.readRecords(ctx, c, last); err != nil {
				return &ConversationError{ID: c.GetId(), Err: err}
			}
			if len(read) == 0 {
				break
			}
			rest, last = append(slices.Clip(rest), read...), read[len(read)-1].GetKey()
		}
		part := firstRecords(rest, 0)
		rest = rest[len(part):]
		sent += len(part)
		reply := &parleyv1.ExportConversationsResponse{
			Conversation: countRecords(c, sent, len(rest) > 0 || more), Records: part,
		}
		if err := e.sendPart(reply); err != nil {
			return err
		}
	}
	e.exported.Records += int64(sent)
	return nil
}

// readRecords returns records of a conversation after a key, and whether there are more.
func (e *exporter) readRecords(ctx context.Context, c *parleyv1.Conversation, after string) (
	read []*parleyv1.Record, more bool, err error,
) {
	read, more, err = e.store.ListRecords(ctx, &store.ListRecords{
		Tenant: e.tenant, ConversationID: c.GetId(), After: after, Limit: maxExportRecords, MaxBytes: maxExportBytes,
	})
	if err != nil {
		return nil, false, err
	}
	// The list does not say of which of several conversations with this id it is.
	snapshot, err := e.store.Read(ctx, &store.Read{Tenant: e.tenant, ConversationID: c.GetId()})
	if err == nil && snapshot.Conversation.GetUid() != c.GetUid() {
		err = store.ErrNotFound
	}
	return read, more, err
}

// countRecords returns the header of a response after which sent records of the conversation were sent. Its
// record_count is sent if the response is the last one of the conversation, and larger if there are more. So a
// receiver notices the end of a conversation, and that it is missing.
func countRecords(c *parleyv1.Conversation, sent int, more bool) *parleyv1.Conversation {
	count := int32(sent)
	if more {
		count = max(c.GetRecordCount(), count+1)
	}
	if count == c.GetRecordCount() {
		return c
	}
	c = proto.CloneOf(c)
	c.RecordCount = count
	return c
}

// firstRecords returns the first records that fit into a response with this size of messages. A response without
// messages has at least one, if there are records.
func firstRecords(records []*parleyv1.Record, size int) []*parleyv1.Record {
	n, empty := 0, size == 0
	for n < min(len(records), maxExportRecords) {
		if size += proto.Size(records[n]); size > maxExportBytes && (n > 0 || !empty) {
			break
		}
		n++
	}
	return records[:n]
}

// firstMessages returns the first messages that fit into a response. If there are messages, it returns
// at least one.
func firstMessages(messages store.Frames) store.Frames {
	size := 0
	for frame := range messages.All() {
		if size > 0 && size+len(frame) > maxExportBytes {
			break
		}
		size += len(frame)
	}
	return messages[:size]
}
