// Package pipeline answers the requests of a stream, many at a time, and sends the replies in the order of the
// requests.
//
// Three kinds of goroutines work on a stream. One receives requests, workers answer them, and the goroutine of the
// caller sends the replies. Requests with the same key start in the order in which they were received: each starts
// when the one before has called queued, see [Stream], or has been answered.
//
// Start at [Run].
package pipeline

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

// MaxUnderWay is the maximum number of requests of a stream that were received and have no reply yet.
const MaxUnderWay = 1024

// maxIdleWorkers is the maximum number of workers of a stream that wait for a request. They are kept because a new
// worker must grow its stack with its first request.
const maxIdleWorkers = 64

// idleTime is the minimum time without a request after which the idle workers of a stream end. Each takes 5 KiB.
const idleTime = 5 * time.Second

// Stream says how to receive and answer the requests of a stream.
type Stream[Q, R any] struct {
	// Receive receives the next request and returns its key. Only one goroutine calls it. A call may still run when Run
	// has returned; it must then return soon. The error io.EOF means that there is no further request.
	Receive func() (request Q, key string, err error)
	// Answer answers a request. Many goroutines call it. Its context ends when the stream ends early. It may call queued
	// before it returns, once or more often: then the next request with the same key starts.
	Answer func(ctx context.Context, request Q, queued func()) R
	// Send sends a reply. The goroutine that calls Run calls it. After an error it is not called again.
	Send func(R) error
	// Drop is called for a request that was received too late to be answered.
	Drop func(Q)
}

// ErrStopped is returned if the channel stopping was closed.
var ErrStopped = errors.New("the stream was stopped")

// Run answers requests until Receive or Send returns an error, ctx ends, or stopping is closed. It returns that error,
// or nil after io.EOF, the cause of ctx, or ErrStopped. Before it returns, it answers the requests that are under way
// and sends their replies, unless a reply cannot be sent. No call of Answer or Send is running when Run returns.
func Run[Q, R any](ctx context.Context, s Stream[Q, R], stopping <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := &pipeline[Q, R]{
		Stream: s, ctx: ctx, cancel: cancel,
		underWay: make(chan struct{}, MaxUnderWay), slots: make(chan *slot[Q, R], MaxUnderWay),
		work: make(chan *slot[Q, R], maxIdleWorkers), ended: make(chan struct{}), newest: make(map[string]*slot[Q, R]),
	}
	received := make(chan error, 1)
	go func() { received <- p.receiveAll() }()
	err := p.sendUntilEnd(received, stopping)
	p.close()
	for len(p.slots) > 0 {
		p.send(<-p.slots)
	}
	close(p.work)
	p.workers.Wait()
	switch {
	case p.sendErr != nil:
		return p.sendErr
	case errors.Is(err, io.EOF):
		return nil
	}
	return err
}

// slot is the place of a request and its reply in the order of the stream.
type slot[Q, R any] struct {
	request Q // the zero value once a worker answers it
	key     string
	reply   R
	done    chan struct{} // closed when reply is set

	// pipeline.mu guards these fields.
	queued bool        // the next request with the same key may start
	next   *slot[Q, R] // that request, if it was received before queued was set
}

type pipeline[Q, R any] struct {
	Stream[Q, R]

	ctx      context.Context //nolint:containedctx // of the calls of Answer
	cancel   context.CancelFunc
	underWay chan struct{}    // contains one for each request that is under way, or is being received
	slots    chan *slot[Q, R] // of the requests under way, in order; never full, because of underWay
	work     chan *slot[Q, R] // for idle workers; has at most one for each of them
	workers  sync.WaitGroup
	ended    chan struct{} // closed by close
	sendErr  error         // the goroutine that calls Run owns it

	mu     sync.Mutex
	closed bool                   // no further request is accepted
	used   bool                   // a worker has started since the last call of endIdle
	idle   int                    // workers that wait for work, or are about to, and have none
	newest map[string]*slot[Q, R] // of each key, unless it is queued
}

