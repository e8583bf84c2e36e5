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
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

// errDisconnected is the cause with which the context of a disconnected client ends.
var errDisconnected = errors.New("the client has left")

// client reads what a watcher yields, in a goroutine. The test can pause it.
type client struct {
	w       *watch.Watcher
	reading chan struct{} // holds a value while the client reads
	cancel  context.CancelCauseFunc
	ended   chan struct{} // closed when the watcher has ended and is stopped

	mu      sync.Mutex
	changes []*parleyv1.ConversationChange
	err     error
}

// startWatch starts a watcher and fails the test on an error.
func startWatch(t *testing.T, h *watch.Hub, o watch.Watch) *watch.Watcher {
	t.Helper()
	w, err := h.Watch(o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// startClient starts a watcher and reads what it yields until the client disconnects, stop is
// closed, or the test ends.
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

// receive receives a response as the client decodes it.
func (c *client) receive(response *parleyv1.WatchConversationsResponse, err error) {
	change, failed := decode(response)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = errors.Join(err, failed)
	if c.err == nil {
		c.changes = append(c.changes, change)
	}
}

// decode returns the change in an encoded response.
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

// pauseReading pauses the client until resumeReading is called.
func (c *client) pauseReading() { <-c.reading }

func (c *client) resumeReading() { c.reading <- struct{}{} }

// received waits until all goroutines are blocked and returns the changes since the last call.
func (c *client) received() []*parleyv1.ConversationChange {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	changes := c.changes
	c.changes = nil
	return changes
}

// want compares the changes since the last call and returns the cursor of the last one.
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

// disconnect disconnects the client and returns the error with which its watcher ended.
func (c *client) disconnect() error {
	c.cancel(errDisconnected)
	<-c.ended
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// position returns the position in a cursor.
func position(t *testing.T, cursor string) int {
	t.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(raw) != 16 {
		t.Fatalf("cursor %q: error = %v", cursor, err)
	}
	return int(binary.BigEndian.Uint64(raw[8:]))
}

// describe returns kind, conversation and version of each change. For an event it returns the
// index, or that it is the finished event.
func describe(changes []*parleyv1.ConversationChange) []string {
	var described []string
	for _, c := range changes {
		description := strings.TrimPrefix(c.GetKind().String(), "CHANGE_KIND_")
		switch event := c.GetTurnEvent(); {
		case event.GetFinished() != nil:
			description += fmt.Sprint(" ", c.GetConversationId(), " finished")
		case event != nil:
			description += fmt.Sprint(" ", c.GetConversationId(), " ", event.GetIndex())
		case c.GetConversationId() != "":
			description += fmt.Sprint(" ", c.GetConversationId(), " ", c.GetVersion())
		}
		described = append(described, description)
	}
	return described
}

// appendedChange returns the change of a message with this content.
func appendedChange(tenant, id string, version int32, content string) store.Change {
	m := &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Sequence: version, Content: content}
	body, err := proto.Marshal(m)
	if err != nil {
		panic(err) // cannot fail: the test provides the content
	}
	return store.Change{
		Tenant: tenant, ConversationID: id, Version: version, Time: time.Unix(int64(version), 0),
		Kind:    parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED,
		Message: store.AppendFrame(nil, body),
	}
}

// commit commits one message for each version.
func commit(h *watch.Hub, tenant, id string, versions ...int32) {
	for _, version := range versions {
		h.Committed([]store.Change{appendedChange(tenant, id, version, "hello")})
	}
}

// textEvent returns a text event of a turn.
func textEvent(index int32) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{
		TurnId: "turn", Index: index,
		Event: &parleyv1.TurnEvent_TextDelta{TextDelta: &parleyv1.TextDelta{Text: "a piece"}},
	}
}

// finishedEvent returns the finished event of a turn.
func finishedEvent(index int32) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{
		TurnId: "turn", Index: index,
		Event: &parleyv1.TurnEvent_Finished{Finished: &parleyv1.TurnFinished{}},
	}
}
