package metrics

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Turn describes a turn that has ended. Durations are 0 if there was no such time.
type Turn struct {
	Agent  string // that answered
	State  parleyv1.TurnState
	Reason string // of the error; empty if there is none

	Wait       time.Duration // from the request to the start
	FirstPiece time.Duration // from the call of the agent to its first piece
	Answer     time.Duration // from the call of the agent to the end of its answer
}

// agentFailures are the reasons of errors that an agent causes.
func agentFailures() []string {
	return []string{"AGENT_FAILED", "AGENT_TIMEOUT", "AGENT_OUTPUT_TOO_LARGE"}
}

// endStates are the states in which turns end.
func endStates() []parleyv1.TurnState {
	return []parleyv1.TurnState{
		parleyv1.TurnState_TURN_STATE_COMPLETED, parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED,
		parleyv1.TurnState_TURN_STATE_FAILED, parleyv1.TurnState_TURN_STATE_CANCELLED,
		parleyv1.TurnState_TURN_STATE_INTERRUPTED,
	}
}

func (m *Metrics) addTurns() {
	pieces := []float64{.001, .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	m.turns = m.counters("parley_turns_total", "Turns that ended, by the agent that answered and by state.",
		"agent", "state")
	m.turnWait = m.histogram("parley_turn_wait_seconds", "Time from the request of a turn to its start, with the queue.",
		[]float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300})
	m.firstPiece = m.histograms("parley_agent_first_piece_seconds",
		"Time from the call of an agent to the first piece of its answer.", pieces, "agent")
	m.answer = m.histograms("parley_agent_answer_seconds",
		"Time from the call of an agent to the end of its answer.", append(slices.Clone(pieces), 300), "agent")
	m.agentFailures = m.counters("parley_agent_failures_total",
		"Turns that failed because of their agent, by agent and by the reason of the error.", "agent", "reason")
}

// SetAgents names the configured agents. The metrics of new agents begin with 0, those of other agents end.
func (m *Metrics) SetAgents(names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, old := range m.agents {
		if slices.Contains(names, old) {
			continue
		}
		labels := prometheus.Labels{"agent": old}
		m.turns.DeletePartialMatch(labels)
		m.firstPiece.DeletePartialMatch(labels)
		m.answer.DeletePartialMatch(labels)
		m.agentFailures.DeletePartialMatch(labels)
	}
	m.agents = slices.Clone(names)
	for _, name := range names {
		for _, state := range endStates() {
			m.turns.WithLabelValues(name, stateName(state))
		}
		for _, reason := range agentFailures() {
			m.agentFailures.WithLabelValues(name, reason)
		}
		m.firstPiece.WithLabelValues(name)
		m.answer.WithLabelValues(name)
	}
}

// TurnEnded records a turn. A turn of an agent that is not configured any more is not recorded.
func (m *Metrics) TurnEnded(t Turn) {
	m.turnWait.Observe(t.Wait.Seconds())
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Contains(m.agents, t.Agent) {
		return
	}
	m.turns.WithLabelValues(t.Agent, stateName(t.State)).Inc()
	if t.FirstPiece > 0 {
		m.firstPiece.WithLabelValues(t.Agent).Observe(t.FirstPiece.Seconds())
	}
	if t.Answer > 0 {
		m.answer.WithLabelValues(t.Agent).Observe(t.Answer.Seconds())
	}
	if slices.Contains(agentFailures(), t.Reason) {
		m.agentFailures.WithLabelValues(t.Agent, t.Reason).Inc()
	}
}
