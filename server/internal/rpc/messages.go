package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/calllog"
	"github.com/parleyhq/parley/server/internal/rpc/pages"
	"github.com/parleyhq/parley/server/internal/rpc/pipeline"
	"github.com/parleyhq/parley/server/internal/rpc/retries"
	"github.com/parleyhq/parley/server/internal/rpc/wirecodec"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/server/internal/window"
	"github.com/parleyhq/parley/store"
)

const (
	// maxPageBytes limits the messages in a reply. With the header, the reply stays below
	// rules.MaxGRPCBytes.
	maxPageBytes = pages.MaxBytes
	// ownStreamBytes is the memory in bytes that the requests under way of an AppendStream may need in decoded form
	// before they count towards maxDecodedBytes.
	ownStreamBytes = 256 << 10
)

// messageReader has the handlers of the methods that return a [wirecodec.Reply]: it contains stored messages or
// records, or a cached routing summary, without a copy.
type messageReader struct{ *Server }

// handlers returns the handlers by the full names of their methods. They replace the generated ones.
func (s messageReader) handlers() map[string]grpc.MethodHandler {
	const (
		load = parleyv1.ConversationService_LoadConversation_FullMethodName
		list = parleyv1.ConversationService_ListMessages_FullMethodName
		get  = parleyv1.ConversationService_GetContext_FullMethodName
		sum  = parleyv1.ConversationService_GetRoutingSummary_FullMethodName
		rec  = parleyv1.RecordService_GetRecords_FullMethodName
	)
	return map[string]grpc.MethodHandler{
		load: wirecodec.Handler(load, s.LoadConversation),
		list: wirecodec.Handler(list, s.ListMessages),
		get:  wirecodec.Handler(get, s.GetContext),
		sum:  wirecodec.Handler(sum, s.GetRoutingSummary),
		rec:  wirecodec.Handler(rec, s.GetRecords),
	}
}

// read reads a conversation. The caller must not change the messages of the snapshot.
func (s *Server) read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	r.Shared = true
	return s.store.Read(ctx, r)
}

// AppendMessages adds messages in one atomic step.
func (s *Server) AppendMessages(
	ctx context.Context, r *parleyv1.AppendMessagesRequest,
) (*parleyv1.AppendMessagesResponse, error) {
	return s.appendMessages(ctx, r, nil)
}

// appendMessages is AppendMessages. The store calls queued, if it is not nil: see [store.Append].
func (s *Server) appendMessages(
	ctx context.Context, r *parleyv1.AppendMessagesRequest, queued func(),
) (*parleyv1.AppendMessagesResponse, error) {
	q, err := s.prepareAppend(tenant(ctx), r)
	if err != nil {
		return nil, err
	}
	result, err := s.store.Append(ctx, &store.Append{
		Tenant: tenant(ctx), ConversationID: r.GetConversationId(), Messages: r.GetMessages(),
		Request: q, IfVersion: r.IfVersion, MustExist: r.GetMustExist(), CreateWith: r.GetCreateWith(),
		ReplaceAfter: r.ReplaceAfterSequence, Records: r.GetRecords(), Queued: queued,
	})
	if err != nil {
		return nil, inConversation(r.GetConversationId(), err)
	}
	return &parleyv1.AppendMessagesResponse{
		Conversation: withoutPrompt(result.Conversation), Appended: result.Appended,
		Replayed: result.Replayed, Created: result.Created, TenantRevision: result.TenantRevision,
	}, nil
}

// appendStream is the server's end of an AppendStream call.
type appendStream = grpc.BidiStreamingServer[parleyv1.AppendStreamRequest, parleyv1.AppendStreamResponse]

// AppendStream handles each request of a stream as a call of AppendMessages.
func (s *Server) AppendStream(stream appendStream) error {
	err := pipeline.Run(stream.Context(), s.streamedAppends(stream), s.stopping)
	if errors.Is(err, pipeline.ErrStopped) {
		return turn.ErrShuttingDown
	}
	return err
}

