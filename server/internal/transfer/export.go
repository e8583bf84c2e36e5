package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

const (
	// maxExportBytes is the maximum size of the messages in a response, unless a single message is
	// larger. A client on a slow connection receives such a response in seconds.
	maxExportBytes = 256 << 10
	// exportPage is the number of ids that an export reads at a time.
	exportPage = 256
	// maxDamagedIDs is the maximum number of damaged conversations that a DamagedError names.
	maxDamagedIDs = 100
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

// Exported counts what an export sent and omitted.
type Exported struct {
	Conversations int64
	Messages      int64
	// Damaged is the number of conversations that were omitted because they are damaged.
	Damaged int
}

// Export sends complete conversations of a tenant. It reads each conversation after it has sent the one
// before. So a slow send blocks nothing in the store.
//
// If there are ids, the export ends with an error at the first conversation that is missing or damaged.
// Without ids, it sends all conversations of the tenant that exist when it starts. It omits those that
// are deleted before it reads them. It also omits damaged ones: after it has sent all others, it returns
// a DamagedError.
//
// Errors about a conversation are ConversationErrors. Errors of send are returned unchanged. The counts
// are valid if there is an error, too.
func Export(
	ctx context.Context, s store.Store, tenant string, ids []string,
	send func(*parleyv1.ExportConversationsResponse) error,
) (Exported, error) {
	e := &exporter{store: s, tenant: tenant, sendPart: send}
	err := e.run(ctx, ids)
	e.exported.Damaged = e.damaged.Count
	return e.exported, err
}

// exporter runs one export.
type exporter struct {
	store    store.Store
	tenant   string
	sendPart func(*parleyv1.ExportConversationsResponse) error
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
	snapshot, err := e.store.Read(ctx, &store.Read{Tenant: e.tenant, ConversationID: id, Newest: -1})
	if err != nil {
		return &ConversationError{ID: id, Err: err}
	}
	c := snapshot.Conversation
	// These fields depend on this server. Where the conversation is imported, no turn is running, and
	// the size of the messages may differ by a few bytes.
	c.ActiveTurnId, c.SizeBytes = "", 0
	rest := snapshot.Messages
	for more := true; more; {
		part := firstMessages(rest)
		reply := &parleyv1.ExportConversationsResponse{Conversation: c}
		// The response has the messages in their stored form as unknown fields. Clients decode them as the
		// regular field.
		reply.ProtoReflect().SetUnknown(protoreflect.RawFields(part))
		if err := e.sendPart(reply); err != nil {
			return err
		}
		rest = rest[len(part):]
		more = len(part) > 0 && len(rest) > 0
	}
	e.exported.Conversations++
	e.exported.Messages += int64(c.GetMessageCount())
	return nil
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
