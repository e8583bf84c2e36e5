package rpc

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
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

// TestSummariesAndWindows writes random conversations through the API. It compares summaries, windows and
// other reads with reference implementations that work on the written messages.
func TestSummariesAndWindows(t *testing.T) {
	clock := newManualClock()
	longTTL := func(s *setup) { s.Now, s.storeOptions.Now, s.storeOptions.TTL = clock.Now, clock.Now, 365*24*time.Hour }
	stores := map[string]*fixture{
		"memory": open(t, longTTL),
		"bolt": open(t, func(s *setup) {
			longTTL(s)
			s.wrap = func(store.Store) store.Store { return openBolt(t, s.storeOptions) }
		}),
	}
	count := 0
	rapid.Check(t, func(t *rapid.T) {
		count++
		w := &model{
			f:     stores[rapid.SampledFrom([]string{"memory", "bolt"}).Draw(t, "store")],
			clock: clock,
			id:    fmt.Sprint("c", count),
		}
		t.Repeat(map[string]func(*rapid.T){
			"append": w.append, "append 2": w.append, "append 3": w.append,
			"clear": w.clear, "retention": w.setRetention, "lease": w.lease, "wait": w.wait, "delete": w.delete,
			"summary": w.checkSummary, "summary again": w.checkSummary, "batch": w.checkBatch,
			"window": w.checkWindow, "window again": w.checkWindow, "reads": w.checkReads,
		})
	})
}

