package faulttest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// outcome is what a server must do when a system call fails.
type outcome string

const (
	failStops outcome = "fail-stop" // ends with 74
	degrades  outcome = "full"      // rejects writes that need space, and continues
	either    outcome = "either"    // fail-stop or full
	continues outcome = "continues" // as without the fault
)

// fault is a way in which the n-th system call of a thread fails.
type fault struct {
	name string
	// inject is an argument of strace, with %[1]d for n and %[2]d for the last of someCalls calls.
	inject string
	want   outcome
	grows  bool // The call grows the file. There are few of those, and none while the journal takes the load.
	// segments means that only calls on segments of the journal fail.
	segments bool
}

// someCalls is how many calls in a row a fault with a range affects.
const someCalls = 4

func faults() []fault {
	return []fault{
		{name: "sync fails", inject: "fdatasync:error=EIO:when=%[1]d", want: failStops},
		{name: "write fails", inject: "pwrite64:error=EIO:when=%[1]d", want: failStops},
		{name: "no space to write", inject: "pwrite64:error=ENOSPC:when=%[1]d..%[2]d", want: degrades},
		// A file system with delayed allocation reports the full disk at the sync.
		{name: "no space at a sync", inject: "fdatasync:error=ENOSPC:when=%[1]d", want: either},
		{name: "slow sync", inject: "fdatasync:delay_enter=50000:when=%[1]d..%[2]d", want: continues},
		{name: "slow write", inject: "pwrite64:delay_enter=50000:when=%[1]d..%[2]d", want: continues},
		{name: "no space to grow", inject: "ftruncate:error=ENOSPC:when=%[1]d", want: degrades, grows: true},
		{name: "growing fails", inject: "ftruncate:error=EIO:when=%[1]d", want: failStops, grows: true},
		// A range, because the first fsync of a thread may be that of the interaction log's checkpoint.
		{name: "sync of the size fails", inject: "fsync:error=EIO:when=%[1]d..%[2]d", want: failStops, grows: true},
		{name: "sync of a segment fails", inject: "fdatasync:error=EIO:when=%[1]d", want: failStops, segments: true},
		{name: "write to a segment fails", inject: "pwrite64:error=EIO:when=%[1]d", want: failStops, segments: true},
		// A segment has its space from the beginning, so this is not a full disk, but a broken file system.
		{name: "no space in a segment", inject: "pwrite64:error=ENOSPC:when=%[1]d", want: failStops, segments: true},
	}
}

// TestFailingCalls checks that a failing system call loses no acknowledged write and causes no wrong
// data. The server must stop, except on a full disk.
func TestFailingCalls(t *testing.T) {
	for i, f := range faults() {
		t.Run(f.name, func(t *testing.T) {
			calls := rounds(6, 60)
			if f.grows {
				calls = rounds(1, 2)
			} else if f.segments {
				calls = rounds(3, 20)
			}
			b := newFailingServer(t, f, uint64(10+i))
			for n := range calls {
				if !f.grows && calls < 60 {
					n *= 7 // A short round still covers later calls.
				}
				if err := b.round(t, n+1); err != nil {
					t.Fatalf("call %d: %v", n+1, err)
				}
			}
			if b.calls == 0 {
				t.Error("calls that failed = 0, want some")
			}
		})
	}
}

// TestFailingCallsUnnoticed is the control. Writes that only pretend to succeed damage the file or lose
// data, and a server whose writes all fail does not continue. The checks detect both.
func TestFailingCallsUnnoticed(t *testing.T) {
	for i, f := range []fault{
		{name: "lying writes", inject: "pwrite64:retval=4096:when=%[1]d..%[2]d", want: either},
		{name: "no write succeeds", inject: "pwrite64:error=EIO:when=%[1]d+", want: continues},
	} {
		t.Run(f.name, func(t *testing.T) {
			const most = 12 // A single round may change nothing that is read later.
			total, found := 0, 0
			for n := 0; n < most && found < 2; n++ {
				total++
				if err := newFailingServer(t, f, uint64(50+i)).round(t, 10*n+10); err != nil {
					found++
					t.Logf("call %d, detected as expected: %.300v", 10*n+10, err)
				}
			}
			counts.add(t, "control: rounds", total)
			counts.add(t, "control: rounds in which the fault was detected", found)
			if found == 0 {
				t.Error("the fault was not detected; the test of failing calls proves nothing")
			}
		})
	}
}

// failingServer is a data directory with its clients, whose server's system calls fail in one way.
type failingServer struct {
	fault
	seed    uint64
	dataDir string
	clients []*client
	calls   int     // number of failed calls
	wanted  outcome // in this round
}

func newFailingServer(t *testing.T, f fault, seed uint64) *failingServer {
	t.Helper()
	b := &failingServer{fault: f, seed: seed}
	b.reset(t)
	return b
}

// reset creates a small, empty store in a new data directory.
func (b *failingServer) reset(t *testing.T) {
	t.Helper()
	const working = 4
	b.dataDir, b.clients = t.TempDir(), newClients(working, b.seed)
	s := start(t, b.dataDir, smallJournal)
	s.stop(t)
}

