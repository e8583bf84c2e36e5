package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

const (
	// maxImportFailures is the maximum number of failures in the reply of an import.
	maxImportFailures = 100
	// maxImportMessages and maxImportBytes limit the messages of one conversation that an import holds
	// in memory. No store stores more.
	maxImportMessages = 1000
	maxImportBytes    = 3 << 20
	// maxImports is the maximum number of concurrent imports over all tenants. An import uses up to
	// 3 MiB while it waits for its client, and up to 27 MiB while it waits for the store.
	maxImports = 16
	// maxConcurrentStores is the maximum number of conversations that an import stores concurrently, so
	// that they share commits.
	maxConcurrentStores = 8
	// If the store is overloaded, an import retries after firstImportWait. Each wait is twice as long as
	// the one before. After a wait of lastImportWait it gives up.
	firstImportWait = 10 * time.Millisecond
	lastImportWait  = 640 * time.Millisecond
)

// errTooManyImports means that maxImports imports are running.
var errTooManyImports = errors.New("too many imports")

// importStream is the server's end of an ImportConversations call.
type importStream = grpc.ClientStreamingServer[
	parleyv1.ImportConversationsRequest, parleyv1.ImportConversationsResponse,
]

// ImportConversations stores complete conversations. It stores a conversation when all its requests
// have arrived.
//
// A conversation fails if it is invalid, has a running turn, or is damaged in the store. The others are
// still imported. The reply lists the first maxImportFailures failures. Every conversation that was
// sent and is neither in the imported nor in the skipped count has failed. If the store itself fails,
// the call ends with the store's error. The conversations imported before stay stored.
func (s *Server) ImportConversations(stream importStream) error {
	select {
	case s.imports <- struct{}{}:
		defer func() { <-s.imports }()
	default:
		return errTooManyImports
	}
	ctx := stream.Context()
	i := &importer{server: s, tenant: tenant(ctx), reply: new(parleyv1.ImportConversationsResponse)}
	err := i.run(ctx, stream.Recv)
	s.log.InfoContext(ctx, "imported", "tenant", i.tenant, "conversations", i.reply.GetImportedCount(),
		"skipped", i.reply.GetSkippedCount(), "failed", i.failed, "complete", err == nil)
	if err != nil {
		return err
	}
	return stream.SendAndClose(i.reply)
}

// importer runs one import. The goroutine of the call owns the fields before mu.
type importer struct {
	server   *Server
	tenant   string
	incoming *incoming // the conversation that is being received; nil if there is none
	// storing are the conversations that were passed to the store since the last call of wait.
	storing []*incoming
	group   errgroup.Group

	mu     sync.Mutex // guards the fields below
	failed int64
	reply  *parleyv1.ImportConversationsResponse
}

// run imports the requests that receive returns, until io.EOF. When run returns, none of its goroutines
// is running.
func (i *importer) run(ctx context.Context, receive func() (*parleyv1.ImportConversationsRequest, error)) error {
	err := i.receiveAll(ctx, receive)
	if waitErr := i.wait(); err == nil {
		err = waitErr
	}
	return err
}

func (i *importer) receiveAll(
	ctx context.Context, receive func() (*parleyv1.ImportConversationsRequest, error),
) error {
	for {
		r, err := receive()
		if errors.Is(err, io.EOF) {
			return i.startStore(ctx)
		}
		if err != nil {
			return err
		}
		if !i.incoming.continuesWith(r.GetConversation()) {
			if err := i.startStore(ctx); err != nil {
				return err
			}
			i.incoming = &incoming{header: r.GetConversation(), overwrite: r.GetOverwrite()}
		}
		if err := i.incoming.add(r, i.server); err != nil {
			return err
		}
		if i.incoming.complete() {
			if err := i.startStore(ctx); err != nil {
				return err
			}
		}
	}
}

// startStore starts to store the received conversation, concurrently with a few others. An error ends
// the import.
func (i *importer) startStore(ctx context.Context) error {
	c := i.incoming
	if i.incoming = nil; c == nil {
		return nil
	}
	// Conversations with the same id are stored one after the other. So are conversations with the same
	// create time, because their order is that of their commits.
	if len(i.storing) == maxConcurrentStores || slices.ContainsFunc(i.storing, c.mustFollow) {
		if err := i.wait(); err != nil {
			return err
		}
	}
	i.storing = append(i.storing, c)
	i.group.Go(func() (err error) {
		defer func() { // The recovery interceptor does not cover this goroutine.
			if p := recover(); p != nil {
				err = panicError(p)
			}
		}()
		return i.storeAndCount(ctx, c)
	})
	return nil
}

// wait waits until all conversations that were passed to the store are stored.
func (i *importer) wait() error {
	err := i.group.Wait()
	i.storing, i.group = i.storing[:0], errgroup.Group{}
	return err
}