// receiveAll receives requests until there is an error or the pipeline is closed.
func (p *pipeline[Q, R]) receiveAll() error {
	for {
		select {
		case p.underWay <- struct{}{}:
		case <-p.ended:
			return nil
		}
		request, key, err := p.Receive()
		if err != nil {
			return err
		}
		if !p.accept(&slot[Q, R]{request: request, key: key, done: make(chan struct{})}) {
			p.Drop(request)
			return nil
		}
	}
}

// accept gives a request its place and makes a worker answer it. It returns false if the pipeline is closed.
func (p *pipeline[Q, R]) accept(s *slot[Q, R]) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.slots <- s
	before := p.newest[s.key]
	p.newest[s.key] = s
	if before != nil {
		before.next = s
	} else {
		p.start(s)
	}
	return true
}

// start makes a worker answer a request. The caller must hold mu.
func (p *pipeline[Q, R]) start(s *slot[Q, R]) {
	p.used = true
	if p.idle == 0 {
		p.workers.Go(func() { p.runWorker(s) })
		return
	}
	p.idle--
	p.work <- s
}

// runWorker answers a request, then others.
func (p *pipeline[Q, R]) runWorker(s *slot[Q, R]) {
	for s != nil {
		request := s.request
		s.request = *new(Q) // The slot waits for the replies before its own, and must not retain the request.
		s.reply = p.Answer(p.ctx, request, func() { p.startNext(s) })
		next, stays := p.finish(s)
		close(s.done)
		if stays {
			next = <-p.work // nil at the end
		}
		s = next
	}
}

// startNext starts the next request with the key of s, which is queued.
func (p *pipeline[Q, R]) startNext(s *slot[Q, R]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if next := p.setQueued(s); next != nil {
		p.start(next)
	}
}

// setQueued records that the next request with the key of s may start. It returns that request if it was received and
// has not started. The caller must hold mu.
func (p *pipeline[Q, R]) setQueued(s *slot[Q, R]) (next *slot[Q, R]) {
	if s.queued {
		return nil
	}
	s.queued = true
	if s.next == nil {
		delete(p.newest, s.key)
	}
	return s.next
}

// finish returns what the worker that has answered s answers next: the next request with the same key, if that has not
// started. Otherwise, it reports whether the worker must wait for another request.
func (p *pipeline[Q, R]) finish(s *slot[Q, R]) (next *slot[Q, R], stays bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if next := p.setQueued(s); next != nil {
		return next, false
	}
	if p.idle >= maxIdleWorkers {
		return nil, false
	}
	p.idle++
	return nil, true
}

// endIdle ends the idle workers if no worker has started since the last call.
func (p *pipeline[Q, R]) endIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ; p.idle > 0 && !p.used; p.idle-- {
		p.work <- nil
	}
	p.used = false
}

// sendUntilEnd sends the replies in order until the stream ends, and returns why it has ended.
func (p *pipeline[Q, R]) sendUntilEnd(received <-chan error, stopping <-chan struct{}) error {
	idle := time.NewTicker(idleTime)
	defer idle.Stop()
	for p.sendErr == nil {
		select {
		case next := <-p.slots:
			p.send(next)
		case err := <-received:
			return err
		case <-stopping:
			return ErrStopped
		case <-idle.C:
			p.endIdle()
		case <-p.ctx.Done():
			p.sendErr = context.Cause(p.ctx)
		}
	}
	return p.sendErr
}

// send waits for the reply to a request and sends it. If the stream is broken, it only waits.
func (p *pipeline[Q, R]) send(s *slot[Q, R]) {
	<-s.done
	if p.sendErr == nil {
		if p.sendErr = context.Cause(p.ctx); p.sendErr == nil {
			p.sendErr = p.Send(s.reply)
		}
		if p.sendErr != nil {
			p.cancel()
		}
	}
	<-p.underWay
}

// close makes the pipeline accept no further request.
func (p *pipeline[Q, R]) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	close(p.ended)
}
