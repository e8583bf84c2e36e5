package rpc

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore"
)

// TestSummariesAndWindows has random conversations written through the API, and after each
// write compares summaries and windows with what the contract says of all that is kept.
// What is compared was stored, sent and decoded.
func TestSummariesAndWindows(t *testing.T) {
	clock := new(handClock)
	clocked := func(s *setup) { s.Now, s.stored.Now, s.stored.TTL = clock.now, clock.now, 365*24*time.Hour }
	stores := map[string]*fixture{
		"memory": open(t, clocked),
		"bolt": open(t, func(s *setup) {
			clocked(s)
			s.wrap = func(store.Store) store.Store { return openBolt(t, s.stored) }
		}),
	}
	made := 0
	rapid.Check(t, func(t *rapid.T) {
		made++
		w := &world{f: stores[rapid.SampledFrom([]string{"memory", "bolt"}).Draw(t, "store")], clock: clock, id: fmt.Sprint("c", made)}
		t.Repeat(map[string]func(*rapid.T){
			"append": w.append, "append more": w.append, "append and more": w.append,
			"clear": w.clear, "keep": w.keep, "lease": w.lease, "wait": w.wait, "delete": w.delete,
			"summary": w.checkSummary, "summary again": w.checkSummary, "batch": w.checkBatch,
			"window": w.checkWindow, "window again": w.checkWindow,
		})
	})
}

func openBolt(t *testing.T, o store.Options) store.Store {
	t.Helper()
	s, err := boltstore.Open(filepath.Join(t.TempDir(), "parley.db"), boltstore.Options{Options: o})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// handClock moves by hand, and never back.
type handClock struct{ nanos atomic.Int64 }

func (c *handClock) now() time.Time { return time.Unix(1_000_000, c.nanos.Load()) }

// world is a conversation and all that it has to keep, by what was written to it.
type world struct {
	f     *fixture
	clock *handClock
	id    string
	// header is that of the newest reply; nil when there is no conversation.
	header *parleyv1.Conversation
	kept   []*parleyv1.Message
	last   int32 // sequence
	given  *parleyv1.ActiveAgent
}

// holder is the routing lease, nil when there is none any more.
func (w *world) holder() *parleyv1.ActiveAgent {
	if end := w.given.GetLeaseExpireTime(); end != nil && !w.clock.now().Before(end.AsTime()) {
		w.given = nil
	}
	return w.given
}

// wrote takes over the header after a write. What is kept follows from it.
func (w *world) wrote(t *rapid.T, c *parleyv1.Conversation, err error) {
	if err != nil {
		t.Fatal(err)
	}
	if lease := w.holder(); !proto.Equal(lease, c.GetActiveAgent()) {
		t.Fatalf("the lease is %v, given was %v", c.GetActiveAgent(), lease)
	}
	w.header = c
	w.kept = w.kept[max(0, len(w.kept)-int(c.GetRetention().GetMaxMessages())):]
}

// exists skips what only can be done to a conversation that is there.
func (w *world) exists(t *rapid.T) {
	if w.header == nil {
		t.Skip("there is no conversation")
	}
}

func (w *world) append(t *rapid.T) {
	messages := rapid.SliceOfN(rapid.Custom(drawMessage), 1, 6).Draw(t, "messages")
	reply, err := w.f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{ConversationId: w.id, Messages: messages})
	for i, a := range reply.GetAppended() {
		m := messages[i]
		m.Id, m.Sequence, m.Exchange, m.CreateTime = a.GetId(), a.GetSequence(), a.GetExchange(), a.GetCreateTime()
		if m.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_UNSPECIFIED {
			m.Status = parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE
		}
		w.kept, w.last = append(w.kept, m), a.GetSequence()
	}
	w.wrote(t, reply.GetConversation(), err)
}

func (w *world) clear(t *rapid.T) {
	w.exists(t)
	after := rapid.Int32Range(max(0, w.last-10), w.last).Draw(t, "after_sequence")
	reply, err := w.f.ClearConversation(t.Context(), &parleyv1.ClearConversationRequest{ConversationId: w.id, AfterSequence: after})
	w.kept = slices.DeleteFunc(w.kept, func(m *parleyv1.Message) bool { return m.GetSequence() > after })
	w.wrote(t, reply.GetConversation(), err)
}

