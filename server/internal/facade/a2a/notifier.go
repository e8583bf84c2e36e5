package a2a

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"google.golang.org/grpc/metadata"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	// maxNotifications is the maximum number of turns that are followed for notifications at the same time, one for each
	// configuration.
	maxNotifications = 2048
	// freeShare limits a tenant to a number of notifications that, multiplied by freeShare, is at most the number of free
	// places. A tenant that has none may have one as long as any place is free.
	freeShare = 7
	// maxTenantNotifications is the maximum number of a tenant, if other tenants have none. The more they have, the fewer
	// the tenant may have.
	maxTenantNotifications = maxNotifications / (freeShare + 1)
	// maxIdleConns is the number of connections to targets that are kept for further notifications.
	maxIdleConns = 256
	// maxAttempts is how often a notification is sent until its target accepts it. The time before the next attempt is
	// firstDelay and doubles: all attempts take about a minute.
	maxAttempts = 6
	firstDelay  = 2 * time.Second
	// attemptTime is the maximum time of an attempt.
	attemptTime = 10 * time.Second
	// maxReplyBytes is how much of a reply is read so that the connection can be used again.
	maxReplyBytes = 4 << 10
)

// Notifier sends the push notifications of tasks: each change of the state of a task, and the whole task when it has
// ended or waits for input. It follows a task as a client, with the credentials of the caller who asked for them.
// Create it with [NewNotifier].
type Notifier struct {
	conversations parleyv1.ConversationServiceClient
	records       parleyv1.RecordServiceClient
	client        *http.Client
	private       bool
	log           *slog.Logger
	delay         time.Duration // before the second attempt

	reserved reservations
	ctx      context.Context //nolint:containedctx // It ends all notifications.
	cancel   context.CancelFunc
	running  sync.WaitGroup
}

// NotifierOptions are what a Notifier needs. Options are those of the services whose tasks it follows.
type NotifierOptions struct {
	Options

	// Private allows targets with loopback, private and link-local addresses, and targets without TLS.
	Private bool
	Log     *slog.Logger
}

// NewNotifier returns a Notifier. Close ends it; the end of ctx does not.
func NewNotifier(ctx context.Context, o NotifierOptions) *Notifier {
	n := &Notifier{
		conversations: parleyv1.NewConversationServiceClient(o.Conn), records: parleyv1.NewRecordServiceClient(o.Conn),
		private: o.Private, log: o.Log, delay: firstDelay, reserved: reservations{tenants: make(map[string]int)},
	}
	n.client = &http.Client{
		Transport: &http.Transport{
			DialContext: dialer(o.Private).DialContext, TLSHandshakeTimeout: attemptTime, IdleConnTimeout: time.Minute,
			MaxIdleConns: maxIdleConns, MaxIdleConnsPerHost: 2, MaxResponseHeaderBytes: 16 << 10,
		},
		// A redirect could lead to an address that the check of the target does not know.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       attemptTime,
	}
	n.ctx, n.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return n
}

// Close waits for the notifications that are being sent. When ctx ends, it ends them. No task may be followed after it
// was called.
func (n *Notifier) Close(ctx context.Context) {
	stop := context.AfterFunc(ctx, n.cancel)
	defer stop()
	n.running.Wait()
	n.cancel()
	n.client.CloseIdleConnections()
}

// reservations are the turns that are followed or will be, by tenant.
type reservations struct {
	mu      sync.Mutex
	used    int
	tenants map[string]int // Tenants with none are absent.
}

// add adds count to a tenant. It returns false, and adds nothing, if the tenant would have more than its share.
func (r *reservations) add(tenant string, count int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if count > 0 {
		total, free := r.tenants[tenant]+count, maxNotifications-r.used-count
		if free < 0 || total > 1 && total*freeShare > free {
			return false
		}
	}
	r.used += count
	if r.tenants[tenant] += count; r.tenants[tenant] == 0 {
		delete(r.tenants, tenant)
	}
	return true
}

// reserve reserves the following of count configurations for a tenant. release gives back one of them.
func (n *Notifier) reserve(tenant string, count int) (release func(), ok bool) {
	return func() { n.reserved.add(tenant, -1) }, n.reserved.add(tenant, count)
}

// follow sends the notifications of a turn of a task for a configuration, until the turn has ended. It releases the
// reservation.
func (n *Notifier) follow(ctx context.Context, release func(), task string, turn *parleyv1.Turn, config string) {
	sent, _ := metadata.FromOutgoingContext(ctx)
	n.running.Go(func() {
		defer release()
		f := &following{
			Notifier: n, task: task, turn: turn, config: config,
			tasks: &tasks{api: n.conversations, records: n.records},
		}
		if err := f.run(metadata.NewOutgoingContext(n.ctx, sent)); err != nil && n.ctx.Err() == nil {
			n.log.Warn("push notification not sent", "conversation_id", turn.GetConversationId(), "task", task, "config", config,
				"error", err)
		}
	})
}

