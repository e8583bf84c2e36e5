package turn

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/parleyhq/parley/store"
)

func (m *model) checkReads(rt *rapid.T) {
	for _, r := range m.reads {
		if diff := cmp.Diff(r.want, r.received(), cmpopts.EquateEmpty()); diff != "" {
			rt.Errorf("events of a reader (-want +got):\n%s", diff)
		}
		if r.ended != r.wantEnded || errorKind(r.err) != errorKind(r.wantErr) {
			rt.Errorf("stream ended = %t with %v, want %t with %v", r.ended, r.err, r.wantEnded, r.wantErr)
		}
	}
	m.reads = slices.DeleteFunc(m.reads, func(r *oracleRead) bool { return r.wantEnded })
}

func (m *model) check(rt *rapid.T) {
	m.checkAgents(rt)
	m.checkReads(rt)
	live := m.oracle.running
	for _, id := range []string{"a", "b", "c"} {
		m.checkConversation(rt, id)
		if l := m.oracle.queues[id]; l != nil {
			live += len(l.waiting) + len(l.ended)
		}
	}
	if len(m.Manager.turns) != live || m.Running() != m.oracle.running {
		rt.Errorf("%d turns, %d running, want %d, %d running", len(m.Manager.turns), m.Running(), live, m.oracle.running)
	}
	m.cancels = slices.DeleteFunc(m.cancels, func(c *cancelCall) bool {
		if want := c.turn.state != "" || c.turn.err != nil; c.returned != want {
			rt.Errorf("Cancel(%s) returned = %t, want %t", c.turn.id, c.returned, want)
		}
		if c.returned && (c.err != nil || stateName(c.got.GetState()) != c.turn.state) && !isMissingTurn(c.err) {
			rt.Errorf("Cancel = %v, %v, want the turn as it ended, %s", c.got, c.err, c.turn.state)
		}
		return c.returned
	})
}

// checkAgents assigns agent runs to turns and checks that each turn has one.
func (m *model) checkAgents(rt *rapid.T) {
	calls := 0
	for _, run := range m.puppet.runs {
		m.byID[run.request.GetTurnId()].agent = run
	}
	for _, t := range m.turns {
		if t.agentCalled != (t.agent != nil) {
			rt.Errorf("agent of turn %s called = %t, want %t", t.id, t.agent != nil, t.agentCalled)
		}
		if t.agentCalled {
			calls++
		}
	}
	if n := m.puppet.runCount(); n != calls {
		rt.Errorf("%d agent calls, want %d", n, calls)
	}
}

func (m *model) checkConversation(rt *rapid.T, id string) {
	var want []string
	c := m.oracle.conversations[id]
	if c != nil {
		want = c.history
	}
	if diff := cmp.Diff(want, m.history(m.t, id)); diff != "" {
		rt.Errorf("history of %s (-want +got):\n%s", id, diff)
	}
	turns, err := m.newestTurns(m.t, id)
	if (c == nil) != errors.Is(err, store.ErrNotFound) {
		rt.Errorf("turns of %s: %v", id, err)
	}
	var states, wantStates []string
	for _, turn := range turns {
		states = append(states, turn.GetId()+" "+stateName(turn.GetState()))
	}
	for _, t := range slices.Backward(m.oracle.list(id)) {
		wantStates = append(wantStates, t.id+" "+m.oracle.state(t))
	}
	if diff := cmp.Diff(wantStates[:min(32, len(wantStates))], states); diff != "" {
		rt.Errorf("turns of %s (-want +got):\n%s", id, diff)
	}
}

// isMissingTurn reports whether an error says that the turn does not exist.
func isMissingTurn(err error) bool {
	var turn *NotFoundError
	return errors.As(err, &turn) || errors.Is(err, store.ErrNotFound)
}

// errorKind returns the kind of an error without its details.
func errorKind(err error) string {
	switch {
	case errors.As(err, new(*store.BusyError)):
		return "busy"
	case errors.As(err, new(*EventsGoneError)):
		return "events gone"
	case errors.As(err, new(*NotFoundError)):
		return "no such turn"
	case errors.As(err, new(*NoOpenCallError)):
		return "no such call"
	}
	for _, run := range []error{
		store.ErrNotFound, store.ErrRequestReused, ErrQueueFull, ErrTooManyTurns, ErrConversationDeleted, ErrShuttingDown,
		context.Canceled,
	} {
		if errors.Is(err, run) {
			return run.Error()
		}
	}
	return fmt.Sprint(err)
}
