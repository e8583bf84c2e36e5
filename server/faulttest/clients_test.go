package faulttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// client is a caller with its own conversation. It makes one call after the other and knows which
// state the server must have after a fault at any time.
type client struct {
	id          string
	random      *rand.Rand
	steps       int
	state       progress
	withRecords int // steps with messages and records that were acknowledged since the last countAppends
	// onProgress, if not nil, is called for every change of state: before a step is sent, and when it
	// is acknowledged.
	onProgress func(progress)
}

// progress is the state of a client.
type progress struct {
	acknowledged conversation // after the last acknowledged step
	pending      *step        // the step without an acknowledgement; nil if there is none
	started      bool         // pending is a chat whose user message is acknowledged
}

// step is a call of a client.
type step struct {
	kind     kind
	request  string // request_id
	contents []string
	writes   []write // of records, in the same commit as the contents
}

// kind is the kind of a step.
type kind string

const (
	createStep      kind = "create"
	appendStep      kind = "append"
	chatStep        kind = "chat"
	stalledChatStep kind = "stall" // a chat whose agent never ends
	deleteStep      kind = "delete"
	recordsStep     kind = "write records"             // no message
	tenantStep      kind = "write records of a tenant" // no conversation
)

// newClients returns n clients. Clients of the same seed choose the same steps.
func newClients(n int, seed uint64) []*client {
	all := make([]*client, n)
	for i := range all {
		all[i] = &client{id: fmt.Sprint("c", i), random: rand.New(rand.NewPCG(seed, uint64(i)))}
	}
	return all
}

// run does steps until one fails, and returns the error. It calls acknowledged after each step.
func (c *client) run(ctx context.Context, s *server, acknowledged func()) error {
	for {
		if err := c.do(ctx, s, c.next()); err != nil {
			return err
		}
		acknowledged()
	}
}

// next chooses a step.
func (c *client) next() *step {
	c.steps++
	s := &step{request: fmt.Sprint(c.id, "-", c.steps)}
	switch n := c.random.IntN(100); {
	case c.state.acknowledged.version == 0 && n < 50:
		s.kind = createStep
	case c.state.acknowledged.version != 0 && n < 5:
		s.kind = deleteStep
	case n >= 65 && n < 80:
		c.chooseWrites(s)
	case n < 80:
		s.kind = appendStep
		for range 1 + c.random.IntN(3) {
			s.contents = append(s.contents, c.newContent())
		}
	default:
		s.kind, s.contents = chatStep, []string{c.newContent()}
	}
	if len(s.contents) > 0 && c.random.IntN(2) == 0 {
		s.addWrites()
	}
	return s
}

// newContent returns a unique text. One in twenty is long.
func (c *client) newContent() string {
	length := 10 + c.random.IntN(700)
	if c.random.IntN(20) == 0 {
		length = 20_000
	}
	text := strings.Builder{}
	fmt.Fprintf(&text, "%s step %d:", c.id, c.steps)
	for text.Len() < length {
		fmt.Fprintf(&text, " %x", c.random.Uint64())
	}
	return text.String()
}

// do does a step and records its acknowledgement.
func (c *client) do(ctx context.Context, s *server, pending *step) error {
	c.setProgress(progress{acknowledged: c.state.acknowledged, pending: pending})
	revision, err := c.send(ctx, s, pending)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", c.id, pending.kind, err)
	}
	after, err := c.state.acknowledged.after(pending).acknowledge(pending, revision)
	if err != nil {
		return fmt.Errorf("%s: %w", c.id, err)
	}
	if len(pending.contents) > 0 && len(pending.writes) > 0 {
		c.withRecords++
	}
	c.setProgress(progress{acknowledged: after})
	return nil
}

func (c *client) setProgress(p progress) {
	c.state = p
	if c.onProgress != nil {
		c.onProgress(p)
	}
}

// send sends a step, which may have been sent before, and waits until it is done. A wrong reply is an
// error, too. It returns the revision of the tenant's record, 0 if the step writes none.
func (c *client) send(ctx context.Context, s *server, pending *step) (revision int64, err error) {
	switch pending.kind {
	case createStep:
		_, err = s.CreateConversation(ctx, &parleyv1.CreateConversationRequest{
			Conversation: &parleyv1.Conversation{Id: c.id}, RequestId: pending.request,
		})
	case appendStep:
		r := &parleyv1.AppendMessagesRequest{
			ConversationId: c.id, RequestId: pending.request, Records: c.recordWrites(pending),
		}
		for _, content := range pending.contents {
			r.Messages = append(r.Messages, &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: content})
		}
		var reply *parleyv1.AppendMessagesResponse
		if reply, err = s.AppendMessages(ctx, r); err != nil {
			break
		}
		for i, m := range reply.GetAppended() {
			if want := c.state.acknowledged.last + int32(i) + 1; m.GetSequence() != want {
				return 0, fmt.Errorf("message has sequence %d, want %d", m.GetSequence(), want)
			}
		}
		revision = reply.GetTenantRevision()
	case recordsStep, tenantStep:
		r := &parleyv1.WriteRecordsRequest{RequestId: pending.request, Writes: c.recordWrites(pending)}
		if pending.kind == recordsStep {
			r.ConversationId = c.id
		}
		var reply *parleyv1.WriteRecordsResponse
		reply, err = s.WriteRecords(ctx, r)
		revision = reply.GetTenantRevision()
	case chatStep, stalledChatStep:
		err = c.chat(ctx, s, pending)
	case deleteStep:
		_, err = s.DeleteConversation(ctx, &parleyv1.DeleteConversationRequest{ConversationId: c.id, AllowMissing: true})
	}
	return revision, err
}

