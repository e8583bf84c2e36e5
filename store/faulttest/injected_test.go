package faulttest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// outcome is what a server is to make of a system call that fails.
type outcome string

const (
	failStops outcome = "fail-stop" // it ends with 74
	degrades  outcome = "full"      // it refuses what finds no room, and goes on
	either    outcome = "either"    // of the two
	goesOn    outcome = "goes on"   // as if nothing had been
)

// fault is a way in which the N-th system call of a thread fails.
type fault struct {
	name string
	// inject is what strace is told, with N for %[1]d and N and a few for %[2]d.
	inject string
	want   outcome
	grows  bool // it is one of those by which the file grows, of which there are few
}

// someCalls is how many calls in a row find no room.
const someCalls = 4

func faults() []fault {
	return []fault{
		{name: "sync fails", inject: "fdatasync:error=EIO:when=%[1]d", want: failStops},
		{name: "write fails", inject: "pwrite64:error=EIO:when=%[1]d", want: failStops},
		{name: "no room to write", inject: "pwrite64:error=ENOSPC:when=%[1]d..%[2]d", want: degrades},
		// Where a file system finds the room only when it must, it says so no sooner.
		{name: "no room at a sync", inject: "fdatasync:error=ENOSPC:when=%[1]d", want: either},
		{name: "slow sync", inject: "fdatasync:delay_enter=50000:when=%[1]d..%[2]d", want: goesOn},
		{name: "slow write", inject: "pwrite64:delay_enter=50000:when=%[1]d..%[2]d", want: goesOn},
		{name: "no room to grow", inject: "ftruncate:error=ENOSPC:when=%[1]d", want: degrades, grows: true},
		{name: "growing fails", inject: "ftruncate:error=EIO:when=%[1]d", want: failStops, grows: true},
		{name: "sync of the size fails", inject: "fsync:error=EIO:when=%[1]d", want: failStops, grows: true},
	}
}

// Whichever system call fails, nothing that was acknowledged is lost, and nothing wrong is
// served; on anything but a full disk the server stops.
func TestFailingCalls(t *testing.T) {
	for i, f := range faults() {
		t.Run(f.name, func(t *testing.T) {
			calls := rounds(6, 60)
			if f.grows {
				calls = rounds(1, 2)
			}
			b := newBroken(t, f, uint64(10+i))
			for n := range calls {
				if !f.grows && calls < 60 {
					n *= 7 // Of few, some that come late.
				}
				if err := b.round(t, n+1); err != nil {
					t.Fatalf("call %d: %v", n+1, err)
				}
			}
			if b.calls == 0 {
				t.Error("no call has failed in any round")
			}
		})
	}
}

// The control: writes that do nothing but say that they did damage the file or lose data, a
// server that stops does not go on, and both show.
func TestFailingCallsUnnoticed(t *testing.T) {
	for i, f := range []fault{
		{name: "lying writes", inject: "pwrite64:retval=4096:when=%[1]d..%[2]d", want: either},
		{name: "no write succeeds", inject: "pwrite64:error=EIO:when=%[1]d+", want: goesOn},
	} {
		t.Run(f.name, func(t *testing.T) {
			const total = 3
			found := 0
			for n := range total {
				if err := newBroken(t, f, uint64(50+i)).round(t, 10*n+10); err != nil {
					found++
					t.Logf("call %d, as it must be: %.300v", 10*n+10, err)
				}
			}
			counts.add(t, "control: rounds", total)
			counts.add(t, "control: rounds in which it was found", found)
			if found == 0 {
				t.Error("what fails unnoticed is not found: the test of failing calls proves nothing")
			}
		})
	}
}

// broken is a server whose system calls fail in one way, and its clients.
type broken struct {
	fault
	seed    uint64
	dataDir string
	clients []*client
	calls   int // that have failed
}

func newBroken(t *testing.T, f fault, seed uint64) *broken {
	t.Helper()
	b := &broken{fault: f, seed: seed}
	b.anew(t)
	return b
}

// anew begins with a small file of a server that has never served.
func (b *broken) anew(t *testing.T) {
	t.Helper()
	const working = 4
	b.dataDir, b.clients = t.TempDir(), newClients(working, b.seed)
	start(t, b.dataDir).stop(t)
}