// keepQueued reads a turn in the queue of its conversation until it starts or ends: the API removes a queued turn that
// no caller reads. It returns when the turn is read.
func (n *Notifier) keepQueued(ctx context.Context, conversation, turn string) error {
	sent, _ := metadata.FromOutgoingContext(ctx)
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(n.ctx, sent))
	resumed, err := n.conversations.ResumeTurn(ctx, &parleyv1.ResumeTurnRequest{
		ConversationId: conversation, TurnId: turn,
	})
	var reply *parleyv1.ResumeTurnResponse
	if err == nil {
		reply, err = resumed.Recv()
	}
	if err != nil {
		cancel()
		return err
	}
	n.running.Go(func() {
		defer cancel()
		for err == nil && reply.GetEvent().GetStarted() == nil && reply.GetEvent().GetFinished() == nil {
			reply, err = resumed.Recv()
		}
	})
	return nil
}

// following is a turn that is followed for a configuration.
type following struct {
	*Notifier

	task, config string
	turn         *parleyv1.Turn
	tasks        *tasks
}

// run follows the turn to its end.
func (f *following) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // The stream ends if a target does not accept notifications.
	resumed, err := f.conversations.ResumeTurn(ctx, &parleyv1.ResumeTurnRequest{
		ConversationId: f.turn.GetConversationId(), TurnId: f.turn.GetId(),
	})
	if err != nil {
		return err
	}
	state := stateOf(f.turn)
	for {
		reply, err := resumed.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		event := reply.GetEvent()
		switch {
		case event.GetFinished() != nil:
			return f.notify(ctx, "ended", func() (a2a.Event, error) { return f.tasks.after(ctx, f.task, f.turn.GetId()) })
		case event.GetStarted() != nil && state == a2a.TaskStateSubmitted:
			state = a2a.TaskStateWorking
			now := time.Now()
			err = f.notify(ctx, "started", func() (a2a.Event, error) {
				return &a2a.TaskStatusUpdateEvent{
					TaskID: a2a.TaskID(f.task), ContextID: f.turn.GetConversationId(),
					Status: a2a.TaskStatus{State: state, Timestamp: &now},
				}, nil
			})
		}
		if err != nil {
			return err
		}
	}
}

// notify sends an event until the target accepts it. change is what has happened to the turn. A turn may be followed
// twice, if its message is repeated; then both notifications of a change have the same id. The event is read for each
// attempt, so that a task is not in memory while its target does not answer.
func (f *following) notify(ctx context.Context, change string, event func() (a2a.Event, error)) error {
	id := fmt.Sprintf("%s.%s.%s", f.turn.GetId(), f.config, change)
	delay := f.delay
	for attempt := 1; ; attempt++ {
		config, err := f.current(ctx)
		if err != nil || config == nil { // It was deleted.
			return err
		}
		sent, err := event()
		if err != nil {
			return err
		}
		body, err := json.Marshal(a2a.StreamResponse{Event: sent})
		if err != nil {
			return err
		}
		again, err := f.attempt(ctx, config, id, body)
		if err == nil || !again || attempt == maxAttempts {
			return err
		}
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		delay *= 2
	}
}

// current returns the configuration as it is stored, or nil if it was deleted.
func (f *following) current(ctx context.Context) (*a2a.PushConfig, error) {
	reply, err := f.records.GetRecords(ctx, &parleyv1.GetRecordsRequest{
		ConversationId: f.turn.GetConversationId(), Keys: []string{pushPrefix(f.task) + f.config},
	})
	if err != nil || len(reply.GetRecords()) == 0 {
		return nil, err
	}
	config := new(a2a.PushConfig)
	if err := json.Unmarshal(reply.GetRecords()[0].GetValue(), config); err != nil {
		return nil, err
	}
	return config, f.check(config)
}

// attempt sends a notification once. again reports whether another attempt may succeed.
func (f *following) attempt(ctx context.Context, c *a2a.PushConfig, id string, body []byte) (again bool, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	r.Header.Set("Content-Type", mediaJSON)
	if c.Auth != nil && c.Auth.Credentials != "" {
		r.Header.Set("Authorization", c.Auth.Scheme+" "+c.Auth.Credentials)
	}
	sign(r.Header, c.Token, id, time.Now(), body)
	reply, err := f.client.Do(r)
	if err != nil {
		return !errors.Is(err, errPrivate), err
	}
	_, _ = io.CopyN(io.Discard, reply.Body, maxReplyBytes)
	_ = reply.Body.Close()
	switch code := reply.StatusCode; {
	case code >= 200 && code < 300:
		return false, nil
	case code >= 500, code == http.StatusTooManyRequests, code == http.StatusRequestTimeout, code == http.StatusTooEarly:
		return true, fmt.Errorf("the target answers %s", reply.Status)
	}
	return false, fmt.Errorf("the target answers %s", reply.Status)
}

// sign sets the headers of a notification by which its receiver knows that it is genuine, and whether it is new: the
// token, and those of Standard Webhooks 1.0 with the token as the key.
func sign(header http.Header, token, id string, at time.Time, body []byte) {
	header.Set("Webhook-Id", id)
	header.Set("Webhook-Timestamp", strconv.FormatInt(at.Unix(), 10))
	if token == "" {
		return
	}
	header.Set("X-A2A-Notification-Token", token)
	mac := hmac.New(sha256.New, []byte(token))
	fmt.Fprintf(mac, "%s.%d.", id, at.Unix())
	mac.Write(body)
	header.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
}
