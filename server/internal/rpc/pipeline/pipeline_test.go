package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// kind is what the callee does with a request.
type kind int

const (
	commits      kind = iota // It queues the request, which has its answer after the next commit.
	commitsTwice             // The same, but it calls queued twice.
	refuses                  // It answers without queuing.
	applies                  // It applies the request without queuing.
	kinds
)

// request is a request of a test, and its reply.
type request struct {
	number int
	key    string
	kind   kind
}

// callee answers requests, and its fields and methods are both ends of a stream.
type callee struct {
	requests []*request
	end      error // of Receive after the requests; if nil, Receive then blocks until the end of the test
	sendErr  error // of the second Send

	mu       sync.Mutex
	received int
	waiting  []chan struct{}  // of requests that are queued
	applied  map[string][]int // numbers by key, in the order in which they were queued or applied
	sent     []int
	dropped  []int
	most     int // under way at a time
	release  chan struct{}
}

func newCallee(requests []*request) *callee {
	return &callee{requests: requests, end: io.EOF, applied: map[string][]int{}, release: make(chan struct{})}
}

func (c *callee) stream() Stream[*request, int] {
	return Stream[*request, int]{Receive: c.receive, Answer: c.answer, Send: c.send, Drop: func(r *request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.dropped = append(c.dropped, r.number)
	}}
}

func (c *callee) receive() (*request, string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.received == len(c.requests) {
		if c.end == nil {
			c.mu.Unlock()
			<-c.release
			c.mu.Lock()
			return &request{number: c.received}, "", nil
		}
		return nil, "", c.end
	}
	r := c.requests[c.received]
	c.received++
	c.most = max(c.most, c.received-len(c.sent))
	return r, r.key, nil
}

func (c *callee) answer(ctx context.Context, r *request, queued func()) int {
	if r.kind == refuses {
		return -r.number
	}
	committed := make(chan struct{})
	c.mu.Lock()
	c.applied[r.key] = append(c.applied[r.key], r.number)
	if r.kind != applies {
		c.waiting = append(c.waiting, committed)
	}
	c.mu.Unlock()
	if r.kind == applies {
		return r.number
	}
	queued()
	if r.kind == commitsTwice {
		queued()
	}
	select {
	case <-committed:
		return r.number
	case <-ctx.Done():
		return -r.number
	}
}

func (c *callee) send(reply int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = append(c.sent, reply)
	if len(c.sent) == 2 {
		return c.sendErr
	}
	return nil
}

// commit answers the first n of the requests that are queued, in the order of random. It returns their number.
func (c *callee) commit(random *rand.Rand, n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n = min(n, len(c.waiting))
	for _, i := range random.Perm(n) {
		close(c.waiting[i])
	}
	c.waiting = c.waiting[n:]
	return n
}

// TestOrder runs streams of random requests. The requests with a key are queued in their order and share commits, and the
// replies are sent in the order of all requests.
func TestOrder(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 1))
		keys := 1 + random.IntN(4)
		n := 1 + random.IntN(200)
		if seed == 0 {
			keys, n = 1, MaxUnderWay+100
		}
		var requests []*request
		var wantSent []int
		queued, wantApplied := 0, map[string][]int{}
		for i := range n {
			r := &request{number: i + 1, key: fmt.Sprint(random.IntN(keys)), kind: kind(random.IntN(int(kinds)))}
			requests = append(requests, r)
			if r.kind == refuses {
				wantSent = append(wantSent, -r.number)
				continue
			}
			wantSent, wantApplied[r.key] = append(wantSent, r.number), append(wantApplied[r.key], r.number)
			if r.kind != applies {
				queued++
			}
		}
		c := newCallee(requests)
		synctest.Test(t, func(t *testing.T) {
			result := make(chan error, 1)
			go func() { result <- Run(t.Context(), c.stream(), nil) }()
			synctest.Wait()
			first := c.commit(random, n)
			if n <= MaxUnderWay && first != queued {
				t.Errorf("seed %d: %d of %d requests share the first commit", seed, first, queued)
			}
			for rest := first; rest > 0; rest = c.commit(random, n) {
				synctest.Wait()
			}
			if err := <-result; err != nil {
				t.Errorf("seed %d: Run = %v", seed, err)
			}
		})
		if !slices.Equal(c.sent, wantSent) {
			t.Errorf("seed %d: replies = %v, want %v", seed, c.sent, wantSent)
		}
		for key, want := range wantApplied {
			if !slices.Equal(c.applied[key], want) {
				t.Errorf("seed %d: order of key %s = %v, want %v", seed, key, c.applied[key], want)
			}
		}
		if c.most > MaxUnderWay {
			t.Errorf("seed %d: %d requests under way, want at most %d", seed, c.most, MaxUnderWay)
		}
	}
}