func (w *world) keep(t *rapid.T) {
	w.exists(t)
	reply, err := w.f.UpdateConversation(t.Context(), &parleyv1.UpdateConversationRequest{Conversation: &parleyv1.Conversation{
		Id: w.id, Retention: &parleyv1.Retention{MaxMessages: rapid.Int32Range(1, 40).Draw(t, "max_messages")},
	}})
	w.wrote(t, reply.GetConversation(), err)
}

// lease gives or ends a lease, and may wait until just ahead of its end.
func (w *world) lease(t *rapid.T) {
	w.exists(t)
	r := &parleyv1.SetActiveAgentRequest{
		ConversationId: w.id, Agent: rapid.SampledFrom([]string{"echo", "elsewhere", ""}).Draw(t, "agent"), Reason: drawWords(t, "reason"),
	}
	w.given = &parleyv1.ActiveAgent{Agent: r.Agent, Reason: r.Reason, StartTime: timestamppb.New(w.clock.now())}
	if d := time.Duration(rapid.IntRange(0, 60).Draw(t, "seconds")) * time.Second; d > 0 {
		r.LeaseDuration, w.given.LeaseExpireTime = durationpb.New(d), timestamppb.New(w.clock.now().Add(d))
	}
	if r.Agent == "" {
		w.given = nil
	}
	reply, err := w.f.SetActiveAgent(t.Context(), r)
	w.wrote(t, reply.GetConversation(), err)
	if rapid.Bool().Draw(t, "nearly until its end") {
		w.clock.nanos.Add(max(0, int64(r.LeaseDuration.AsDuration())-1))
	}
}

func (w *world) wait(t *rapid.T) {
	w.clock.nanos.Add(rapid.OneOf(rapid.Just(int64(1)), rapid.Int64Range(1, int64(time.Minute))).Draw(t, "nanos"))
}

func (w *world) delete(t *rapid.T) {
	w.exists(t)
	if _, err := w.f.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: w.id}); err != nil {
		t.Fatal(err)
	}
	w.header, w.kept, w.last, w.given = nil, nil, 0, nil
}

// limits are what a reader asks for.
type limits struct {
	messages int32 // unset when negative
	bytes    int32
}

func (l limits) messageLimit() *int32 {
	if l.messages < 0 {
		return nil
	}
	return &l.messages
}

// drawLimits draws no bound in bytes, any, or what the newest of the content takes, give or
// take a byte.
func (w *world) drawLimits(t *rapid.T) limits {
	l := limits{messages: rapid.Int32Range(-1, 20).Draw(t, "message_limit")}
	s := w.summary(l)
	if left := rapid.IntRange(0, len(s.RecentMessages)).Draw(t, "messages left out"); left > 0 {
		s.RecentMessages, s.ReferencedData = s.RecentMessages[left:], nil
	} else {
		s.ReferencedData = s.ReferencedData[:rapid.IntRange(0, len(s.ReferencedData)).Draw(t, "values")]
	}
	exactly := int32(variableSize(s))
	l.bytes = rapid.OneOf(
		rapid.Just(int32(0)), rapid.Int32Range(1, 1000), rapid.Int32Range(2048, 20_000), rapid.Int32Range(max(0, exactly-1), exactly+1),
	).Draw(t, "max_bytes")
	return l
}

// summary is what there is to know without max_bytes.
func (w *world) summary(l limits) *parleyv1.RoutingSummary {
	if w.header != nil {
		w.header.ActiveAgent = w.holder()
	}
	if l.messages < 0 {
		l.messages = 3
	}
	return naiveSummary(w.header, w.kept, int(l.messages))
}

