package watch_test

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

// errLeft is why the context of a client ends that has left.
var errDisconnected = errors.New("the client has left")

// client reads what a watcher yields, in a goroutine, unless it stalls.
type client struct {
	w       *watch.Watcher
	reading chan struct{} // holds a value while the client reads
	cancel  context.CancelCauseFunc
	ended   chan struct{} // closed when the watcher has come to an end and is stopped

	mu      sync.Mutex
	changes []*parleyv1.ConversationChange
	err     error
}

// begin begins a watch that must not be refused.
func startWatch(t *testing.T, h *watch.Hub, o watch.Watch) *watch.Watcher {
	t.Helper()
	w, err := h.Watch(o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// follow begins a watch, and reads what it yields until the client leaves or stop is closed,
// or the test is over.
func startClient(t *testing.T, h *watch.Hub, o watch.Watch, stop <-chan struct{}) *client {
	t.Helper()
	c := &client{w: startWatch(t, h, o), reading: make(chan struct{}, 1), ended: make(chan struct{})}
	c.reading <- struct{}{}
	var ctx context.Context
	ctx, c.cancel = context.WithCancelCause(t.Context())
	t.Cleanup(func() { <-c.ended })
	go func() {
		defer close(c.ended)
		defer c.w.Stop()
		for response, err := range c.w.All(ctx, stop) {
			select {
			case <-c.reading:
				c.reading <- struct{}{}
			case <-ctx.Done():
			}
			c.receive(response, err)
		}
	}()
	return c
}

// receive takes what a stream would send, as the client decodes it.
func (c *client) receive(response *parleyv1.WatchConversationsResponse, err error) {
	change, failed := decode(response)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = errors.Join(err, failed)
	if c.err == nil {
		c.changes = append(c.changes, change)
	}
}

// decode reads a response from its wire form.
func decode(response *parleyv1.WatchConversationsResponse) (*parleyv1.ConversationChange, error) {
	encoded, err := proto.Marshal(response)
	if err != nil {
		return nil, err
	}
	received := new(parleyv1.WatchConversationsResponse)
	if err := proto.Unmarshal(encoded, received); err != nil {
		return nil, err
	}
	if unknown := received.GetChange().ProtoReflect().GetUnknown(); len(unknown) > 0 {
		return nil, fmt.Errorf("the change has unknown fields: %q", unknown)
	}
	return received.GetChange(), nil
}

// stall has the client read no more until goOn is called.
func (c *client) pauseReading() { <-c.reading }

func (c *client) resumeReading() { c.reading <- struct{}{} }

// take returns what has come since the last take, once all goroutines have come to rest.
func (c *client) received() []*parleyv1.ConversationChange {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	changes := c.changes
	c.changes = nil
	return changes
}

// want checks what has come since the last look, and returns the cursor of the last of it.
func (c *client) want(t *testing.T, want ...string) (cursor string) {
	t.Helper()
	changes := c.received()
	if d := cmp.Diff(want, describe(changes)); d != "" {
		t.Errorf("changes (-want +got):\n%s", d)
	}
	if len(changes) == 0 {
		return ""
	}
	return changes[len(changes)-1].GetCursor()
}

// end has the client leave, and returns why its watcher came to an end.
func (c *client) disconnect() error {
	c.cancel(errDisconnected)
	<-c.ended
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// position is the place that a cursor names.
func position(t *testing.T, cursor string) int {
	t.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(raw) != 16 {
		t.Fatalf("cursor %q: %v", cursor, err)
	}
	return int(binary.BigEndian.Uint64(raw[8:]))
}

// brief says of each change its kind, its conversation and its version; of an event of a
// turn its index, or that it is the last one.
func describe(changes []*parleyv1.ConversationChange) []string {
	var lines []string
	for _, c := range changes {
		line := strings.TrimPrefix(c.GetKind().String(), "CHANGE_KIND_")
		switch event := c.GetTurnEvent(); {
		case event.GetFinished() != nil:
			line += fmt.Sprint(" ", c.GetConversationId(), " finished")
		case event != nil:
			line += fmt.Sprint(" ", c.GetConversationId(), " ", event.GetIndex())
		case c.GetConversationId() != "":
			line += fmt.Sprint(" ", c.GetConversationId(), " ", c.GetVersion())
		}
		lines = append(lines, line)
	}
	return lines
}

// appended is the change that appends a message with this content.
func appendedChange(tenant, id string, version int32, content string) store.Change {
	m := &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Sequence: version, Content: content}
	body, err := proto.Marshal(m)
	if err != nil {
		panic(err) // The content of a test.
	}
	return store.Change{
		Tenant: tenant, ConversationID: id, Version: version, Time: time.Unix(int64(version), 0),
		Kind:    parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED,
		Message: protowire.AppendBytes(protowire.AppendTag(nil, store.FrameField, protowire.BytesType), body),
	}
}

// commit commits messages with these versions, one after the other.
func commit(h *watch.Hub, tenant, id string, versions ...int32) {
	for _, version := range versions {
		h.Committed([]store.Change{appendedChange(tenant, id, version, "hello")})
	}
}

// textEvent is an event of a turn.
func textEvent(index int32) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{TurnId: "turn", Index: index, Event: &parleyv1.TurnEvent_TextDelta{TextDelta: &parleyv1.TextDelta{Text: "a piece"}}}
}

// finishedEvent is the last event of a turn.
func finishedEvent(index int32) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{TurnId: "turn", Index: index, Event: &parleyv1.TurnEvent_Finished{Finished: &parleyv1.TurnFinished{}}}
}
