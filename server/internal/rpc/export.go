package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

const (
	// maxExportBytes is the maximum size of the messages in a response, unless a single message is
	// larger. A client on a slow connection receives such a response in seconds.
	maxExportBytes = 256 << 10
	// exportPage is the number of ids that an export reads at a time.
	exportPage = 256
	// maxDamagedIDs is the maximum number of damaged conversations that an export names.
	maxDamagedIDs = 100
)

// damagedError contains the conversations that an export omitted because they are damaged.
type damagedError struct {
	ids     []string // the first maxDamagedIDs
	count   int
	unnamed int // part of count: conversations whose ids are damaged, too
}

// Error returns a text with the number and the ids of the conversations.
func (e *damagedError) Error() string {
	names := slices.Clone(e.ids)
	if e.unnamed > 0 {
		names = append(names, fmt.Sprintf("%d with damaged ids", e.unnamed))
	}
	return fmt.Sprintf("%d conversations are damaged and were omitted, all others were sent: %s",
		e.count, strings.Join(names, ", "))
}

func (e *damagedError) refusal() refusal {
	return refuse(codes.DataLoss, "RECORD_CORRUPT", "%v; restore them from a backup, or delete them", e).
		with("conversation_ids", strings.Join(e.ids, ",")).logged()
}

// exportStream is the server's end of an ExportConversations call.
type exportStream = grpc.ServerStreamingServer[parleyv1.ExportConversationsResponse]

// ExportConversations streams complete conversations. It reads each conversation after it has sent the
// one before. So a client that reads slowly blocks nothing in the store.
//
// If the request has ids, the export ends with an error at the first conversation that is missing or
// damaged. Without ids, it exports all conversations of the tenant that exist when it starts. It omits
// those that are deleted before it reads them. It also omits damaged ones: after it has sent all
// others, it ends with DATA_LOSS and the ids of the damaged conversations.
func (s *Server) ExportConversations(r *parleyv1.ExportConversationsRequest, stream exportStream) error {
	e := &exporter{server: s, tenant: tenant(stream.Context()), stream: stream}
	err := e.run(stream.Context(), r.GetConversationIds())
	s.log.InfoContext(stream.Context(), "exported", "tenant", e.tenant, "conversations", e.sent,
		"messages", e.messages, "damaged", e.damaged.count, "complete", err == nil)
	return err
}

// exporter runs one export.
type exporter struct {
	server         *Server
	tenant         string
	stream         exportStream
	sent, messages int64
	damaged        damagedError
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
	if e.damaged.count > 0 {
		return &e.damaged
	}
	return nil
}

// newestCreateTime returns the create time of the tenant's newest conversation, or the zero time if
// there is none.
func (e *exporter) newestCreateTime(ctx context.Context) (time.Time, error) {
	list := &store.List{Tenant: e.tenant, PageSize: 1}
	for {
		page, err := e.server.store.List(ctx, list)
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
	page, err := e.server.store.List(ctx, list)
	if err != nil {
		return nil, false, err
	}
	e.damaged.count, e.damaged.unnamed = e.damaged.count+page.Damaged, e.damaged.unnamed+page.Damaged
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
		e.damaged.count++
		if len(e.damaged.ids) < maxDamagedIDs {
			e.damaged.ids = append(e.damaged.ids, id)
		}
		return true
	}
	return errors.Is(err, store.ErrNotFound)
}

// send sends a conversation in one or more responses.
func (e *exporter) send(ctx context.Context, id string) error {
	snapshot, err := e.server.store.Read(ctx, &store.Read{Tenant: e.tenant, ConversationID: id, Newest: -1})
	if err != nil {
		return inConversation(id, err)
	}
	c := snapshot.Conversation
	// These fields depend on this server. Where the conversation is imported, no turn is running, and
	// the size of the messages may differ by a few bytes.
	c.ActiveTurnId, c.SizeBytes = "", 0
	rest := snapshot.Messages
	for more := true; more; {
		part := firstMessages(rest)
		reply := &parleyv1.ExportConversationsResponse{Conversation: c}
		setEncodedMessages(reply, part)
		if err := e.stream.Send(reply); err != nil {
			return err
		}
		rest = rest[len(part):]
		more = len(part) > 0 && len(rest) > 0
	}
	e.sent, e.messages = e.sent+1, e.messages+int64(c.GetMessageCount())
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