func (w *world) checkSummary(t *rapid.T) {
	l := w.drawLimits(t)
	reply, err := w.f.GetRoutingSummary(t.Context(), &parleyv1.GetRoutingSummaryRequest{ConversationId: w.id, MessageLimit: l.messageLimit(), MaxBytes: l.bytes})
	if w.header == nil {
		if toldBy(err).code != codes.NotFound {
			t.Fatalf("of no conversation there is %v, %v", reply, err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	w.compare(t, reply.GetSummary(), l)
}

func (w *world) checkBatch(t *rapid.T) {
	l := w.drawLimits(t)
	reply, err := w.f.BatchGetRoutingSummaries(t.Context(), &parleyv1.BatchGetRoutingSummariesRequest{
		ConversationIds: []string{w.id, "missing", w.id}, MessageLimit: l.messageLimit(), MaxBytes: l.bytes,
	})
	if err != nil {
		t.Fatal(err)
	}
	missing, summaries := []string{"missing"}, 2
	if w.header == nil {
		missing, summaries = []string{w.id, "missing", w.id}, 0
	}
	if !slices.Equal(reply.GetMissingIds(), missing) || len(reply.GetSummaries()) != summaries {
		t.Fatalf("%d summaries, and %q are missing", len(reply.GetSummaries()), reply.GetMissingIds())
	}
	if l.bytes == 0 {
		l.bytes = 32 << 10
	}
	for _, s := range reply.GetSummaries() {
		w.compare(t, s, l)
	}
}

// compare checks a summary that was asked for with these limits.
func (w *world) compare(t *rapid.T, got *parleyv1.RoutingSummary, l limits) {
	if n := utf8.RuneCountInString(got.GetText()); n > 500 {
		t.Fatalf("the text has %d characters", n)
	}
	if size := variableSize(got); l.bytes > 0 && size > int(l.bytes) {
		t.Fatalf("messages and referenced data take %d bytes of %d", size, l.bytes)
	}
	want := w.summary(l)
	if newest := naiveFit(want, int(l.bytes)); newest != nil {
		checkCut(t, newest, got.GetRecentMessages(), int(l.bytes))
		want.RecentMessages, got.RecentMessages = nil, nil
	}
	if !proto.Equal(want, got) {
		t.Fatalf("limits %v (-naive +got):\n%s", l, cmp.Diff(want, got, protocmp.Transform()))
	}
}

// checkCut checks what is left of a message that does not fit: its beginning, with all that
// names it.
func checkCut(t *rapid.T, whole *parleyv1.Message, left []*parleyv1.Message, maxBytes int) {
	if len(left) == 0 && maxBytes < 2048 {
		return
	}
	if len(left) != 1 {
		t.Fatalf("%d messages are left where the newest does not fit into %d bytes", len(left), maxBytes)
	}
	got, want := left[0], proto.CloneOf(whole)
	for _, text := range []struct{ whole, left string }{
		{whole.GetContent(), got.GetContent()}, {whole.GetToolResult().GetContent(), got.GetToolResult().GetContent()},
	} {
		if !strings.HasPrefix(text.whole, text.left) || !utf8.ValidString(text.left) {
			t.Fatalf("%q is no beginning of %q", text.left, text.whole)
		}
	}
	size := variableSize(&parleyv1.RoutingSummary{RecentMessages: left})
	if len(got.GetContent()) < len(whole.GetContent()) && size < maxBytes-8 {
		t.Fatalf("content is cut although %d bytes of %d are taken", size, maxBytes)
	}
	want.Content = got.GetContent()
	if want.ToolResult != nil {
		want.ToolResult.Content = got.GetToolResult().GetContent()
	}
	if got.Metadata == nil {
		want.Metadata = nil
	}
	want.Attachments = want.Attachments[:min(len(want.Attachments), len(got.Attachments))]
	want.ToolCalls = want.ToolCalls[:min(len(want.ToolCalls), len(got.ToolCalls))]
	want.StructuredData = want.StructuredData[:min(len(want.StructuredData), len(got.StructuredData))]
	if !proto.Equal(want, got) {
		t.Fatalf("cut to %d bytes (-whole +got):\n%s", maxBytes, cmp.Diff(want, got, protocmp.Transform()))
	}
	if proto.Equal(whole, got) {
		t.Fatalf("the newest message fits into %d bytes after all", maxBytes)
	}
}
