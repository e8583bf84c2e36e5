package rpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/store"
)

// isolatedAge is the age of the conversations of the tenant b when the tenant a calls.
const isolatedAge = time.Minute

// isolatedTimeout is the maximum duration of a call. Only a leak makes a call last that long.
const isolatedTimeout = 20 * time.Second

// isolatedServer is a server on which the tenant a calls with ids of the tenant b.
type isolatedServer struct {
	*fixture
	a, b context.Context //nolint:containedctx // the credentials of the tenants
	now  *atomic.Int64
	// handlers counts the handlers of a's streams that are running.
	handlers sync.WaitGroup
	ids      []*foreignIDs
}

// openIsolated starts a server with an interaction log. The tenant b has some conversations, whose ids have the
// prefix. leak, if not nil, changes the server.
func openIsolated(t *testing.T, prefix string, count int, leak func(*setup)) *isolatedServer {
	t.Helper()
	s := &isolatedServer{now: new(atomic.Int64)}
	s.now.Store(logTime().Add(-isolatedAge).UnixNano())
	_, withLog := withInteractionLog(t, func(o *setup) {
		o.Auth = byMetadata()
		o.Now = func() time.Time { return time.Unix(0, s.now.Load()) }
		o.storeOptions.Now = o.Now
		o.grpcOptions = append(o.grpcOptions, grpc.ChainStreamInterceptor(s.countHandlers))
		if leak != nil {
			leak(o)
		}
	})
	s.fixture = open(t, withLog)
	s.a = metadata.AppendToOutgoingContext(t.Context(), "tenant", "a", "role", "admin")
	s.b = metadata.AppendToOutgoingContext(t.Context(), "tenant", "b", "role", "admin")
	s.fill(t, prefix, count)
	s.now.Store(logTime().UnixNano())
	return s
}

func (s *isolatedServer) countHandlers(
	srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	if principal(stream.Context()).Tenant == "a" {
		s.handlers.Add(1)
		defer s.handlers.Done()
	}
	return handler(srv, stream)
}

