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
	// maxImportFailures is how many failures the reply of an import lists.
	maxImportFailures = 100
	// maxImportMessages and maxImportBytes bound what is held of one conversation until all of
	// it has come; no store keeps more.
	maxImportMessages = 1000
	maxImportBytes    = 3 << 20
	// maxImports is how many imports may be under way, over all tenants: each takes up to
	// 3 MiB when it waits for its client, and up to 27 MiB when it waits for the store.
	maxImports = 16
	// importsAtOnce is how many conversations of a call go to the store at the same time: they
	// share its commits.
	importsAtOnce = 8
	// An import waits for a store that is overloaded, at first firstImportWait, each time
	// twice as long, and no more after lastImportWait.
	firstImportWait = 10 * time.Millisecond
	lastImportWait  = 640 * time.Millisecond
)

// errTooManyImports says that as many imports are under way as may.
var errTooManyImports = errors.New("too many imports")

// ImportConversations takes whole conversations in, each when the request after its last one
// has come. One that is invalid, that a turn runs on, or that is damaged in the store is a
// failure and does not cost the others; the first maxImportFailures are listed, and all that
// were sent and are in neither count have failed. Where the store can take no more at all the
// call ends with its error, and what was taken in by then stays.
func (s *Server) ImportConversations(stream grpc.ClientStreamingServer[parleyv1.ImportConversationsRequest, parleyv1.ImportConversationsResponse]) error {
	select {
	case s.imports <- struct{}{}:
		defer func() { <-s.imports }()
	default:
		return errTooManyImports
	}
	ctx := stream.Context()
	i := &importing{server: s, tenant: tenant(ctx), reply: new(parleyv1.ImportConversationsResponse)}
	err := i.run(ctx, stream.Recv)
	s.log.InfoContext(ctx, "imported", "tenant", i.tenant, "conversations", i.reply.GetImportedCount(),
		"skipped", i.reply.GetSkippedCount(), "failed", i.failed, "complete", err == nil)
	if err != nil {
		return err
	}
	return stream.SendAndClose(i.reply)
}

// importing is one import that is under way.
type importing struct {
	server  *Server
	tenant  string
	arrival *arrival // nil: none
	// stored are those that were given to the store since wait.
	stored []*arrival
	group  errgroup.Group

	mu     sync.Mutex // guards the counts
	failed int64
	reply  *parleyv1.ImportConversationsResponse
}

// run takes in what receive returns, until io.EOF. Nothing of it goes on when it returns.
func (i *importing) run(ctx context.Context, receive func() (*parleyv1.ImportConversationsRequest, error)) error {
	err := i.receiveAll(ctx, receive)
	if late := i.wait(); err == nil {
		err = late
	}
	return err
}

func (i *importing) receiveAll(ctx context.Context, receive func() (*parleyv1.ImportConversationsRequest, error)) error {
	for {
		r, err := receive()
		if errors.Is(err, io.EOF) {
			return i.settle(ctx)
		}
		if err != nil {
			return err
		}
		if !i.arrival.goesOn(r.GetConversation()) {
			if err := i.settle(ctx); err != nil {
				return err
			}
			i.arrival = &arrival{header: r.GetConversation(), overwrite: r.GetOverwrite()}
		}
		if err := i.arrival.add(r, i.server); err != nil {
			return err
		}
		if i.arrival.complete() {
			if err := i.settle(ctx); err != nil {
				return err
			}
		}
	}
}

// settle has the store take in the conversation that has come, beside a few others. An error
// is one that ends the import.
func (i *importing) settle(ctx context.Context) error {
	a := i.arrival
	if i.arrival = nil; a == nil {
		return nil
	}
	// One after the other go those of one id, and of one create time, whose order is that of
	// their commits.
	if len(i.stored) == importsAtOnce || slices.ContainsFunc(i.stored, a.mustFollow) {
		if err := i.wait(); err != nil {
			return err
		}
	}
	i.stored = append(i.stored, a)
	i.group.Go(func() (err error) {
		defer func() { // No interceptor sees what happens here.
			if p := recover(); p != nil {
				err = panicked(p)
			}
		}()
		return i.take(ctx, a)
	})
	return nil
}

// wait waits for what was given to the store.
func (i *importing) wait() error {
	err := i.group.Wait()
	i.stored, i.group = i.stored[:0], errgroup.Group{}
	return err
}