// streamedAppend is a request of AppendStream.
type streamedAppend struct {
	message *parleyv1.AppendStreamRequest
	memory  memory
	err     error  // why message could not be decoded, or nil
	queued  func() // see [store.Append]
}

// streamedAppends returns how the requests of a stream are received and answered. The next append to a conversation
// starts when the store has queued or refused the one before. So they are applied in the order of the stream and share
// commits, and if_version of one may be the version that an earlier one creates.
func (s *Server) streamedAppends(stream appendStream) pipeline.Stream[*streamedAppend, *parleyv1.AppendStreamResponse] {
	from, _ := stream.Context().Value(sourceKey{}).(source)
	own := semaphore.NewWeighted(ownStreamBytes)
	call := chain(s.callInterceptors(from), &grpc.UnaryServerInfo{
		Server: s, FullMethod: parleyv1.ConversationService_AppendMessages_FullMethodName,
	}, s.answerStreamed)
	return pipeline.Stream[*streamedAppend, *parleyv1.AppendStreamResponse]{
		Receive: func() (r *streamedAppend, conversation string, err error) {
			defer func() {
				if p := recover(); p != nil {
					err = panicError(p)
				}
			}()
			r = new(streamedAppend)
			if r.message, err = stream.Recv(); err == nil {
				r.memory, r.err = s.requests.decode(stream.Context(), r.message, own)
			}
			return r, r.message.GetAppend().GetConversationId(), err
		},
		Answer: func(ctx context.Context, r *streamedAppend, queued func()) *parleyv1.AppendStreamResponse {
			defer r.memory.release()
			r.queued = queued
			reply, err := call(ctx, r)
			if appended, ok := reply.(*parleyv1.AppendMessagesResponse); ok && err == nil {
				return &parleyv1.AppendStreamResponse{Result: &parleyv1.AppendStreamResponse_Response{Response: appended}}
			}
			return &parleyv1.AppendStreamResponse{
				Result: &parleyv1.AppendStreamResponse_Error{Error: status.Convert(err).Proto()},
			}
		},
		Send: stream.Send,
		Drop: func(r *streamedAppend) { r.memory.release() },
	}
}

// answerStreamed answers a request of AppendStream. The interceptors of streamedAppends call it.
func (s *Server) answerStreamed(ctx context.Context, request any) (any, error) {
	r, ok := request.(*streamedAppend)
	if !ok {
		return nil, fmt.Errorf("request of AppendStream is a %T", request)
	}
	calllog.Of(ctx).SignedIn(principal(ctx))
	if r.err != nil {
		return nil, r.err
	}
	info := &grpc.UnaryServerInfo{Server: s, FullMethod: parleyv1.ConversationService_AppendMessages_FullMethodName}
	if r.message.GetAppend() == nil {
		return nil, validate(r.message)
	}
	return s.tenantUnary(ctx, r.message.GetAppend(), info, func(ctx context.Context, request any) (any, error) {
		return s.validateUnary(ctx, request, info, acceptUnary(func(ctx context.Context, _ any) (any, error) {
			return s.appendMessages(ctx, r.message.GetAppend(), r.queued)
		}))
	})
}

// prepareAppend checks the messages of a request and sets the ids of those that have none. It removes the fields of
// create_with that clients cannot set. It returns the request that the store compares retries with.
func (s *Server) prepareAppend(tenant string, r *parleyv1.AppendMessagesRequest) (*store.Request, error) {
	const method = "AppendMessages"
	for i, m := range r.GetMessages() {
		// The server sets these fields and ignores them in requests.
		m.Sequence, m.TurnId, m.Exchange, m.CreateTime = 0, "", 0, nil
		if err := s.checkSize(fmt.Sprintf("messages[%d]", i), m); err != nil {
			return nil, err
		}
	}
	var err error
	if r.CreateWith, err = s.settableWith(r.GetCreateWith()); err != nil {
		return nil, err
	}
	q, err := retries.NewRequest(r.GetRequestId(), method, &parleyv1.AppendMessagesRequest{
		Messages: r.GetMessages(), CreateWith: r.GetCreateWith(), ReplaceAfterSequence: r.ReplaceAfterSequence,
		Records: r.GetRecords(),
	})
	if err != nil {
		return nil, err
	}
	for i, m := range r.GetMessages() {
		m.Id = retries.IDOr(m.GetId(), r.GetRequestId(), tenant, r.GetConversationId(), method, strconv.Itoa(i))
	}
	return q, nil
}