// fill creates the conversations of b, and starts a watch of b that holds half of them.
func (s *isolatedServer) fill(t *testing.T, prefix string, count int) {
	t.Helper()
	var held []string
	for i := range count {
		ids := &foreignIDs{
			conversation: fmt.Sprintf("%s-%04d", prefix, i), held: fmt.Sprintf("%s-held-%04d", prefix, i),
			request: fmt.Sprintf("%s-request-%04d", prefix, i), message: fmt.Sprintf("%s-message-%04d", prefix, i),
			record: fmt.Sprintf("%s-record-%04d", prefix, i),
		}
		ids.turn = s.fillConversation(t, ids)
		reply, err := s.GetConversation(s.b, &parleyv1.GetConversationRequest{ConversationId: ids.conversation})
		if err != nil {
			t.Fatal(err)
		}
		ids.header = reply.GetConversation()
		s.ids, held = append(s.ids, ids), append(held, ids.held)
	}
	list, err := s.ListConversations(s.b, &parleyv1.ListConversationsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, ids := range s.ids {
		ids.cursor = list.GetWatchCursor()
	}
	for some := range slices.Chunk(held, 1000) {
		watch, err := s.WatchConversations(s.b, &parleyv1.WatchConversationsRequest{
			ConversationIds: some, DeleteAfterDisconnect: durationpb.New(time.Hour),
		})
		if err == nil {
			_, err = watch.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// fillConversation creates the conversations with these ids, and returns the id of a turn.
func (s *isolatedServer) fillConversation(t *testing.T, ids *foreignIDs) (turn string) {
	t.Helper()
	stream, err := s.Chat(s.b, &parleyv1.ChatRequest{
		ConversationId: ids.conversation, Content: secretContent, RequestId: ids.request,
	})
	for err == nil {
		var reply *parleyv1.ChatResponse
		if reply, err = stream.Recv(); err == nil {
			turn = reply.GetEvent().GetTurnId()
		}
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	for _, id := range []string{ids.conversation, ids.held} {
		if _, err := s.AppendMessages(s.b, &parleyv1.AppendMessagesRequest{
			ConversationId: id, RequestId: ids.request,
			Messages: []*parleyv1.Message{{Id: ids.message, Role: parleyv1.Role_ROLE_USER, Content: secretContent}},
			Records: []*parleyv1.RecordWrite{
				{Key: ids.record + "false", Value: []byte(secretContent)},
				{Key: ids.record + "true", Value: []byte(secretContent), TenantScope: true},
			},
		}); err != nil {
			t.Fatal(err)
		}
	}
	return turn
}

// tokenFor returns the page token that b gets for a request.
func (s *isolatedServer) tokenFor(t *testing.T, v variant, request proto.Message) string {
	t.Helper()
	first := proto.Clone(request).ProtoReflect()
	fields := first.Descriptor().Fields()
	first.Clear(fields.ByName("page_token"))
	first.Set(fields.ByName("page_size"), protoreflect.ValueOfInt32(1))
	reply := newReply(t, v.method)
	if err := s.conn.Invoke(s.b, fullMethod(v.method), first.Interface(), reply); err != nil {
		return "no token"
	}
	return reply.ProtoReflect().Get(reply.ProtoReflect().Descriptor().Fields().ByName("next_page_token")).String()
}

func newReply(t *testing.T, m protoreflect.MethodDescriptor) proto.Message {
	t.Helper()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
	if err != nil {
		t.Fatal(err)
	}
	return kind.New().Interface()
}

// call calls an RPC as a tenant and returns everything that the caller receives, without random values.
func (s *isolatedServer) call(
	ctx context.Context, t *testing.T, m protoreflect.MethodDescriptor, r proto.Message,
) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, isolatedTimeout)
	defer cancel()
	if !m.IsStreamingServer() && !m.IsStreamingClient() {
		reply := newReply(t, m)
		if err := s.conn.Invoke(ctx, fullMethod(m), r, reply); err != nil {
			return describeError(t, err)
		}
		return describeMessage(t, reply)
	}
	defer s.handlers.Wait() // For the release of ephemeral conversations.
	defer cancel()
	stream, err := s.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, fullMethod(m))
	if err == nil {
		err = stream.SendMsg(r)
	}
	if err == nil {
		err = stream.CloseSend()
	}
	if err != nil && !errors.Is(err, io.EOF) { // EOF: the call has already ended, and RecvMsg returns its status.
		t.Fatal(err)
	}
	var received []string
	for {
		reply := newReply(t, m)
		err := stream.RecvMsg(reply)
		switch {
		case errors.Is(err, io.EOF):
			return strings.Join(received, "\n")
		case err != nil:
			return strings.Join(append(received, describeError(t, err)), "\n")
		}
		received = append(received, describeMessage(t, reply))
		if change, ok := reply.(*parleyv1.WatchConversationsResponse); ok &&
			change.GetChange().GetKind() == parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT {
			return strings.Join(received, "\n")
		}
	}
}

// describeError returns the code, the text and the details of an error.
func describeError(t *testing.T, err error) string {
	t.Helper()
	return describeMessage(t, status.Convert(err).Proto())
}

func describeMessage(t *testing.T, m proto.Message) string {
	t.Helper()
	text, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, text); err != nil {
		t.Fatal(err)
	}
	return withoutRandom(compact.String())
}

// withoutRandom replaces the random values in a reply: uids, ids that the server chooses, cursors and tokens, times
// of the system's clock, and the sizes that depend on how many bytes a time has.
func withoutRandom(text string) string {
	for _, random := range [][2]string{
		{`[0-9a-f]{8}-[0-9a-f]{4}-[47][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}`, "UUID"},
		{`"(cursor|watchCursor|watch_cursor|nextPageToken|next_page_token)":"[^"]+"`, `"$1":"TOKEN"`},
		{`[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z`, "TIME"},
		{`(?m)^id: .*$`, "id: TOKEN"},
	} {
		text = regexp.MustCompile(random[0]).ReplaceAllString(text, random[1])
	}
	return text
}

// adjacentTexts matches two text events that follow each other, in lines of JSON or in server-sent events.
var adjacentTexts = regexp.MustCompile(`"index":\d+,"textDelta":\{"text":"((?:[^"\\]|\\.)*)"((?:,"offset":\d+)?)\}+\n` +
	`(?:(?:id|event):.*\n|\n)*` +
	`.*"index":(\d+),"textDelta":\{"text":"((?:[^"\\]|\\.)*)"(?:,"offset":\d+)?\}`)

// mergedTexts merges all texts that follow each other: how many of them a reader gets at once depends on the time.
func mergedTexts(text string) string {
	for {
		merged := adjacentTexts.ReplaceAllString(text, `"index":$3,"textDelta":{"text":"$1$4"$2}`)
		if merged == text {
			return text
		}
		text = merged
	}
}

// isolation compares what the tenant a receives on two servers: on one of them, b has the ids with which a calls;
// on the other one, b has as many others.
type isolation struct {
	with, without *isolatedServer
	used          int // number of foreignIDs that calls have used
}

// differenceText describes a difference: the request, whether a has conversations with the same ids, and the lines that
// differ.
const differenceText = "%v, own conversations %t (- b has other ids, + b has the ids of the request):\n%s"

// nextIDs returns ids that no call has used. If owned is set, a has conversations with these ids, too.
func (i *isolation) nextIDs(t *testing.T, owned bool) *foreignIDs {
	t.Helper()
	ids := i.with.ids[i.used]
	i.used++
	for _, s := range []*isolatedServer{i.with, i.without} {
		for _, id := range []string{ids.conversation, ids.held} {
			if !owned {
				break
			}
			if _, err := s.store.Append(t.Context(), &store.Append{
				Tenant: "a", ConversationID: id,
				Messages: []*parleyv1.Message{{Id: "own", Role: parleyv1.Role_ROLE_USER, Content: "of a"}},
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return ids
}

func openIsolation(t *testing.T, calls int, leak func(*setup)) *isolation {
	t.Helper()
	// One conversation more makes the counts of b differ.
	return &isolation{with: openIsolated(t, "b", calls, leak), without: openIsolated(t, "x", calls+1, leak)}
}

// differences makes all calls of some variants on both servers, and returns those that a can tell apart, at most
// limit. If owned is set, a has conversations with the same ids.
func (i *isolation) differences(t *testing.T, all []variant, owned bool, limit int) (found []string) {
	t.Helper()
	for _, v := range all {
		request := v.request(t, i.nextIDs(t, owned))
		if v.hasToken() {
			m := request.ProtoReflect()
			token := i.with.tokenFor(t, v, request)
			m.Set(m.Descriptor().Fields().ByName("page_token"), protoreflect.ValueOfString(token))
		}
		with, without := i.with.call(i.with.a, t, v.method, request), i.without.call(i.without.a, t, v.method, request)
		if diff := cmp.Diff(mergedTexts(without), mergedTexts(with)); diff != "" {
			found = append(found, fmt.Sprintf(differenceText, v, owned, diff))
		}
		if len(found) == limit {
			break
		}
	}
	return found
}

// export returns everything that b has stored and logged on the server with the ids.
func (i *isolation) export(t *testing.T) []proto.Message {
	t.Helper()
	s := i.with
	stream, err := s.ExportConversations(s.b, &parleyv1.ExportConversationsRequest{IncludeRecords: true})
	if err != nil {
		t.Fatal(err)
	}
	var all []proto.Message
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, part)
	}
	logged := &parleyv1.ListInteractionsRequest{
		Span: &parleyv1.ListInteractionsRequest_Within{Within: durationpb.New(time.Hour)}, PageSize: 1000,
	}
	for {
		page, err := s.ListInteractions(s.b, logged)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range page.GetInteractions() {
			all = append(all, entry)
		}
		if logged.PageToken = page.GetNextPageToken(); logged.PageToken == "" {
			break
		}
	}
	for _, ids := range s.ids {
		turns, err := s.ListTurns(s.b, &parleyv1.ListTurnsRequest{ConversationId: ids.conversation})
		if err != nil {
			all = append(all, status.Convert(err).Proto())
		} else {
			all = append(all, turns)
		}
	}
	return all
}

// sameMessages reports whether two lists are equal. protocmp would make a map of each message, which takes far longer.
func sameMessages(a, b []proto.Message) bool { return slices.EqualFunc(a, b, proto.Equal) }

// live returns the numbers of b's conversations before and after all that are not held have expired.
func (i *isolation) live(t *testing.T) (before, after int64) {
	t.Helper()
	count := func() int64 {
		for more := true; more; {
			var err error
			if more, err = i.with.store.Sweep(t.Context(), 1000); err != nil {
				t.Fatal(err)
			}
		}
		stats, err := i.with.store.TenantStats(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		return stats.Conversations
	}
	before = count()
	i.with.now.Add(int64(2 * time.Hour))
	return before, count()
}

// TestIsolationOfAllCalls makes the calls of all RPCs, generated from the descriptors, and those of all HTTP paths,
// as the tenant a with ids of the tenant b. They must have the same results whether b has these ids or not, and must
// not change anything of b. With -short, the calls have the fields that they must have, or all fields.
func TestIsolationOfAllCalls(t *testing.T) {
	all := mainVariants(t)
	if !testing.Short() {
		all = nil
		for _, m := range isolatedMethods() {
			all = append(all, variants(t, m)...)
		}
	}
	paths := httpVariants(t, all)
	i := openIsolation(t, 2*(len(all)+len(paths)), nil)
	before := i.export(t)
	for _, owned := range []bool{false, true} {
		for _, difference := range slices.Concat(i.differences(t, all, owned, len(all)), i.httpDifferences(t, paths, owned)) {
			t.Error(difference)
		}
	}
	if after := i.export(t); !sameMessages(before, after) {
		t.Errorf("what b has stored and logged, before and after the calls of a (-before +after):\n%s",
			cmp.Diff(before, after, protocmp.Transform()))
	}
	total := int64(len(i.with.ids))
	if live, left := i.live(t); live != 2*total || left != total {
		t.Errorf("b has %d conversations, %d after those that are not held have expired; want %d and %d", live, left,
			2*total, total)
	}
	t.Logf("%d calls over gRPC and %d over HTTP", len(all), len(paths))
}

// asTenant returns an option that makes the handler of one RPC see another tenant instead of a.
func asTenant(name, method string) func(*setup) {
	other := func(ctx context.Context, called string) context.Context {
		p := principal(ctx)
		if called == method && p.Tenant == "a" {
			p.Tenant = name
		}
		return context.WithValue(ctx, principalKey{}, p)
	}
	return func(s *setup) {
		s.grpcOptions = append(s.grpcOptions,
			grpc.ChainUnaryInterceptor(func(
				ctx context.Context, r any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
			) (any, error) {
				return handler(other(ctx, info.FullMethod), r)
			}),
			grpc.ChainStreamInterceptor(func(
				srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
			) error {
				return handler(srv, &callerStream{ServerStream: stream, ctx: other(stream.Context(), info.FullMethod)})
			}))
	}
}

// TestIsolationNoticesLeaks: for each RPC, a handler that uses the tenant b in place of a makes the calls of
// that RPC differ, or changes what b has.
func TestIsolationNoticesLeaks(t *testing.T) {
	for _, m := range isolatedMethods() {
		method := fullMethod(m)
		if access, known := auth.AccessOf(method); !known || access.WholeServer ||
			method == parleyv1.ConversationService_ListAgents_FullMethodName {
			continue // Its result does not depend on the tenant.
		}
		t.Run(string(m.Name()), func(t *testing.T) {
			all := variants(t, m)
			if i := openIsolation(t, 2*len(all), asTenant("b", method)); !i.leaks(t, all) {
				t.Errorf("%s with the tenant b in place of a was not noticed", method)
			}
		})
	}
}

// leaks reports whether calls of a on the two servers differ, or change what b has.
func (i *isolation) leaks(t *testing.T, all []variant) bool {
	t.Helper()
	before := i.export(t)
	if len(i.differences(t, all, false, 1)) > 0 || len(i.differences(t, all, true, 1)) > 0 ||
		!sameMessages(before, i.export(t)) {
		return true
	}
	total := int64(len(i.with.ids))
	live, left := i.live(t)
	return live != 2*total || left != total
}
