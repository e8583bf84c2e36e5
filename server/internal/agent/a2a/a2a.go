// Package a2a is an agent that calls another agent over the A2A protocol, version 1.0: JSON-RPC, HTTP+JSON or gRPC,
// as the card of the other agent says. That agent is called the remote agent here.
//
// # Conversations
//
// The remote agent keeps its own history, in a context. A turn sends only the message to answer. The id of the
// context is in a record of the conversation, see [RecordKey]. The record is written with the answer. While a task of
// the remote agent waits for input, the record also has the id of the task, and the next turn continues that task.
//
// # Answers
//
// Text becomes text, data and files become structured data. If a task waits for input and its status has tool calls,
// these become the calls of the answer. A stream that breaks is resumed: the agent subscribes to the task, or reads it
// until it ends. If a turn ends before its task, the agent cancels the task.
//
// # Retries
//
// The message is sent once. Until the remote agent has named a task, only the caller can decide to send it again.
//
// Start at [New].
package a2a

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/log"
	"google.golang.org/grpc"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// cancelTimeout limits the time to cancel the task of a turn that has ended.
const cancelTimeout = 5 * time.Second

// Config describes where the remote agent is and how to reach it.
type Config struct {
	// URL is the address of the agent card, if its path ends in ".json". Otherwise the card is at
	// .well-known/agent-card.json below it. Required; http or https.
	URL string
	// Hosts are the names of other hosts, without a port, at which the card may place the agent. Without them, it must
	// be at the host of URL, so that the key and the headers are sent to no other host.
	Hosts []string
	// Key is sent as "Authorization: Bearer KEY" with each request, also for the card. It may be empty.
	Key string
	// Headers are sent with each request, also for the card, as metadata over gRPC. They may be secret: no error
	// contains a value of 4 bytes or more.
	Headers map[string]string
	// TLS secures connections to https addresses. If nil, the certificates of the system are trusted.
	TLS *tls.Config
}

var _ agent.Agent = (*Agent)(nil)

// Agent calls a remote agent. It is safe for concurrent use.
type Agent struct {
	card    *url.URL // address of the card
	hosts   []string // that the card may name, in lower case
	headers map[string]string
	secrets []string
	tls     *tls.Config
	http    *http.Client
	log     *slog.Logger // for the library; discards everything
	waits   waits

	cancels sync.WaitGroup // calls that cancel tasks

	// lock guards the fields below. It is a channel, so that a turn that waits for it can be cancelled.
	lock     chan struct{}
	remote   *remote // nil: the card has not been read
	conns    map[string]*grpc.ClientConn
	expires  time.Time // when the card is read again
	failed   error     // why the card could not be read the last time
	failedAt time.Time
	closed   bool
}

// remote is what the card says about the remote agent.
type remote struct {
	client  *a2aclient.Client
	streams bool // it supports SendStreamingMessage and SubscribeToTask
}

// New returns an agent for the configured remote agent. It does not connect yet. The error lists all faults of the
// configuration by the names of its keys, without secrets.
func New(config Config) (*Agent, error) {
	card, err := cardURL(config.URL)
	faults := []error{err}
	for _, host := range config.Hosts {
		if _, err := netip.ParseAddr(host); err != nil && (host == "" || strings.ContainsAny(host, "/:@ ")) {
			faults = append(faults, fmt.Errorf("hosts: %q is not the name of a host; leave out scheme, port and path", host))
		}
	}
	headers := make(map[string]string, len(config.Headers)+1)
	for _, name := range slices.Sorted(maps.Keys(config.Headers)) {
		lower := strings.ToLower(name)
		if _, twice := headers[lower]; twice {
			faults = append(faults, fmt.Errorf("headers: %q is configured twice; names are not case-sensitive", lower))
		}
		headers[lower] = config.Headers[name]
	}
	if config.Key != "" {
		if _, twice := headers["authorization"]; twice {
			faults = append(faults, errors.New("headers: authorization is the header of the key; remove it, or remove the key"))
		}
		headers["authorization"] = "Bearer " + config.Key
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	a := &Agent{
		card: card, headers: headers, secrets: slices.Collect(maps.Values(headers)), tls: config.TLS,
		waits: waits{250 * time.Millisecond, 4 * time.Second, agent.ProgressInterval},
		log:   slog.New(slog.DiscardHandler), lock: make(chan struct{}, 1), conns: make(map[string]*grpc.ClientConn),
	}
	for _, host := range append([]string{card.Hostname()}, config.Hosts...) {
		a.hosts = append(a.hosts, strings.ToLower(host))
	}
	a.http = a.newHTTPClient()
	return a, nil
}

// Respond sends the last messages of the request to the remote agent and passes on its answer. The context of the
// remote agent is continued if ctx has the record of the conversation, see [agent.WithRecord].
func (a *Agent) Respond(
	ctx context.Context, request *parleyv1.RespondRequest,
) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		t := &task{agent: a, request: request, earlier: readState(agent.Record(ctx), request)}
		t.answer = newAnswer(yield, t.earlier)
		defer t.cancelUnlessEnded(ctx)
		call, stop := context.WithCancel(log.AttachLogger(ctx, a.log))
		defer stop()
		err := t.run(call)
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		} else if err != nil && !errors.Is(err, errStopped) {
			err = a.failure(err)
		}
		if err != nil && !errors.Is(err, errStopped) {
			yield(nil, err)
		}
	}
}

// Close waits until the tasks of cancelled turns are cancelled, at most 5 s, and closes the connections.
func (a *Agent) Close() error {
	a.cancels.Wait()
	a.lock <- struct{}{}
	defer func() { <-a.lock }()
	a.closed = true
	var faults []error
	for _, conn := range a.conns {
		faults = append(faults, conn.Close())
	}
	clear(a.conns)
	a.http.CloseIdleConnections()
	return errors.Join(faults...)
}