func openBolt(t *testing.T, o store.Options) store.Store {
	t.Helper()
	s, err := boltstore.Open(filepath.Join(t.TempDir(), "parley.db"), boltstore.Options{
		Options: o, JournalBudget: 64 << 10, CacheBytes: 1 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// model is a conversation and the state that it must have after the writes so far.
type model struct {
	f     *fixture
	clock *manualClock
	id    string
	// header is the header of the newest reply. It is nil if there is no conversation.
	header  *parleyv1.Conversation
	stored  []*parleyv1.Message
	last    int32                 // newest sequence
	granted *parleyv1.ActiveAgent // newest lease; it may be expired
}

// currentLease returns the routing lease, or nil if there is none or it is expired.
func (w *model) currentLease() *parleyv1.ActiveAgent {
	if end := w.granted.GetLeaseExpireTime(); end != nil && !w.clock.Now().Before(end.AsTime()) {
		w.granted = nil
	}
	return w.granted
}

// update updates the model after a write that returned the header c.
func (w *model) update(t *rapid.T, c *parleyv1.Conversation, err error) {
	if err != nil {
		t.Fatal(err)
	}
	if lease := w.currentLease(); !proto.Equal(lease, c.GetActiveAgent()) {
		t.Fatalf("lease = %v, want %v", c.GetActiveAgent(), lease)
	}
	w.header = c
	w.stored = w.stored[max(0, len(w.stored)-int(c.GetRetention().GetMaxMessages())):]
}

// mustExist skips the step if there is no conversation.
func (w *model) mustExist(t *rapid.T) {
	if w.header == nil {
		t.Skip("there is no conversation")
	}
}

func (w *model) append(t *rapid.T) {
	messages := rapid.SliceOfN(rapid.Custom(drawMessage), 1, 6).Draw(t, "messages")
	reply, err := w.f.AppendMessages(
		t.Context(),
		&parleyv1.AppendMessagesRequest{ConversationId: w.id, Messages: messages},
	)
	for i, a := range reply.GetAppended() {
		m := messages[i]
		m.Id, m.Sequence, m.Exchange, m.CreateTime = a.GetId(), a.GetSequence(), a.GetExchange(), a.GetCreateTime()
		if m.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_UNSPECIFIED {
			m.Status = parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE
		}
		w.stored, w.last = append(w.stored, m), a.GetSequence()
	}
	w.update(t, reply.GetConversation(), err)
}

func (w *model) clear(t *rapid.T) {
	w.mustExist(t)
	after := rapid.Int32Range(max(0, w.last-10), w.last).Draw(t, "after_sequence")
	reply, err := w.f.ClearConversation(
		t.Context(),
		&parleyv1.ClearConversationRequest{ConversationId: w.id, AfterSequence: after},
	)
	w.stored = slices.DeleteFunc(w.stored, func(m *parleyv1.Message) bool { return m.GetSequence() > after })
	w.update(t, reply.GetConversation(), err)
}

func (w *model) setRetention(t *rapid.T) {
	w.mustExist(t)
	reply, err := w.f.UpdateConversation(
		t.Context(),
		&parleyv1.UpdateConversationRequest{Conversation: &parleyv1.Conversation{
			Id: w.id, Retention: &parleyv1.Retention{MaxMessages: rapid.Int32Range(1, 40).Draw(t, "max_messages")},
		}},
	)
	w.update(t, reply.GetConversation(), err)
}

// lease grants or ends a lease. It may wait until just before the end of the lease.
func (w *model) lease(t *rapid.T) {
	w.mustExist(t)
	r := &parleyv1.SetActiveAgentRequest{
		ConversationId: w.id, Agent: rapid.SampledFrom([]string{"echo", "elsewhere", ""}).Draw(t, "agent"),
		Reason: drawWords(t, "reason"),
	}
	w.granted = &parleyv1.ActiveAgent{Agent: r.Agent, Reason: r.Reason, StartTime: timestamppb.New(w.clock.Now())}
	if d := time.Duration(rapid.IntRange(0, 60).Draw(t, "seconds")) * time.Second; d > 0 {
		r.LeaseDuration, w.granted.LeaseExpireTime = durationpb.New(d), timestamppb.New(w.clock.Now().Add(d))
	}
	if r.Agent == "" {
		w.granted = nil
	}
	reply, err := w.f.SetActiveAgent(t.Context(), r)
	w.update(t, reply.GetConversation(), err)
	if rapid.Bool().Draw(t, "wait until just before its end") {
		w.clock.advance(max(0, r.LeaseDuration.AsDuration()-1))
	}
}

func (w *model) wait(t *rapid.T) {
	nanos := rapid.OneOf(rapid.Just(int64(1)), rapid.Int64Range(1, int64(time.Minute))).Draw(t, "nanos")
	w.clock.advance(time.Duration(nanos))
}

func (w *model) delete(t *rapid.T) {
	w.mustExist(t)
	if _, err := w.f.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: w.id}); err != nil {
		t.Fatal(err)
	}
	w.header, w.stored, w.last, w.granted = nil, nil, 0, nil
}

// limits are the limits of a summary request.
type limits struct {
	messages int32 // message_limit; negative if not set
	bytes    int32 // max_bytes
}

func (l limits) messageLimit() *int32 {
	if l.messages < 0 {
		return nil
	}
	return &l.messages
}

// drawLimits draws random limits. The limit in bytes is none, any, or within one byte of the size of the
// newest messages or values.
func (w *model) drawLimits(t *rapid.T) limits {
	l := limits{messages: rapid.Int32Range(-1, 20).Draw(t, "message_limit")}
	s := w.summary(l)
	if removed := rapid.IntRange(0, len(s.RecentMessages)).Draw(t, "removed messages"); removed > 0 {
		s.RecentMessages, s.ReferencedData = s.RecentMessages[removed:], nil
	} else {
		s.ReferencedData = s.ReferencedData[:rapid.IntRange(0, len(s.ReferencedData)).Draw(t, "values")]
	}
	exactly := int32(variableSize(s))
	l.bytes = rapid.OneOf(
		rapid.Just(
			int32(0),
		),
		rapid.Int32Range(1, 1000),
		rapid.Int32Range(2048, 20_000),
		rapid.Int32Range(max(0, exactly-1), exactly+1),
	).Draw(t, "max_bytes")
	return l
}

// summary returns the summary that the model expects without max_bytes.
func (w *model) summary(l limits) *parleyv1.RoutingSummary {
	if w.header != nil {
		w.header.ActiveAgent = w.currentLease()
	}
	if l.messages < 0 {
		l.messages = 3
	}
	return referenceSummary(w.header, w.stored, int(l.messages))
}

func (w *model) checkSummary(t *rapid.T) {
	l := w.drawLimits(t)
	reply, err := w.f.GetRoutingSummary(
		t.Context(),
		&parleyv1.GetRoutingSummaryRequest{ConversationId: w.id, MessageLimit: l.messageLimit(), MaxBytes: l.bytes},
	)
	if w.header == nil {
		if statusOf(err).code != codes.NotFound {
			t.Fatalf("GetRoutingSummary of a missing conversation = %v, %v, want NotFound", reply, err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	w.compare(t, reply.GetSummary(), l)
}

func (w *model) checkBatch(t *rapid.T) {
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
		t.Fatalf("got %d summaries and missing ids %q, want %d and %q",
			len(reply.GetSummaries()), reply.GetMissingIds(), summaries, missing)
	}
	if l.bytes == 0 {
		l.bytes = 32 << 10
	}
	for _, s := range reply.GetSummaries() {
		w.compare(t, s, l)
	}
}

// compare checks a summary that was requested with the limits l.
func (w *model) compare(t *rapid.T, got *parleyv1.RoutingSummary, l limits) {
	if n := utf8.RuneCountInString(got.GetText()); n > 500 {
		t.Fatalf("text has %d characters, want at most 500", n)
	}
	if size := variableSize(got); l.bytes > 0 && size > int(l.bytes) {
		t.Fatalf("messages and referenced data have %d bytes, want at most %d", size, l.bytes)
	}
	want := w.summary(l)
	if newest := referenceTruncate(want, int(l.bytes)); newest != nil {
		checkTruncated(t, newest, got.GetRecentMessages(), int(l.bytes))
		want.RecentMessages, got.RecentMessages = nil, nil
	}
	if !proto.Equal(want, got) {
		t.Fatalf("limits %v (-reference +got):\n%s", l, cmp.Diff(want, got, protocmp.Transform()))
	}
}

// checkTruncated checks what is left of a message that does not fit: the beginning of its texts and the
// fields that are never removed. left has at most one message.
func checkTruncated(t *rapid.T, full *parleyv1.Message, left []*parleyv1.Message, maxBytes int) {
	if len(left) == 0 && maxBytes < 2048 {
		return
	}
	if len(left) != 1 {
		t.Fatalf("%d messages are left, want 1 in %d bytes", len(left), maxBytes)
	}
	got, want := left[0], proto.CloneOf(full)
	for _, text := range []struct{ full, left string }{
		{full.GetContent(), got.GetContent()}, {full.GetToolResult().GetContent(), got.GetToolResult().GetContent()},
	} {
		if !strings.HasPrefix(text.full, text.left) || !utf8.ValidString(text.left) {
			t.Fatalf("text = %q, want a valid prefix of %q", text.left, text.full)
		}
	}
	size := variableSize(&parleyv1.RoutingSummary{RecentMessages: left})
	if len(got.GetContent()) < len(full.GetContent()) && size < maxBytes-8 {
		t.Fatalf("content is truncated, but only %d of %d bytes are used", size, maxBytes)
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
		t.Fatalf("message truncated to %d bytes (-want +got):\n%s", maxBytes, cmp.Diff(want, got, protocmp.Transform()))
	}
	if proto.Equal(full, got) {
		t.Fatalf("the newest message is not truncated to %d bytes", maxBytes)
	}
}