// chat sends a user message and reads the answer to its end.
func (c *client) chat(ctx context.Context, s *server, pending *step) error {
	r := &parleyv1.ChatRequest{
		ConversationId: c.id, Content: pending.contents[0], RequestId: pending.request, Records: c.recordWrites(pending),
	}
	if pending.kind == stalledChatStep {
		r.Agent = stallingAgent
	}
	stream, err := s.Chat(ctx, r)
	for finished := false; err == nil; {
		var reply *parleyv1.ChatResponse
		reply, err = stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && finished:
			return nil
		case errors.Is(err, io.EOF):
			return errors.New("stream ended without a finished event")
		case err != nil:
		case reply.GetEvent().GetStarted() != nil && !c.state.started:
			c.setProgress(progress{acknowledged: c.state.acknowledged, pending: pending, started: true})
		case reply.GetEvent().GetFinished() != nil:
			finished = true
		}
	}
	return err
}

// verify checks a server that was started again after a fault. The conversation must be what was
// acknowledged, with or without the pending step. Then it sends the pending step again, which must be
// done exactly once. It returns what the fault left of the pending step, for the counts.
func (c *client) verify(ctx context.Context, s *server) (left string, err error) {
	got, err := observe(ctx, s, c.id)
	if err != nil {
		return "", err
	}
	if err := c.state.allows(got, true); err != nil {
		return "", err
	}
	pending, want := c.state.pending, c.state.acknowledged
	if pending == nil {
		return "no step", nil
	}
	left = "nothing"
	if after := want.after(pending); equal(got, after) {
		left, want = "done", after
	} else if equal(got, want) {
		want = after
	} else {
		left, want = "cut off", got // A cut-off turn is not repeated.
	}
	revision, err := c.send(ctx, s, pending)
	if err != nil {
		return "", fmt.Errorf("%s again: %w", pending.kind, err)
	}
	if has := got.tenantRecord; left == "done" && pending.writesTenant() && has.value != "" && revision != has.revision {
		return "", fmt.Errorf("%s again returned tenant_revision %d, want %d", pending.kind, revision, has.revision)
	}
	if want, err = want.acknowledge(pending, revision); err != nil {
		return "", err
	}
	c.setProgress(progress{acknowledged: want})
	if got, err = observe(ctx, s, c.id); err == nil && !equal(got, want) {
		err = fmt.Errorf("state after %s was sent again: %s", pending.kind, diff(got, want))
	}
	return left, err
}

// observe reads a conversation and its records from a server.
func observe(ctx context.Context, s *server, id string) (conversation, error) {
	tenantRecord, err := getRecord(ctx, s, "", id)
	if err != nil {
		return conversation{}, err
	}
	reply, err := s.ListMessages(ctx, &parleyv1.ListMessagesRequest{ConversationId: id, PageSize: 1000, Ascending: true})
	if status.Code(err) == codes.NotFound {
		return conversation{tenantRecord: tenantRecord}, nil
	}
	if err != nil {
		return conversation{}, err
	}
	c := conversationOf(reply.GetConversation(), reply.GetMessages())
	c.tenantRecord = tenantRecord
	c.record, err = getRecord(ctx, s, id, recordKey)
	return c, err
}

// verifyAll calls verify for every client and checks list and statistics. It returns all faults.
func verifyAll(t *testing.T, s *server, clients []*client) error {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), testTimeout)
	defer stop()
	countAppends(t, clients)
	var faults []error
	var ids []string
	messages, records := 0, 1 // That of checkRevisions.
	if err := checkRevisions(ctx, s, clients); err != nil {
		faults = append(faults, err)
	}
	for _, c := range clients {
		left, err := c.verify(ctx, s)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", c.id, err))
		} else {
			counts.add(t, "pending steps at a fault, left: "+left, 1)
			counts.add(t, "records verified after a fault", c.state.acknowledged.count())
		}
		records += c.state.acknowledged.count()
		if c.state.acknowledged.version != 0 {
			ids, messages = append(ids, c.id), messages+len(c.state.acknowledged.messages)
		}
	}
	if err := checkTenantRecords(ctx, s, clients); err != nil {
		faults = append(faults, err)
	}
	list, err := s.ListConversations(ctx, &parleyv1.ListConversationsRequest{PageSize: 1000})
	if err != nil {
		return errors.Join(append(faults, err)...)
	}
	var listed []string
	for _, entry := range list.GetConversations() {
		listed = append(listed, entry.GetConversation().GetId())
		if turn := entry.GetConversation().GetActiveTurnId(); turn != "" {
			faults = append(faults, fmt.Errorf("turn %s of %s runs after a restart, want none", turn,
				entry.GetConversation().GetId()))
		}
	}
	slices.Sort(ids)
	slices.Sort(listed)
	if !slices.Equal(ids, listed) {
		faults = append(faults, fmt.Errorf("ListConversations = %q, want %q", listed, ids))
	}
	stats, err := s.GetStats(ctx, &parleyv1.GetStatsRequest{})
	if err != nil {
		return errors.Join(append(faults, err)...)
	}
	if stats.GetConversationCount() != int64(len(ids)) || stats.GetMessageCount() != int64(messages) ||
		stats.GetRecordCount() != int64(records) {
		faults = append(faults, fmt.Errorf("GetStats = %v, want %d conversations, %d messages and %d records", stats,
			len(ids), messages, records))
	}
	return errors.Join(faults...)
}