// checkSize returns an error if a message is too large. name is the path of the message in the
// request, for example "messages[3]".
func (s *Server) checkSize(name string, m *parleyv1.Message) error {
	if size := proto.Size(m); size > s.maxMessageBytes {
		return &tooLargeError{message: name, size: size, limit: s.maxMessageBytes}
	}
	return nil
}

// ListMessages returns a page of the stored messages, in ascending or descending order.
func (s messageReader) ListMessages(
	ctx context.Context, r *parleyv1.ListMessagesRequest,
) (*wirecodec.Reply, error) {
	page, err := pages.ListMessages(r, tenant(ctx), func(q *store.Read) (*store.Snapshot, error) { return s.read(ctx, q) })
	if err != nil {
		return nil, inConversation(r.GetConversationId(), err)
	}
	return wirecodec.NewReply(&parleyv1.ListMessagesResponse{
		Conversation: page.Conversation, OldestSequence: page.OldestSequence, NextPageToken: page.NextToken,
	}, page.Messages...), nil
}

// startOnPage returns the index of the first message of a window that a reply can contain. If the newest exchange is
// larger than a reply, so that the snapshot lacks its user message, the reply has the newest messages of it, unless the
// window is too small for the exchange.
func startOnPage(messages []*parleyv1.Message, snapshot *store.Snapshot, w *parleyv1.ContextWindow) int {
	bounds := w
	if snapshot.MoreMessages {
		bounds = window.OfNewest(w, maxPageBytes)
	}
	start := window.Start(messages, snapshot.Offsets(), bounds)
	isUser := func(m *parleyv1.Message) bool { return m.GetRole() == parleyv1.Role_ROLE_USER }
	tooSmall := w.GetMaxMessages() > 0 && int(w.GetMaxMessages()) <= len(messages) ||
		w.GetMaxBytes() > 0 && w.GetMaxBytes() <= maxPageBytes
	if start < len(messages) || !snapshot.MoreMessages || tooSmall || slices.ContainsFunc(messages, isUser) {
		return start
	}
	return window.StartWithin(messages, maxPageBytes)
}

// GetContext returns the system prompt and the window of messages for a model call.
func (s messageReader) GetContext(ctx context.Context, r *parleyv1.GetContextRequest) (*wirecodec.Reply, error) {
	id := r.GetConversationId()
	snapshot, err := s.read(ctx, &store.Read{
		Tenant: tenant(ctx), ConversationID: id, Newest: -1, MaxBytes: maxPageBytes,
		RecordPrefixes: r.GetRecordPrefixes(),
	})
	if err != nil {
		return nil, inConversation(id, err)
	}
	return contextReply(r, snapshot)
}

// contextReply returns the reply of a GetContext. snapshot has the newest messages, as many as a reply can contain.
func contextReply(r *parleyv1.GetContextRequest, snapshot *store.Snapshot) (*wirecodec.Reply, error) {
	messages := snapshot.Messages
	if !r.GetIncludeReasoning() {
		messages = messages.WithoutReasoning()
	}
	decoded, err := messages.Messages()
	if err != nil {
		return nil, inConversation(r.GetConversationId(), err)
	}
	records, more := recordsOnPage(snapshot)
	start := startOnPage(decoded, snapshot, r.GetWindow())
	omitted := snapshot.Conversation.GetMessageCount() - int32(len(decoded)-start)
	return wirecodec.NewReply(&parleyv1.GetContextResponse{
		SystemPrompt: snapshot.Conversation.GetSystemPrompt(), OmittedCount: omitted,
		Version: snapshot.Conversation.GetVersion(), Records: records, MoreRecords: more,
	}, messages.Skip(start)), nil
}