// round has the n-th call of a thread fail under load, and says what is wrong with what the
// server makes of it, or with what the next one finds.
func (b *broken) round(t *testing.T, n int) error {
	t.Helper()
	if b.grows {
		b.anew(t)
	}
	// What there is beside the store shall not take its calls.
	s, tr := launchTraced(t, b.dataDir, []string{fmt.Sprintf(b.inject, n, n+someCalls-1)}, "--interaction-log=false")
	err := s.serves(t)
	if err == nil {
		err = b.work(t, s, tr)
	} else if tr.calls() > 0 && b.want != goesOn {
		counts.add(t, "starts that failed", 1)
		_, err = s.endsWith(t, exitIO)
	}
	s.kill()
	b.calls += tr.calls()
	counts.add(t, "rounds", 1)
	counts.add(t, "calls that failed", tr.calls())
	if tr.calls() == 0 {
		counts.add(t, "rounds in which no call came to fail", 1)
	}
	if err != nil {
		return err
	}
	after := launch(t, b.dataDir, nil)
	if err := after.serves(t); err != nil {
		return err
	}
	if err := recoverAll(t, after, b.clients); err != nil {
		return err
	}
	after.stop(t)
	return nil
}

// work puts the clients to work until a call has failed and the server has shown what it
// makes of it.
func (b *broken) work(t *testing.T, s *server, tr *tracer) error {
	t.Helper()
	const (
		most = 3000 // steps without a failing call
		more = 60   // steps after one
	)
	refused := make(chan struct{}, maxAcknowledged)
	l := beginEach(t, b.clients, func(ctx context.Context, c *client, tell func()) error {
		return c.persist(ctx, s, b.grows, tell, func() { refused <- struct{}{} })
	})
	defer func() {
		s.kill()
		counts.add(t, "steps acknowledged", l.end())
		counts.add(t, "steps refused", len(refused))
	}()
	limit := time.After(patience)
	first, left := tr.first, most
	for {
		select {
		case <-l.acknowledged:
			counts.add(t, "steps acknowledged", 1)
			left--
			if left > 0 {
				continue
			}
			if tr.calls() > 0 && b.want == failStops {
				return errors.New("the server goes on after a call has failed")
			}
			return nil
		case <-first:
			first, left = nil, more
		case <-s.ended:
			if b.want == goesOn || b.want == degrades {
				return fmt.Errorf("the server has ended with %v:\n%s", s.process.ProcessState, quote(s.wrote()))
			}
			counts.add(t, "fail-stops", 1)
			_, err := s.endsWith(t, exitIO)
			return err
		case <-limit:
			return fmt.Errorf("the server neither ends nor goes on within %v", patience)
		case err := <-l.errs:
			l.errs <- err // for end
			var wrong *wrongError
			if errors.As(err, &wrong) || status.Code(err) == codes.DataLoss || b.want == goesOn || b.want == degrades {
				return err
			}
			// It is ending: s.ended tells.
			if _, err := s.endsWith(t, exitIO); err != nil {
				return err
			}
			counts.add(t, "fail-stops", 1)
			return nil
		}
	}
}

// wrongError says that a server has told something that is not so.
type wrongError struct{ error }

// Unwrap returns the cause.
func (e *wrongError) Unwrap() error { return e.error }

// persist is run on a disk that may be full: what is refused for that has left no trace, and
// the client does something else.
func (c *client) persist(ctx context.Context, s *server, large bool, acknowledged, refused func()) error {
	for {
		doing := c.next()
		if large {
			doing = c.nextLarge()
		}
		err := c.do(ctx, s, doing)
		_, told := status.FromError(err)
		switch {
		case err == nil:
			acknowledged()
			continue
		case !told: // It is of the client: the answer is wrong.
			return &wrongError{err}
		case status.Code(err) != codes.ResourceExhausted:
			return err
		}
		got, err := observe(ctx, s, c.id)
		if err != nil {
			return err
		}
		if !same(got, c.state.has) {
			return &wrongError{fmt.Errorf("%s: %s was refused: %s", c.id, doing.kind, difference(got, c.state.has))}
		}
		c.note(progress{has: c.state.has})
		refused()
	}
}

// nextLarge is a step that makes the file grow: bbolt writes the whole conversation anew.
func (c *client) nextLarge() *step {
	c.steps++
	const large = 100_000
	words := fmt.Sprintf("%s step %d: %0*x", c.id, c.steps, large, c.random.Uint64())
	return &step{kind: appends, request: fmt.Sprint(c.id, "-", c.steps), words: []string{words}}
}
