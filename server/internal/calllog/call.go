package calllog

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/rules/ids"
)

// callKey is the context key of the Call.
type callKey struct{}

// Of returns the call that a context belongs to. It returns nil if the call is not logged; the methods of a nil Call
// do nothing.
func Of(ctx context.Context) *Call {
	c, _ := ctx.Value(callKey{}).(*Call)
	return c
}

// Call is what is known about a call. Its methods may be called from many goroutines: the handler of a stream that
// was ended may still be running.
type Call struct {
	method    string
	inProcess bool
	start     time.Time
	replied   atomic.Bool // a stream has sent a reply

	mu                    sync.Mutex
	firstReplied          time.Time
	principal             auth.Principal
	signedIn, accepted    bool
	conversation, request string // ids in the request
	waits                 bool   // the request asks to wait for a change
	dryRun                bool   // the request changes nothing
	removes               bool   // the request removes messages or records besides what else it does
	deleted               int64  // number of deleted things in the reply; -1 if the reply does not say
}

// SignedIn sets the caller.
func (c *Call) SignedIn(p auth.Principal) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.principal, c.signedIn = p, true
}

// Tenant returns the tenant of the caller. It is empty before the caller is known, and for callers without a tenant.
func (c *Call) Tenant() string {
	if c == nil {
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.principal.Tenant
}

func (c *Call) isSignedIn() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.signedIn
}

// SetConversation sets the id of the conversation, if the server has chosen it.
func (c *Call) SetConversation(id string) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conversation = id
}

// Accepted records that the request was accepted: the caller may make it, it is within the limits and valid. It sets
// the ids of the request.
func (c *Call) Accepted(request any) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.accepted, c.deleted = true, -1
	c.setRequest(request)
}

// Refused sets the ids of a request that was not accepted. Ids that are not valid are left out.
func (c *Call) Refused(request any) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setRequest(request)
}

// setRequest sets the ids of a request. The caller must hold c.mu.
func (c *Call) setRequest(request any) {
	switch r := request.(type) {
	case interface{ GetConversationId() string }:
		c.conversation = idIf(ids.IsConversation, r.GetConversationId())
	case interface{ GetConversation() *parleyv1.Conversation }:
		c.conversation = idIf(ids.IsConversation, r.GetConversation().GetId())
	}
	if r, ok := request.(interface{ GetRequestId() string }); ok {
		c.request = idIf(ids.IsRequest, r.GetRequestId())
	}
	switch r := request.(type) {
	case *parleyv1.GetRoutingSummaryRequest:
		c.waits = r.GetWaitTimeout() != nil
	case *parleyv1.PurgeConversationsRequest:
		c.dryRun = r.GetDryRun()
	case *parleyv1.AppendMessagesRequest:
		c.removes = r.ReplaceAfterSequence != nil || hasDelete(r.GetRecords())
	case *parleyv1.ChatRequest:
		c.removes = hasDelete(r.GetRecords())
	case *parleyv1.WriteRecordsRequest:
		c.removes = hasDelete(r.GetWrites())
	}
}

func hasDelete(writes []*parleyv1.RecordWrite) bool {
	return slices.ContainsFunc(writes, (*parleyv1.RecordWrite).GetDelete)
}

// Replied sets what the reply of a unary call says about its effect.
func (c *Call) Replied(reply any) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch r := reply.(type) {
	case *parleyv1.PurgeConversationsResponse:
		c.deleted = r.GetPurgedCount()
	case *parleyv1.DeleteInteractionsResponse:
		c.deleted = r.GetDeletedCount()
	case *parleyv1.CreateConversationResponse:
		c.conversation = r.GetConversation().GetId()
	}
}

// setReplied records the time of the first reply.
func (c *Call) setReplied(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.firstReplied.IsZero() {
		c.firstReplied = now
		c.replied.Store(true)
	}
}

// firstReply returns when a stream sent its first reply. It is zero if there is none, and for unary calls.
func (c *Call) firstReply() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.firstReplied
}

// slowTime returns the time of a call that counts when it is compared with Settings.SlowAfter: of a stream, the time
// to its first reply. It is 0 for a call that waits for others.
func (c *Call) slowTime(end time.Time) time.Duration {
	switch _, name, _ := strings.Cut(c.method[1:], "/"); name {
	// Their streams wait for changes, for an agent, or for the client. Health and reflection have streams of this kind.
	case "WatchConversations", "ResumeTurn", "ImportConversations", "AppendStream", "Watch", "ServerReflectionInfo":
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waits {
		return 0
	}
	if !c.firstReplied.IsZero() {
		end = c.firstReplied
	}
	return end.Sub(c.start)
}

// idIf returns an id, or "" if it is not valid.
func idIf(valid func(string) bool, id string) string {
	if !valid(id) {
		return ""
	}
	return id
}

// maxCallID is the maximum length of an id of a call.
const maxCallID = 128

// validCallID returns an id of a call, or "" if it is too long or contains anything but printable ASCII characters
// without spaces.
func validCallID(id string) string {
	if len(id) > maxCallID || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return ""
	}
	return id
}
