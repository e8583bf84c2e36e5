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

// The shape of a history. Concurrent calls are what makes a history hard to check, and worth it.
const (
	clients     = 6
	lives       = 4   // of the server: it is killed between two
	callsALife  = 120 // that are answered ahead of the kill
	idsInUse    = maxConversations + 2
	mostWords   = 3
	anyVersion  = -1
	checkWithin = time.Minute
)

// recorder notes what the clients of a server do.
type recorder struct {
	began    time.Time
	mu       sync.Mutex
	history  []operation
	lost     []operation   // in this life of the server
	answered int           // in this life
	enough   chan struct{} // closed when callsALife are answered
}

func (r *recorder) now() int64 { return int64(time.Since(r.began)) }

// note notes a call that has ended.
func (r *recorder) note(o operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o.got.lost {
		r.lost = append(r.lost, o)
		return
	}
	r.history = append(r.history, o)
	r.answered++
	if r.answered == callsALife {
		close(r.enough)
	}
}

// died ends the calls that were lost when the server has gone: what has not happened by then
// never will.
func (r *recorder) died() {
	for _, o := range r.lost {
		o.ended = r.now()
		r.history = append(r.history, o)
	}
	r.lost = nil
}

// record has clients work on a server that is killed and started again. An error is an answer
// that none of them may get.
func record(t *testing.T, program string, seed uint64, flags ...string) ([]operation, error) {
	t.Helper()
	r, dataDir := &recorder{began: time.Now()}, t.TempDir()
	for life := range lives {
		s := start(t, program, dataDir, flags...)
		r.answered, r.enough = 0, make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		errs := make(chan error, clients)
		for i := range clients {
			c := &client{number: i, life: life, random: rand.New(rand.NewPCG(seed, uint64(life*clients+i))), versions: map[string]int32{}}
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
		s.leave()
		cancel()
		if err != nil {
			return nil, fmt.Errorf("life %d of the server: %w", life, err)
		}
		r.died()
	}
	return r.history, nil
}

// client does one call after the other.
type client struct {
	number, life, calls int
	random              *rand.Rand
	versions            map[string]int32 // as last seen, by conversation
}

// run calls until the server is gone, and returns the error that says so, or another one.
func (c *client) run(ctx context.Context, s *server, r *recorder) error {
	for {
		asked := c.next()
		o := operation{client: c.number, asked: asked, began: r.now()}
		var err error
		o.got, err = ask(ctx, s, asked)
		o.ended = r.now()
		if err == nil || asked.kind == "append" && status.Code(err) == codes.Unavailable {
			r.note(o) // A read that was lost says nothing.
		}
		if err != nil {
			return err
		}
		if asked.kind != "list" {
			c.versions[asked.id] = o.got.version
		}
	}
}

// next chooses a call.
func (c *client) next() call {
	c.calls++
	asked := call{kind: "append", id: fmt.Sprint("c", c.random.IntN(idsInUse)), ifVersion: anyVersion}
	switch n := c.random.IntN(10); {
	case n < 3:
		asked.kind = "read"
		return asked
	case n < 4:
		return call{kind: "list", ifVersion: anyVersion}
	case n < 7:
		asked.ifVersion = c.versions[asked.id] // Right, if nobody else was faster.
	}
	for i := range 1 + c.random.IntN(mostWords) {
		asked.words = append(asked.words, fmt.Sprintf("%d.%d.%d.%d", c.life, c.number, c.calls, i))
	}
	return asked
}

// ask makes a call. An error means that it was lost, or that something is wrong.
func ask(ctx context.Context, s *server, c call) (answer, error) {
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
			got.words = append(got.words, m.GetContent())
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

func appendTo(ctx context.Context, s *server, c call) (answer, error) {
	r := &parleyv1.AppendMessagesRequest{ConversationId: c.id}
	if c.ifVersion >= 0 {
		r.IfVersion = &c.ifVersion
	}
	for _, words := range c.words {
		r.Messages = append(r.Messages, &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: words})
	}
	reply, err := s.AppendMessages(ctx, r)
	switch status.Code(err) {
	case codes.OK:
		now := reply.GetConversation()
		return answer{version: now.GetVersion(), last: now.GetLastSequence(), created: reply.GetCreated()}, nil
	case codes.Aborted:
		version, mismatch := current(err)
		if mismatch != nil {
			return answer{}, mismatch
		}
		return answer{refused: true, version: version}, nil
	}
	return answer{lost: true}, err
}

// current is the version that a refusal tells of; an error when it does not.
func current(err error) (int32, error) {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetReason() == "VERSION_MISMATCH" {
			version, wrong := strconv.ParseInt(info.GetMetadata()["current_version"], 10, 32)
			return int32(version), errors.Join(wrong)
		}
	}
	return 0, fmt.Errorf("refused without a version: %w", err)
}
