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
	// maxExportBytes is the maximum bytes of messages in a response, unless a single message has
	// more. A client on a slow connection receives one response in seconds.
	maxExportBytes = 256 << 10
	// exportPage is how many ids an export has in memory.
	exportPage = 256
	// maxDamagedIDs is how many damaged conversations an export names.
	maxDamagedIDs = 100
)

// damagedError says which conversations an export had to leave out.
type damagedError struct {
	ids     []string // The first maxDamagedIDs.
	count   int
	unnamed int // Of count, those whose ids are damaged too.
}

// Error names them.
func (e *damagedError) Error() string {
	names := slices.Clone(e.ids)
	if e.unnamed > 0 {
		names = append(names, fmt.Sprintf("%d whose ids cannot be told", e.unnamed))
	}
	return fmt.Sprintf("%d conversations are damaged and were left out, all others were sent: %s", e.count, strings.Join(names, ", "))
}

func (e *damagedError) refusal() refusal {
	return refuse(codes.DataLoss, "RECORD_CORRUPT", "%v; restore them from a backup, or delete them", e).
		with("conversation_ids", strings.Join(e.ids, ",")).logged()
}

// ExportConversations streams whole conversations out. Each is read by itself, once the ones
// ahead of it have been sent: a client that reads slowly holds nothing up in the store.
//
// With ids it ends at the first that is missing or damaged, as any call about it would. All
// of the tenant's are those that there are when the export begins; one that has gone when
// its turn comes is left out, and a damaged one does not cost the others: the export goes on
// and, when everything else was sent, ends with DATA_LOSS and the ids of what was not.
func (s *Server) ExportConversations(r *parleyv1.ExportConversationsRequest, stream grpc.ServerStreamingServer[parleyv1.ExportConversationsResponse]) error {
	e := &export{server: s, tenant: tenant(stream.Context()), stream: stream}
	err := e.run(stream.Context(), r.GetConversationIds())
	s.log.InfoContext(stream.Context(), "exported", "tenant", e.tenant, "conversations", e.sent, "messages", e.messages, "damaged", e.damaged.count, "complete", err == nil)
	return err
}

// export is one export that is under way.
type export struct {
	server         *Server
	tenant         string
	stream         grpc.ServerStreamingServer[parleyv1.ExportConversationsResponse]
	sent, messages int64
	damaged        damagedError
}

func (e *export) run(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return e.all(ctx)
	}
	seen := make(map[string]bool, len(ids))
	for _, id := range ids {
		if seen[id] {
			continue // Twice in a row, nobody could tell it from one in two parts.
		}
		seen[id] = true
		if err := e.one(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// all exports the tenant's conversations, up to the one that is the newest at the start: an
// export that chased those to come might never end.
func (e *export) all(ctx context.Context) error {
	last, err := e.newest(ctx)
	if err != nil {
		return err
	}
	list := &store.List{Tenant: e.tenant, OldestFirst: true, PageSize: exportPage}
	for more := true; more; {
		var ids []string
		if ids, more, err = e.page(ctx, list, last); err != nil {
			return err
		}
		for _, id := range ids {
			if err := e.one(ctx, id); err != nil && !e.leftOut(id, err) {
				return err
			}
		}
	}
	if e.damaged.count > 0 {
		return &e.damaged
	}
	return nil
}

// newest is when the newest of the tenant's conversations was made; long ago if there is none.
func (e *export) newest(ctx context.Context) (time.Time, error) {
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

// page returns the ids of the next page and moves the list on, and whether there is more.
func (e *export) page(ctx context.Context, list *store.List, last time.Time) (ids []string, more bool, err error) {
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

// leftOut reports whether an export of everything goes on without the conversation.
func (e *export) leftOut(id string, err error) bool {
	if errors.Is(err, store.ErrCorrupt) {
		e.damaged.count++
		if len(e.damaged.ids) < maxDamagedIDs {
			e.damaged.ids = append(e.damaged.ids, id)
		}
		return true
	}
	return errors.Is(err, store.ErrNotFound)
}

// one sends a conversation, in as many responses as it takes.
func (e *export) one(ctx context.Context, id string) error {
	snapshot, err := e.server.store.Read(ctx, &store.Read{Tenant: e.tenant, ConversationID: id, Newest: -1})
	if err != nil {
		return inConversation(id, err)
	}
	c := snapshot.Conversation
	// What says more about this server than about the conversation: where it is imported no
	// turn runs, and its messages may take a few bytes more or less.
	c.ActiveTurnId, c.SizeBytes = "", 0
	rest := snapshot.Messages
	for more := true; more; {
		part := exportPart(rest)
		reply := &parleyv1.ExportConversationsResponse{Conversation: c}
		splice(reply, part)
		if err := e.stream.Send(reply); err != nil {
			return err
		}
		rest = rest[len(part):]
		more = len(part) > 0 && len(rest) > 0
	}
	e.sent, e.messages = e.sent+1, e.messages+int64(c.GetMessageCount())
	return nil
}

// exportPart is the first of the messages, as many as a response takes, at least one if
// there is one.
func exportPart(messages store.Frames) store.Frames {
	size := 0
	for frame := range messages.All() {
		if size > 0 && size+len(frame) > maxExportBytes {
			break
		}
		size += len(frame)
	}
	return messages[:size]
}
