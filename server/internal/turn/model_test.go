package turn

import (
	stdcmp "cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// bubble runs one case of a property in a synctest bubble.
func bubble(t *testing.T, rt *rapid.T, run func(t *testing.T)) {
	t.Helper()
	var failed any
	synctest.Test(t, func(t *testing.T) {
		defer func() { failed = recover() }() // Pass the panic to rapid, which waits outside.
		run(t)
	})
	if fmt.Sprintf("%T", failed) == "rapid.invalidData" {
		rt.SkipNow() // Skip from another line: rapid distinguishes failures by line.
	}
	if failed != nil {
		panic(failed)
	}
}

// model performs each random step on a manager and on an oracle.
type model struct {
	*fixture

	t       *testing.T
	puppet  *controlledAgent
	oracle  *oracle
	turns   []*oracleTurn
	byID    map[string]*oracleTurn
	reads   []*oracleRead
	cancels []*cancelCall
}

// cancelCall is a call of CancelTurn.
type cancelCall struct {
	turn     *oracleTurn
	got      *parleyv1.Turn
	err      error
	returned bool
}

// TestModel compares the manager with the oracle after random steps: one turn runs at a time in
// each conversation, the history alternates between questions and answers, an agent runs once for
// each turn, indexes increase by one, and so on.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		bubble(t, rt, func(t *testing.T) {
			t.Helper()
			f, p := newControlled(t, func(o *Options) { o.MaxTurns = 2 })
			m := &model{fixture: f, t: t, puppet: p, oracle: newOracle(2), byID: make(map[string]*oracleTurn)}
			rt.Repeat(map[string]func(*rapid.T){
				"":        m.check,
				"chat":    m.chat,
				"queue":   m.queueMany,
				"say":     func(rt *rapid.T) { m.step(rt, "say") },
				"call":    func(rt *rapid.T) { m.step(rt, "call") },
				"end":     func(rt *rapid.T) { m.step(rt, "end") },
				"fail":    func(rt *rapid.T) { m.step(rt, "fail") },
				"leave":   m.leave,
				"resume":  m.resume,
				"cancel":  m.cancel,
				"get":     m.get,
				"delete":  m.delete,
				"forget":  func(*rapid.T) { m.releaseAll(); m.oracle.releaseAll() },
				"restart": m.restart,
			})
			m.restart(rt)
			m.check(rt)
		})
	})
}

var (
	conversationIDs = rapid.SampledFrom([]string{"a", "b", "c"})
	callIDs         = rapid.SampledFrom([]string{"1", "2", "3"})
)

func (m *model) chat(rt *rapid.T) {
	r := &parleyv1.ChatRequest{
		ConversationId: conversationIDs.Draw(rt, "conversation"),
		Content:        rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "content"),
		RequestId:      rapid.SampledFrom([]string{"", "", "", "r1", "r2", "r3"}).Draw(rt, "request_id"),
		OnBusy:         parleyv1.OnBusy(rapid.Int32Range(0, 3).Draw(rt, "on_busy")),
		OnDisconnect:   parleyv1.OnDisconnect(rapid.Int32Range(0, 2).Draw(rt, "on_disconnect")),
	}
	if rapid.Bool().Draw(rt, "stubborn") {
		r.Metadata = ignoreCancel
	}
	if rapid.IntRange(0, 2).Draw(rt, "results") == 0 {
		m.addResults(rt, r)
	}
	m.sendChat(r)
}

// addResults adds tool results to a request, for open and other calls, with or without text.
func (m *model) addResults(rt *rapid.T, r *parleyv1.ChatRequest) {
	for _, id := range rapid.SliceOfNDistinct(callIDs, 1, 2, rapid.ID).Draw(rt, "results of") {
		r.ToolResults = append(r.ToolResults, &parleyv1.ToolResult{CallId: id, Content: "result " + id})
	}
	if rapid.Bool().Draw(rt, "only results") {
		r.Content = ""
	}
	queue := m.oracle.queues[r.GetConversationId()]
	if queue != nil && len(queue.waiting) > 0 && queue.waiting[0].interrupts() &&
		r.GetOnBusy() == parleyv1.OnBusy_ON_BUSY_INTERRUPT {
		r.OnBusy = parleyv1.OnBusy_ON_BUSY_QUEUE // The request would wait for that turn before it is validated.
	}
}

// queueMany sends many requests at once.
func (m *model) queueMany(rt *rapid.T) {
	id := conversationIDs.Draw(rt, "conversation")
	for i := range rapid.IntRange(2, 20).Draw(rt, "n") {
		m.sendChat(&parleyv1.ChatRequest{ConversationId: id, Content: fmt.Sprint(i), OnBusy: parleyv1.OnBusy_ON_BUSY_QUEUE})
	}
}

// sendChat sends a request and sets what the oracle expects.
func (m *model) sendChat(r *parleyv1.ChatRequest) {
	live, stored, joined, err := m.oracle.chat(r)
	read := &oracleRead{replayed: joined}
	switch {
	case err != nil:
		read.refuse(err)
	case stored != nil:
		m.oracle.replay(stored, 0, read)
	default:
		m.oracle.attach(live, 0, read)
	}
	read.reader = m.startChat(m.t, r)
	m.reads = append(m.reads, read)
	if live != nil && !joined {
		live.id = read.turnID()
		m.turns, m.byID[live.id] = append(m.turns, live), live
	}
}