// TestEnds ends streams while requests are queued.
func TestEnds(t *testing.T) {
	broken := errors.New("broken")
	for _, test := range []struct {
		name    string
		change  func(*callee)
		end     func(cancel context.CancelCauseFunc, stop func())
		want    error
		sent    []int
		dropped []int
	}{
		{"no more requests", func(*callee) {}, nil, nil, []int{1, 2, 3}, nil},
		{"a request cannot be received", func(c *callee) { c.end = broken }, nil, broken, []int{1, 2, 3}, nil},
		{"a reply cannot be sent", func(c *callee) { c.end, c.sendErr = nil, broken }, nil, broken, []int{1, 2}, []int{3}},
		{
			"a stop",
			func(c *callee) { c.end = nil },
			func(_ context.CancelCauseFunc, stop func()) { stop() },
			ErrStopped,
			[]int{1, 2, 3},
			[]int{3},
		},
		{
			"the context ends",
			func(c *callee) { c.end = nil },
			func(cancel context.CancelCauseFunc, _ func()) { cancel(broken) },
			broken, nil,
			[]int{3},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCallee([]*request{{number: 1, key: "a"}, {number: 2, key: "a"}, {number: 3, key: "a"}})
				test.change(c)
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				stopping := make(chan struct{})
				result := make(chan error, 1)
				go func() { result <- Run(ctx, c.stream(), stopping) }()
				synctest.Wait()
				if test.end != nil {
					test.end(cancel, func() { close(stopping) })
				}
				synctest.Wait()
				answered := len(c.requests)
				if c.sendErr != nil {
					answered = 2 // The other one ends with its context.
				}
				c.commit(rand.New(rand.NewPCG(1, 1)), answered)
				if err := <-result; !errors.Is(err, test.want) || err != nil && test.want == nil {
					t.Errorf("Run = %v, want %v", err, test.want)
				}
				close(c.release)
				synctest.Wait()
				if !slices.Equal(c.sent, test.sent) || !slices.Equal(c.dropped, test.dropped) {
					t.Errorf("sent %v and dropped %v, want %v and %v", c.sent, c.dropped, test.sent, test.dropped)
				}
			})
		})
	}
}

// TestAnsweredRequestsAreNotRetained answers requests of which the replies wait for that of the first one.
func TestAnsweredRequestsAreNotRetained(t *testing.T) {
	const answered = 100
	first, freed := make(chan struct{}), make(chan struct{}, answered)
	received := 0
	result := make(chan error, 1)
	go func() {
		result <- Run(t.Context(), Stream[*request, int]{
			Receive: func() (*request, string, error) {
				if received > answered {
					return nil, "", io.EOF
				}
				r := &request{number: received}
				received++
				if r.number > 0 {
					runtime.AddCleanup(r, func(struct{}) { freed <- struct{}{} }, struct{}{})
				}
				return r, fmt.Sprint(r.number % 10), nil
			},
			Answer: func(_ context.Context, r *request, queued func()) int {
				queued()
				if r.number == 0 {
					<-first
				}
				return r.number
			},
			Send: func(int) error { return nil },
			Drop: func(*request) {},
		}, nil)
	}()
	deadline := time.After(10 * time.Second)
	for n := range answered - maxIdleWorkers { // The stack of an idle worker may retain its last request.
		for collected := false; !collected; {
			runtime.GC()
			select {
			case <-freed:
				collected = true
			case <-deadline:
				t.Fatalf("%d of %d answered requests were collected before the first reply", n, answered)
			case <-time.After(time.Millisecond):
			}
		}
	}
	close(first)
	if err := <-result; err != nil {
		t.Errorf("Run = %v, want no error", err)
	}
}

// TestIdleWorkersEnd counts the goroutines of a stream while it is idle, between bursts of requests.
func TestIdleWorkersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const burst = 2 * maxIdleWorkers
		requests, answered := make(chan int), 0
		result := make(chan error, 1)
		before := runtime.NumGoroutine()
		go func() {
			result <- Run(t.Context(), Stream[int, int]{
				Receive: func() (int, string, error) {
					r, open := <-requests
					if !open {
						return 0, "", io.EOF
					}
					return r, fmt.Sprint(r), nil
				},
				Answer: func(_ context.Context, r int, _ func()) int {
					<-time.After(time.Millisecond)
					return r
				},
				Send: func(int) error { answered++; return nil },
				Drop: func(int) {},
			}, nil)
		}()
		for range 2 {
			for i := range burst {
				requests <- i
			}
			<-time.After(2 * time.Millisecond)
			if n := runtime.NumGoroutine() - before; n < maxIdleWorkers {
				t.Errorf("%d goroutines after a burst, want %d idle workers", n, maxIdleWorkers)
			}
			<-time.After(2 * idleTime)
			if n := runtime.NumGoroutine() - before; n > 4 {
				t.Errorf("%d goroutines of an idle stream, want no workers", n)
			}
		}
		close(requests)
		if err := <-result; err != nil || answered != 2*burst {
			t.Errorf("Run = %v after %d replies, want no error after %d", err, answered, 2*burst)
		}
	})
}