// leaveSegments leaves the store with segments, as a killed server does: a stop removes them.
func (b *failingServer) leaveSegments(t *testing.T) {
	t.Helper()
	s := start(t, b.dataDir, smallJournal)
	for _, c := range b.clients {
		for range 4 {
			if err := c.do(t.Context(), s, c.next()); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.kill()
}

// begin begins the n-th round and returns the flags of its server. In every other round there is no journal.
func (b *failingServer) begin(n int) (flags []string) {
	journal := smallJournal
	b.wanted = b.want
	if b.grows || n%2 == 0 && !b.segments {
		journal = noJournal
	} else if b.want == degrades {
		b.wanted = either // A segment has its space from the beginning: what fails there is not a full disk.
	}
	return []string{"--interaction-log=false", journal} // Without the interaction log, the calls are those of the store.
}

// faultsOf returns the arguments of strace for the n-th round.
func (b *failingServer) faultsOf(t *testing.T, n int) []string {
	t.Helper()
	all := []string{fmt.Sprintf(b.inject, n, n+someCalls-1)}
	if !b.segments {
		return all
	}
	b.leaveSegments(t)
	segments, err := filepath.Glob(filepath.Join(b.dataDir, "*.journal-*", "*.segment"))
	if err != nil || len(segments) == 0 {
		t.Fatalf("segments %v, %v, want some", segments, err)
	}
	for _, path := range segments {
		all = append(all, onlyOn+path)
	}
	return all
}

// round makes the n-th call of a thread fail under load. It returns an error if the server does not
// react as it must, or if the next server finds lost or wrong data.
func (b *failingServer) round(t *testing.T, n int) error {
	t.Helper()
	if b.grows {
		b.reset(t)
	}
	s, tr := launchTraced(t, b.dataDir, b.faultsOf(t, n), b.begin(n)...)
	err := s.awaitServing()
	select {
	case <-s.process.Ended():
		tr.drain(t) // Otherwise the call that ended the start may not have been counted yet.
	default:
	}
	if err == nil {
		err = b.work(t, s, tr)
	} else if tr.calls() > 0 && b.wanted != continues {
		counts.add(t, "starts that failed", 1)
		_, err = s.awaitFailure(t, exitIO)
	}
	s.kill()
	b.calls += tr.calls()
	counts.add(t, "rounds", 1)
	counts.add(t, "calls that failed", tr.calls())
	if tr.calls() == 0 {
		counts.add(t, "rounds without a failed call", 1)
	}
	if err != nil {
		return err
	}
	after := launch(t, b.dataDir, nil)
	if err := after.awaitServing(); err != nil {
		return err
	}
	if err := verifyAll(t, after, b.clients); err != nil {
		return err
	}
	after.stop(t)
	return nil
}

// work lets the clients make steps until a call has failed and the server has reacted.
func (b *failingServer) work(t *testing.T, s *server, tr *tracer) error {
	t.Helper()
	const (
		maxSteps  = 3000 // if no call fails
		moreSteps = 60   // after a call has failed
	)
	refused := make(chan struct{}, maxAcknowledged)
	l := startLoadOf(t, b.clients, func(ctx context.Context, c *client, acknowledged func()) error {
		return c.runOnFullDisk(ctx, s, b.grows, acknowledged, func() { refused <- struct{}{} })
	})
	defer func() {
		s.kill()
		counts.add(t, "steps acknowledged", l.end())
		counts.add(t, "steps refused", len(refused))
	}()
	limit := time.After(testTimeout)
	first, left := tr.first, maxSteps
	for {
		select {
		case <-l.acknowledged:
			counts.add(t, "steps acknowledged", 1)
			left--
			if left > 0 {
				continue
			}
			if tr.calls() > 0 && b.wanted == failStops {
				return errors.New("the server continued after a failed call, want it to stop")
			}
			return nil
		case <-first:
			first, left = nil, moreSteps
		case <-s.process.Ended():
			if b.wanted == continues || b.wanted == degrades {
				return fmt.Errorf("the server ended with %v, want it to continue; standard error:\n%s", s.process.ProcessState,
					quote(s.output()))
			}
			counts.add(t, "fail-stops", 1)
			_, err := s.awaitFailure(t, exitIO)
			return err
		case <-limit:
			return fmt.Errorf("the server neither ended nor acknowledged a step within %v", testTimeout)
		case err := <-l.errs:
			l.errs <- err // for end
			var wrong *wrongError
			if errors.As(err, &wrong) || status.Code(err) == codes.DataLoss || b.wanted == continues || b.wanted == degrades {
				return err
			}
			// The server is about to end.
			if _, err := s.awaitFailure(t, exitIO); err != nil {
				return err
			}
			counts.add(t, "fail-stops", 1)
			return nil
		}
	}
}

// wrongError is the error of a wrong reply.
type wrongError struct{ error }

// Unwrap returns the cause.
func (e *wrongError) Unwrap() error { return e.error }

// runOnFullDisk is run for a disk that may be full. It checks that a rejected step has changed nothing,
// and continues with another step.
func (c *client) runOnFullDisk(ctx context.Context, s *server, large bool, acknowledged, refused func()) error {
	for {
		pending := c.next()
		if large {
			pending = c.nextLarge()
		}
		err := c.do(ctx, s, pending)
		_, fromServer := status.FromError(err)
		switch {
		case err == nil:
			acknowledged()
			continue
		case !fromServer: // The client reports a wrong reply.
			return &wrongError{err}
		case status.Code(err) != codes.ResourceExhausted:
			return err
		}
		got, err := observe(ctx, s, c.id)
		if err != nil {
			return err
		}
		if !equal(got, c.state.acknowledged) {
			return &wrongError{fmt.Errorf("%s after a rejected %s: %s", c.id, pending.kind, diff(got, c.state.acknowledged))}
		}
		c.setProgress(progress{acknowledged: c.state.acknowledged})
		refused()
	}
}

// nextLarge returns a step that grows the file: bbolt writes a changed conversation to new pages.
func (c *client) nextLarge() *step {
	c.steps++
	const large = 100_000
	content := fmt.Sprintf("%s step %d: %0*x", c.id, c.steps, large, c.random.Uint64())
	return &step{kind: appendStep, request: fmt.Sprint(c.id, "-", c.steps), contents: []string{content}}
}