// take has the store take in a conversation, and counts what becomes of it. It lets go of
// the messages, as the arrival stays in stored until the client sends more.
func (i *importing) take(ctx context.Context, a *arrival) error {
	defer func() { a.kept = nil }()
	var err error
	a.checkWhole()
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
		case errors.Is(err, store.ErrConversationExists), errors.Is(err, store.ErrExpired), errors.Is(err, store.ErrFull):
			i.reply.SkippedCount++
			if errors.Is(err, store.ErrFull) {
				i.reply.NoRoomCount++
			}
			return nil
		case errors.As(err, &busy):
			a.fault = fmt.Sprintf("CONVERSATION_BUSY: turn %s is running on it: try again when it has ended", busy.TurnID)
		case errors.As(err, &header):
			a.fault = fmt.Sprintf("conversation: %v", header)
		case errors.Is(err, store.ErrCorrupt):
			a.fault = "RECORD_CORRUPT: the one in the store is damaged: overwrite or delete it"
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

// store has the store take a conversation in.
func (i *importing) store(ctx context.Context, a *arrival) error {
	for wait := firstImportWait; ; wait *= 2 {
		_, err := i.server.store.Import(ctx, &store.Import{
			Tenant: i.tenant, Conversation: a.header, Messages: store.Frames(slices.Concat(a.kept...)), Overwrite: a.overwrite,
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

// arrival is a conversation of which one request or more have come.
type arrival struct {
	header    *parleyv1.Conversation
	overwrite bool
	fault     string // why it cannot be taken in; empty: nothing so far
	parts     int
	count     int      // messages that have come
	last      int32    // sequence of the newest
	kept      [][]byte // the newest in wire form, as many as a store may keep
	size      int      // of kept
}

// goesOn reports whether a request with this header goes on with the conversation.
func (a *arrival) goesOn(c *parleyv1.Conversation) bool {
	return a != nil && c.GetId() != "" && c.GetId() == a.header.GetId() && c.GetUid() == a.header.GetUid()
}

// mustFollow reports whether the conversation must be taken in after another one.
func (a *arrival) mustFollow(other *arrival) bool {
	return a.header.GetId() == other.header.GetId() || proto.Equal(a.header.GetCreateTime(), other.header.GetCreateTime())
}

// add takes the messages of a request over. Nothing more is looked at once there is a fault.
// An error is none of the request's.
func (a *arrival) add(r *parleyv1.ImportConversationsRequest, s *Server) error {
	a.parts++
	a.count += len(r.GetMessages())
	if a.fault != "" {
		return nil
	}
	faults := new(invalidError)
	if err := validate(r); err != nil && !errors.As(err, &faults) {
		return err
	}
	if a.parts == 1 {
		faults.checkImportedHeader(r.GetConversation(), s.now())
	} else if !proto.Equal(a.header, r.GetConversation()) {
		faults.add("conversation", "is not the same as in the request before")
	}
	for n, m := range r.GetMessages() {
		faults.checkImportedMessage(fmt.Sprintf("messages[%d].", n), m, a.last, a.header, s.now())
		a.last = max(a.last, m.GetSequence())
	}
	if len(faults.violations) > 0 {
		a.fault = strings.TrimPrefix(faults.Error(), "invalid request: ")
		if a.parts > 1 {
			a.fault = fmt.Sprintf("request %d of it: %s", a.parts, a.fault)
		}
		a.kept = nil
		return nil
	}
	for _, m := range r.GetMessages() {
		if err := a.keep(m); err != nil {
			return err
		}
	}
	return nil
}

// keep encodes a message, and drops the oldest ones that no store would keep beside it.
func (a *arrival) keep(m *parleyv1.Message) error {
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
	a.kept, a.size = append(a.kept, frame), a.size+len(frame)
	limit := int(a.header.GetRetention().GetMaxMessages())
	if limit == 0 {
		limit = maxImportMessages
	}
	for len(a.kept) > limit || a.size > maxImportBytes && len(a.kept) > 1 {
		a.size -= len(a.kept[0])
		a.kept[0] = nil
		a.kept = a.kept[1:]
	}
	return nil
}

// complete reports whether all messages have come that the header says there are: the next
// request begins a conversation even if that has the same header, say in one file twice.
func (a *arrival) complete() bool {
	want := int(a.header.GetMessageCount())
	return want > 0 && a.count >= want
}

// checkWhole finds that more or less has come than there is, where the header says how many
// messages that is: what was cut off in a file or on the way must not be taken for all.
func (a *arrival) checkWhole() {
	if want := int(a.header.GetMessageCount()); a.fault == "" && want != 0 && a.count != want {
		a.fault = fmt.Sprintf("conversation.message_count: is %d, but %d messages came", want, a.count)
	}
}