// storeAndCount stores a conversation and counts the result. It releases the messages, because the
// conversation stays in i.storing until the client sends more.
func (i *importer) storeAndCount(ctx context.Context, a *incoming) error {
	defer func() { a.frames = nil }()
	var err error
	a.checkCount()
	if a.fault == "" {
		err = i.store(ctx, a)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if a.fault == "" {
		var (
			busy   *store.BusyError
			header *store.HeaderTooLargeError
		)
		switch {
		case err == nil:
			i.reply.ImportedCount++
			return nil
		case errors.Is(err, store.ErrConversationExists),
			errors.Is(err, store.ErrExpired),
			errors.Is(err, store.ErrFull):
			i.reply.SkippedCount++
			if errors.Is(err, store.ErrFull) {
				i.reply.NoRoomCount++
			}
			return nil
		case errors.As(err, &busy):
			a.fault = fmt.Sprintf(
				"CONVERSATION_BUSY: turn %s is running on the conversation; retry when it has ended",
				busy.TurnID,
			)
		case errors.As(err, &header):
			a.fault = fmt.Sprintf("conversation: %v", header)
		case errors.Is(err, store.ErrCorrupt):
			a.fault = "RECORD_CORRUPT: the conversation in the store is damaged; overwrite or delete it"
		default:
			return inConversation(a.header.GetId(), err)
		}
	}
	i.failed++
	if len(i.reply.GetFailures()) < maxImportFailures {
		i.reply.Failures = append(i.reply.Failures, &parleyv1.ImportFailure{
			ConversationId: clip(a.header.GetId(), maxFieldBytes), Reason: clip(a.fault, maxTextBytes),
		})
	}
	return nil
}

// store stores a conversation. It retries while the store is overloaded.
func (i *importer) store(ctx context.Context, a *incoming) error {
	for wait := firstImportWait; ; wait *= 2 {
		_, err := i.server.store.Import(ctx, &store.Import{
			Tenant: i.tenant, Conversation: a.header, Messages: store.Frames(slices.Concat(a.frames...)),
			Overwrite: a.overwrite,
		})
		if !errors.Is(err, store.ErrOverloaded) || wait > lastImportWait {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// incoming is a conversation of which one or more requests have arrived.
type incoming struct {
	header    *parleyv1.Conversation
	overwrite bool
	fault     string   // why it cannot be imported; empty if there is no fault so far
	requests  int      // requests received
	count     int      // messages received
	last      int32    // sequence of the newest message
	frames    [][]byte // the newest messages in encoded form, as many as a store may store
	size      int      // of frames, in bytes
}

// continuesWith reports whether a request with the header c continues the conversation.
func (a *incoming) continuesWith(c *parleyv1.Conversation) bool {
	return a != nil && c.GetId() != "" && c.GetId() == a.header.GetId() && c.GetUid() == a.header.GetUid()
}

// mustFollow reports whether the conversation must be stored after another one.
func (a *incoming) mustFollow(other *incoming) bool {
	return a.header.GetId() == other.header.GetId() ||
		proto.Equal(a.header.GetCreateTime(), other.header.GetCreateTime())
}

// add adds the messages of a request. If the request is invalid, it sets the fault; after that it only
// counts messages. An error is a fault of the server, not of the request.
func (a *incoming) add(r *parleyv1.ImportConversationsRequest, s *Server) error {
	a.requests++
	a.count += len(r.GetMessages())
	if a.fault != "" {
		return nil
	}
	faults := new(invalidError)
	if err := validate(r); err != nil && !errors.As(err, &faults) {
		return err
	}
	if a.requests == 1 {
		faults.checkImportedHeader(r.GetConversation(), s.now())
	} else if !proto.Equal(a.header, r.GetConversation()) {
		faults.add("conversation", "is not the same as in the previous request")
	}
	for n, m := range r.GetMessages() {
		faults.checkImportedMessage(fmt.Sprintf("messages[%d].", n), m, a.last, a.header, s.now())
		a.last = max(a.last, m.GetSequence())
	}
	if len(faults.violations) > 0 {
		a.fault = strings.TrimPrefix(faults.Error(), "invalid request: ")
		if a.requests > 1 {
			a.fault = fmt.Sprintf("request %d: %s", a.requests, a.fault)
		}
		a.frames = nil
		return nil
	}
	for _, m := range r.GetMessages() {
		if err := a.addMessage(m); err != nil {
			return err
		}
	}
	return nil
}

// addMessage adds a message in encoded form. It drops the oldest messages that exceed the limits of the
// conversation: no store would store them.
func (a *incoming) addMessage(m *parleyv1.Message) error {
	if m.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_UNSPECIFIED {
		m.Status = parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE
	}
	size := proto.Size(m)
	frame := make([]byte, 0, protowire.SizeTag(store.FrameField)+protowire.SizeBytes(size))
	frame = protowire.AppendVarint(protowire.AppendTag(frame, store.FrameField, protowire.BytesType), uint64(size))
	frame, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(frame, m)
	if err != nil {
		return fmt.Errorf("message %d: %w", m.GetSequence(), err)
	}
	a.frames, a.size = append(a.frames, frame), a.size+len(frame)
	limit := int(a.header.GetRetention().GetMaxMessages())
	if limit == 0 {
		limit = maxImportMessages
	}
	for len(a.frames) > limit || a.size > maxImportBytes && len(a.frames) > 1 {
		a.size -= len(a.frames[0])
		a.frames[0] = nil
		a.frames = a.frames[1:]
	}
	return nil
}

// complete reports whether all messages that the header counts have arrived. Then the next request
// starts a new conversation even if it has the same header. A file may contain a conversation twice.
func (a *incoming) complete() bool {
	want := int(a.header.GetMessageCount())
	return want > 0 && a.count >= want
}

// checkCount sets the fault if the number of received messages is not the one in the header. A
// truncated file or stream must not look like a complete conversation. Headers without a count are
// valid.
func (a *incoming) checkCount() {
	if want := int(a.header.GetMessageCount()); a.fault == "" && want != 0 && a.count != want {
		a.fault = fmt.Sprintf("conversation.message_count: is %d, but %d messages arrived", want, a.count)
	}
}
