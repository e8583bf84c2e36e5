package linear

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// The size of a history. Concurrent calls make a history hard to check, and worth checking.
const (
	clients      = 6
	lives        = 4   // runs of the server, which is killed after each
	callsPerLife = 120 // answered before the kill
	idsInUse     = maxConversations + 2
	maxContents  = 3
	anyVersion   = -1
	checkLimit   = time.Minute
)

// recorder records the calls of a server's clients.
type recorder struct {
	began    time.Time
	mu       sync.Mutex
	history  []operation
	lost     []operation   // calls of this life without an answer
	answered int           // in this life
	enough   chan struct{} // closed when callsPerLife are answered
}

func (r *recorder) now() int64 { return int64(time.Since(r.began)) }

// add records a call that has ended.
func (r *recorder) add(o operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o.got.lost {
		r.lost = append(r.lost, o)
		return
	}
	r.history = append(r.history, o)
	r.answered++
	if r.answered == callsPerLife {
		close(r.enough)
	}
}

// endLost ends the lost calls when the server has ended: they cannot take effect later.
func (r *recorder) endLost() {
	for _, o := range r.lost {
		o.ended = r.now()
		o.got.createTime = span{r.began.UnixNano() + o.began, r.began.UnixNano() + o.ended}
		r.history = append(r.history, o)
	}
	r.lost = nil
}

// record lets clients make calls on a server that is killed and started again. It returns an error if
// an answer is invalid in any history.
func record(t *testing.T, program string, seed uint64, flags ...string) ([]operation, error) {
	t.Helper()
	r, dataDir := &recorder{began: time.Now()}, t.TempDir()
	for life := range lives {
		s := start(t, program, dataDir, flags...)
		r.answered, r.enough = 0, make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		errs := make(chan error, clients)
		for i := range clients {
			c := &client{
				number: i, life: life, ids: idsInUse, random: rand.New(rand.NewPCG(seed, uint64(life*clients+i))),
				versions: map[string]int32{},
			}
			go func() { errs <- c.run(ctx, s, r) }()
		}
		var err error
		left := clients
		select {
		case <-r.enough:
		case err = <-errs:
			left--
		}
		s.kill()
		for range left {
			if failed := <-errs; err == nil && status.Code(failed) != codes.Unavailable {
				err = failed
			}
		}
		s.close()
		cancel()
		if err != nil {
			return nil, fmt.Errorf("life %d of the server: %w", life, err)
		}
		r.endLost()
	}
	return r.history, nil
}

// client makes one call after the other.
type client struct {
	number, life, calls int
	ids                 int // conversations in use
	random              *rand.Rand
	versions            map[string]int32 // as last seen, by conversation
}

// run makes calls until one fails, and returns the error. After a kill it is UNAVAILABLE.
func (c *client) run(ctx context.Context, s *server, r *recorder) error {
	for {
		request := c.next()
		o := operation{client: c.number, call: request, began: r.now()}
		var err error
		o.got, err = do(ctx, s, request)
		o.ended = r.now()
		if err == nil || request.kind == "append" && status.Code(err) == codes.Unavailable {
			r.add(o) // A lost read has no effect.
		}
		if err != nil {
			return err
		}
		if request.kind != "list" {
			c.versions[request.id] = o.got.version
		}
	}
}

// next chooses a call.
func (c *client) next() call {
	c.calls++
	chosen := call{kind: "append", id: fmt.Sprint("c", c.random.IntN(c.ids)), ifVersion: anyVersion}
	switch n := c.random.IntN(10); {
	case n < 3:
		chosen.kind = "read"
		return chosen
	case n < 4:
		return call{kind: "list", ifVersion: anyVersion}
	case n < 7:
		chosen.ifVersion = c.versions[chosen.id] // It is current unless another client has written since.
	}
	for i := range 1 + c.random.IntN(maxContents) {
		chosen.contents = append(chosen.contents, fmt.Sprintf("%d.%d.%d.%d", c.life, c.number, c.calls, i))
	}
	return chosen
}

// do makes a call. It returns an error if the call was lost or the answer is invalid.
func do(ctx context.Context, s parleyv1.ConversationServiceClient, c call) (answer, error) {
	switch c.kind {
	case "append":
		return appendTo(ctx, s, c)
	case "read":
		reply, err := s.ListMessages(ctx, &parleyv1.ListMessagesRequest{ConversationId: c.id, PageSize: 100, Ascending: true})
		if status.Code(err) == codes.NotFound {
			return answer{missing: true}, nil
		}
		got := answer{version: reply.GetConversation().GetVersion(), last: reply.GetConversation().GetLastSequence()}
		for _, m := range reply.GetMessages() {
			got.contents = append(got.contents, m.GetContent())
		}
		return got, err
	default:
		reply, err := s.ListConversations(ctx, &parleyv1.ListConversationsRequest{})
		got := answer{}
		for _, e := range reply.GetConversations() {
			got.listed = append(got.listed, row(e.GetConversation().GetId(), e.GetConversation().GetVersion()))
		}
		return got, err
	}
}

func appendTo(ctx context.Context, s parleyv1.ConversationServiceClient, c call) (answer, error) {
	r := &parleyv1.AppendMessagesRequest{ConversationId: c.id}
	if c.ifVersion >= 0 {
		r.IfVersion = &c.ifVersion
	}
	for _, content := range c.contents {
		r.Messages = append(r.Messages, &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: content})
	}
	reply, err := s.AppendMessages(ctx, r)
	switch status.Code(err) {
	case codes.OK:
		now := reply.GetConversation()
		got := answer{version: now.GetVersion(), last: now.GetLastSequence(), created: reply.GetCreated()}
		if got.created {
			created := now.GetCreateTime().AsTime().UnixNano()
			got.createTime = span{created, created}
		}
		return got, nil
	case codes.Aborted:
		version, mismatch := current(err)
		if mismatch != nil {
			return answer{}, mismatch
		}
		return answer{refused: true, version: version}, nil
	}
	return answer{lost: true}, err
}

// current returns the version in the details of an error, or an error if there is none.
func current(err error) (int32, error) {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetReason() == "VERSION_MISMATCH" {
			version, wrong := strconv.ParseInt(info.GetMetadata()["current_version"], 10, 32)
			return int32(version), errors.Join(wrong)
		}
	}
	return 0, fmt.Errorf("ABORTED without current_version: %w", err)
}