// pick draws one of the turns for which ok returns true.
func (m *model) pick(rt *rapid.T, ok func(t *oracleTurn) bool) *oracleTurn {
	var some []*oracleTurn
	for _, t := range m.turns {
		if ok(t) {
			some = append(some, t)
		}
	}
	if len(some) == 0 {
		rt.Skip("no such turn")
	}
	return some[rapid.IntRange(0, len(some)-1).Draw(rt, "turn")]
}

func (m *model) step(rt *rapid.T, what string) {
	t := m.pick(rt, (*oracleTurn).runs)
	switch what {
	case "say":
		content := rapid.StringMatching(`[a-zé]{1,3} `).Draw(rt, "word")
		t.say(content)
		t.agent.sendText(content)
	case "call":
		id := callIDs.Draw(rt, "id")
		if slices.Contains(t.open, id) {
			rt.Skip("the call is open")
		}
		t.call(id)
		t.agent.do(step{pieces: []*parleyv1.RespondResponse{call(id)}})
	case "end":
		m.oracle.end(t, "COMPLETED")
		t.agent.complete()
	case "fail":
		m.oracle.end(t, "FAILED")
		t.agent.fail()
	}
}

// runs reports whether the turn's agent is active.
func (t *oracleTurn) runs() bool { return t.agentCalled && t.state == "" && t.err == nil }

func (m *model) leave(rt *rapid.T) {
	var some []*oracleRead
	for _, r := range m.reads {
		if r.turn != nil {
			some = append(some, r)
		}
	}
	if len(some) == 0 {
		rt.Skip("no reader")
	}
	read := some[rapid.IntRange(0, len(some)-1).Draw(rt, "reader")]
	m.oracle.disconnect(read)
	read.disconnect()
}

func (m *model) resume(rt *rapid.T) {
	id, turnID, events := conversationIDs.Draw(rt, "conversation"), "", 0
	var t *oracleTurn
	if i := rapid.IntRange(0, len(m.turns)).Draw(rt, "turn"); i > 0 {
		t = m.turns[i-1]
		turnID = t.id
		if rapid.IntRange(0, 9).Draw(rt, "own") > 0 {
			id = t.request.GetConversationId()
		}
	}
	live, stored, err := m.oracle.resume(id, t)
	if found := stdcmp.Or(live, stored); found != nil {
		events = len(found.log)
	}
	after := rapid.IntRange(0, events+1).Draw(rt, "after")
	read := &oracleRead{replayed: true}
	switch {
	case err != nil:
		read.refuse(err)
	case stored != nil:
		m.oracle.replay(stored, after, read)
	default:
		m.oracle.attach(live, after, read)
	}
	read.reader = startReading(m.t.Context(), func(ctx context.Context) iter.Seq2[*parleyv1.TurnEvent, error] {
		return m.Resume(ctx, tenant, id, turnID, int32(after))
	})
	m.reads = append(m.reads, read)
}

func (m *model) cancel(rt *rapid.T) {
	c := &cancelCall{turn: m.pick(rt, func(*oracleTurn) bool { return true })}
	id := c.turn.request.GetConversationId()
	if other := conversationIDs.Draw(rt, "conversation"); other < id { // This conversation has no such turn.
		if _, err := m.Cancel(m.t.Context(), tenant, other, c.turn.id); !isMissingTurn(err) {
			rt.Errorf("Cancel of a turn of %s in %s: error = %v, want none found", id, other, err)
		}
		return
	}
	m.oracle.cancel(c.turn)
	m.cancels = append(m.cancels, c)
	go func() {
		c.got, c.err = m.Cancel(m.t.Context(), tenant, id, c.turn.id)
		c.returned = true
	}()
	synctest.Wait()
}

func (m *model) get(rt *rapid.T) {
	t := m.pick(rt, func(*oracleTurn) bool { return true })
	got, err := m.Get(m.t.Context(), tenant, t.request.GetConversationId(), t.id)
	if want := m.oracle.state(t); want == "" && !isMissingTurn(err) || want != "" && stateName(got.GetState()) != want {
		rt.Errorf("Get(%s) = %v, %v, want %q", t.id, got, err, want)
	}
}

func (m *model) delete(rt *rapid.T) {
	id := conversationIDs.Draw(rt, "conversation")
	if m.oracle.conversations[id] == nil {
		rt.Skip("no such conversation")
	}
	m.oracle.delete(id)
	if err := m.store.Delete(m.t.Context(), &store.Delete{Tenant: tenant, ConversationID: id}); err != nil {
		rt.Fatal(err)
	}
	synctest.Wait()
}

// restart stops the manager and starts another one on the same store.
func (m *model) restart(rt *rapid.T) {
	m.oracle.stopAll()
	ctx, now := context.WithCancel(m.t.Context())
	now()
	stopped := false
	go func() {
		m.Stop(ctx)
		stopped = true
	}()
	synctest.Wait()
	if stopped != (m.oracle.running == 0) {
		rt.Fatalf("Stop returned = %t with %d running turns", stopped, m.oracle.running)
	}
	m.checkReads(rt)
	for _, t := range m.turns {
		if t.runs() {
			m.oracle.end(t, "COMPLETED")
			t.agent.complete()
		}
	}
	if !stopped || len(m.Manager.turns)+len(m.queues)+len(m.runningQueues)+m.retained.Len()+m.retainedBytes != 0 {
		rt.Fatalf("after Stop (returned: %t): turns %v, queues %v, running %v, %d retained bytes, want none", stopped,
			m.Manager.turns, m.queues, m.runningQueues, m.retainedBytes)
	}
	m.oracle.queues = make(map[string]*oracleQueue)
	m.Manager = New(m.t.Context(), m.o)
}
