package turn

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// brings is a request of conversation c with a result for each id, and words if there are any.
func brings(words string, ids ...string) *parleyv1.ChatRequest {
	r := &parleyv1.ChatRequest{ConversationId: "c", Content: words}
	for _, id := range ids {
		r.ToolResults = append(r.ToolResults, &parleyv1.ToolResult{CallId: id, Content: "of " + id})
	}
	return r
}

// calling is a message of an agent that calls tools, each "id" or "id name".
func calling(calls ...string) *parleyv1.Message {
	m := &parleyv1.Message{Role: parleyv1.Role_ROLE_ASSISTANT, Content: "I call"}
	for _, one := range calls {
		id, name, _ := strings.Cut(one, " ")
		m.ToolCalls = append(m.ToolCalls, &parleyv1.ToolCall{Id: id, Name: name})
	}
	return m
}

func TestToolResults(t *testing.T) {
	one := &parleyv1.ContextWindow{MaxMessages: 1}
	tests := []struct {
		name   string
		past   []string
		words  string
		ids    []string
		window *parleyv1.ContextWindow
		given  []string // to the agent
		inputs int      // of those, the ones that the request brought
	}{
		{"a result", []string{"calls:1"}, "", []string{"1"}, nil, []string{"user: q", "assistant: ", "tool: of 1"}, 1},
		{"in their own order", []string{"calls:1 2"}, "", []string{"2", "1"}, nil, []string{"user: q", "assistant: ", "tool: of 2", "tool: of 1"}, 2},
		{"some of them", []string{"calls:1 2 3"}, "", []string{"2"}, nil, []string{"user: q", "assistant: ", "tool: of 2"}, 1},
		{"the others", []string{"calls:1 2", "tool:1"}, "", []string{"2"}, nil, []string{"user: q", "assistant: ", "tool: 1", "tool: of 2"}, 1},
		{"and words", []string{"calls:1 2"}, "go on", []string{"1", "2"}, nil, []string{"user: q", "assistant: ", "tool: of 1", "tool: of 2", "user: go on"}, 3},
		{"of a turn that failed", []string{"breaks:1"}, "", []string{"1"}, nil, []string{"user: q", "assistant:  …", "tool: of 1"}, 1},
		{"of an earlier exchange", []string{"calls:1", "completes:a"}, "", []string{"1"}, nil, []string{"user: q", "assistant: ", "user: q", "assistant: a", "tool: of 1"}, 1},
		{"an id that is used again", []string{"calls:1", "tool:1", "calls:1"}, "", []string{"1"}, nil, []string{"user: q", "assistant: ", "tool: 1", "user: q", "assistant: ", "tool: of 1"}, 1},

		{"window", []string{"completes:a", "calls:1 2"}, "", []string{"1", "2"}, one, []string{"user: q", "assistant: ", "tool: of 1", "tool: of 2"}, 2},
		{"window, and words", []string{"completes:a", "calls:1"}, "go on", []string{"1"}, one, []string{"user: q", "assistant: ", "tool: of 1", "user: go on"}, 2},
		{"window, of an earlier exchange", []string{"completes:a", "calls:1", "completes:b"}, "", []string{"1"}, one, []string{"user: q", "assistant: ", "user: q", "assistant: b", "tool: of 1"}, 1},
		{"window, of two exchanges", []string{"completes:a", "calls:1", "calls:2"}, "", []string{"2", "1"}, one, []string{"user: q", "assistant: ", "user: q", "assistant: ", "tool: of 2", "tool: of 1"}, 2},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, p := newPuppet(t, nil)
				past(t, f, p, test.past...)
				before := f.kept(t)
				request := brings(test.words, test.ids...)
				request.Window, request.RequestId, request.Metadata = test.window, "r", map[string]string{"from": "a test"}
				r := f.begin(t, request)
				given := p.last().request.GetMessages()
				if diff := cmp.Diff(test.given, lines(given)); diff != "" {
					t.Errorf("the agent was given (-want +got):\n%s", diff)
				}
				p.last().say("yes")
				p.last().end()

				input := given[len(given)-1]
				started := r.events[0].GetStarted()
				if user := started.GetUserMessage(); (user != nil) != (test.words != "") || user.GetContent() != test.words {
					t.Errorf("started with %v", user)
				}
				if turn := r.finished(); stateName(turn.GetState()) != "COMPLETED" || turn.GetInputSequence() != input.GetSequence() ||
					int(started.GetHistoryCount()) != len(given)-1 || input.GetMetadata()["from"] == "" {
					t.Errorf("started %v, finished %v, input %v", started, turn, input)
				}
				want := slices.Concat(before, test.given[len(test.given)-test.inputs:], []string{"assistant: yes"})
				if diff := cmp.Diff(want, f.kept(t)); diff != "" {
					t.Errorf("kept (-want +got):\n%s", diff)
				}
				// A retry is that turn again, while it is kept and from the store.
				again := f.begin(t, request)
				f.forgetAll()
				stored := f.begin(t, request)
				for _, retry := range []*reader{again, stored} {
					if diff := cmp.Diff([]string{fmt.Sprintf("1 started %q replayed", test.words), `2 text "yes" at 0`, "3 finished COMPLETED"}, retry.seen()); diff != "" || retry.err != nil {
						t.Errorf("retry, %v (-want +got):\n%s", retry.err, diff)
					}
					if user := retry.events[0].GetStarted().GetUserMessage(); (user != nil) != (test.words != "") {
						t.Errorf("replayed with %v", user)
					}
				}
			})
		})
	}
}

// What answers no open call is refused, with the calls that are open, and nothing is stored.
func TestResultsOfNoCall(t *testing.T) {
	tests := []struct {
		name string
		past []string
		ids  []string
		want NoOpenCallError
	}{
		{"no calls", []string{"completes:a"}, []string{"1"}, NoOpenCallError{CallID: "1"}},
		{"another", []string{"calls:1 2"}, []string{"3"}, NoOpenCallError{CallID: "3", Open: []string{"1", "2"}}},
		{"one of them", []string{"calls:2 1"}, []string{"1", "3"}, NoOpenCallError{CallID: "3", Open: []string{"2", "1"}}},
		{"answered", []string{"calls:1 2", "tool:1"}, []string{"1"}, NoOpenCallError{CallID: "1", Answered: true, Open: []string{"2"}}},
		{"answered by the agent", []string{"finds:wait"}, []string{"1"}, NoOpenCallError{CallID: "1", Answered: true}},
		{"of an older message", []string{"calls:1 2", "calls:1", "tool:1"}, []string{"1"}, NoOpenCallError{CallID: "1", Answered: true, Open: []string{"2"}}},
		{"no longer kept", []string{"calls:1", "cleared:"}, []string{"1"}, NoOpenCallError{CallID: "1"}},
	}
	for _, test := range tests {
		for _, words := range []string{"", "and words"} {
			t.Run(test.name+words, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f, p := newPuppet(t, nil)
					past(t, f, p, test.past...)
					before, asked := f.kept(t), p.count()
					r := f.begin(t, brings(words, test.ids...))
					var got *NoOpenCallError
					if !errors.As(r.err, &got) || len(r.events) != 0 {
						t.Fatalf("read %q, %v", r.seen(), r.err)
					}
					if diff := cmp.Diff(test.want, *got); diff != "" {
						t.Errorf("refused with (-want +got):\n%s", diff)
					}
					if diff := cmp.Diff(before, f.kept(t)); diff != "" || p.count() != asked || f.Running() != 0 {
						t.Errorf("the agent was asked %d times, %d turns run; kept (-want +got):\n%s", p.count()-asked, f.Running(), diff)
					}
				})
			})
		}
	}
}

// Results make no conversation.
func TestResultsNowhere(t *testing.T) {
	for _, must := range []bool{false, true} {
		f, _ := newPuppet(t, nil)
		request := brings("and words", "1")
		request.MustExist = must
		if _, err := f.ask(t, request, nil); !errors.Is(err, store.ErrNotFound) || f.kept(t) != nil {
			t.Errorf("must_exist %t: %v, kept %q", must, err, f.kept(t))
		}
	}
}

// The calls of an id in the newest message that has some are answered, the first one first,
// and name the tool where the result does not. Those that an older message asked for are over.
func TestResultsAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newPuppet(t, nil)
		past(t, f, p, "user:q")
		f.append(t, calling("1 old", "2 other"), calling("1 new", "1 newer"))
		request := brings("", "1", "2")
		request.ToolResults[1].Name = "my own"
		f.begin(t, request)
		p.last().end()
		f.begin(t, brings("", "1"))
		p.last().end()
		var names []string
		for _, m := range p.last().request.GetMessages() {
			if m.GetToolResult() != nil {
				names = append(names, m.GetToolResult().GetName())
			}
		}
		if diff := cmp.Diff([]string{"new", "my own", "newer"}, names); diff != "" {
			t.Errorf("names (-want +got):\n%s", diff)
		}
		// A retry does not go to the call that nobody has answered.
		before, asked := f.kept(t), p.count()
		r := f.begin(t, brings("", "1"))
		var got *NoOpenCallError
		if !errors.As(r.err, &got) || !cmp.Equal(NoOpenCallError{CallID: "1", Answered: true}, *got) {
			t.Errorf("read %q, %v", r.seen(), r.err)
		}
		if diff := cmp.Diff(before, f.kept(t)); diff != "" || p.count() != asked {
			t.Errorf("%d agents were asked, kept (-want +got):\n%s", p.count()-asked, diff)
		}
	})
}

// Between the moment in which a turn looks for the calls and the one in which it begins,
// something else may be appended.
func TestCallsChange(t *testing.T) {
	result := &parleyv1.Message{Role: parleyv1.Role_ROLE_TOOL, ToolResult: &parleyv1.ToolResult{CallId: "1", Content: "another"}}
	words := &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: "hello"}
	tests := []struct {
		name      string
		comes     *parleyv1.Message
		ifVersion *int32
		given     []string // nil: it is refused
		version   bool     // because of the version
	}{
		{"a result of the call", result, nil, nil, false},
		{"a call of that id", calling("1 again"), nil, []string{"user: q", "assistant: ", "assistant: I call", "tool: of 1"}, false},
		{"words", words, nil, []string{"user: q", "assistant: ", "user: hello", "tool: of 1"}, false},
		{"words, under if_version", words, new(int32(2)), nil, true},
		{"nothing, under if_version", nil, new(int32(2)), []string{"user: q", "assistant: ", "tool: of 1"}, false},
		{"nothing, under another if_version", nil, new(int32(1)), nil, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var h *hooked
				f, p := newPuppet(t, func(o *Options) {
					h = &hooked{Store: o.Store}
					o.Store = h
				})
				past(t, f, p, "calls:1") // The conversation is at version 2.
				asked := p.count()
				h.begin = func(*store.Append) {
					h.begin = nil
					if test.comes != nil {
						f.append(t, test.comes)
					}
				}
				request := brings("", "1")
				request.IfVersion = test.ifVersion
				r := f.begin(t, request)
				switch {
				case test.given != nil:
					given := p.last().request.GetMessages()
					if diff := cmp.Diff(test.given, lines(given)); diff != "" || r.err != nil {
						t.Errorf("%v; the agent was given (-want +got):\n%s", r.err, diff)
					}
					if name := given[len(given)-1].GetToolResult().GetName(); test.comes.GetToolCalls() != nil && name != "again" {
						t.Errorf("the result is of %q", name)
					}
				case errors.As(r.err, new(*store.VersionError)) != test.version, errors.As(r.err, new(*NoOpenCallError)) == test.version, p.count() != asked:
					t.Errorf("got %v, %d agents asked", r.err, p.count()-asked)
				}
			})
		})
	}
}

// What waits is held against the calls that there are when its turn comes.
func TestResultsInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newPuppet(t, nil)
		first := f.begin(t, asks("q", 0))
		if r := f.begin(t, brings("", "1")); !errors.As(r.err, new(*store.BusyError)) {
			t.Errorf("while it runs: %v", r.err)
		}
		// One that would be refused cuts nothing off, even where the call is on its way.
		p.last().do(step{pieces: []*parleyv1.RespondResponse{call("1"), call("2")}})
		eager := brings("", "1")
		eager.OnBusy = interrupt
		if r := f.begin(t, eager); !errors.As(r.err, new(*NoOpenCallError)) || first.over {
			t.Errorf("interrupting: %v; the first turn is over: %t", r.err, first.over)
		}
		queued := [3]*reader{}
		for i, ids := range [][]string{{"1"}, {"1", "2"}, {"2"}} {
			request := brings("", ids...)
			request.OnBusy = queue
			queued[i] = f.begin(t, request)
		}
		p.last().end()
		if state := stateName(first.finished().GetState()); state != "INPUT_REQUIRED" {
			t.Errorf("the first turn ended %s", state)
		}
		// Now the calls are there, and one may be cut off for the other.
		eager = brings("", "2")
		eager.OnBusy = interrupt
		last := f.begin(t, eager)
		p.last().end()
		if !errors.As(queued[1].err, new(*NoOpenCallError)) || !errors.As(queued[2].err, new(*NoOpenCallError)) {
			t.Errorf("what others had answered: %v, %v", queued[1].err, queued[2].err)
		}
		got := []string{stateName(queued[0].finished().GetState()), stateName(last.finished().GetState())}
		if diff := cmp.Diff([]string{"INTERRUPTED", "COMPLETED"}, got); diff != "" {
			t.Errorf("turns ended (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"user: q", "assistant: ", "tool: of 1", "tool: of 2"}, f.kept(t)); diff != "" {
			t.Errorf("kept (-want +got):\n%s", diff)
		}
	})
}

// A turn that a crash left running may have had the call: it is ended first.
func TestResultsAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m *mortal
		var full *refusing
		f, p := newPuppet(t, func(o *Options) {
			m = &mortal{Store: o.Store}
			full = &refusing{Store: m}
			o.Store = full
		})
		f.begin(t, asks("q", 0))
		p.last().do(step{pieces: []*parleyv1.RespondResponse{call("1")}})
		<-time.After(saveEvery)
		synctest.Wait()
		full.refusals = []error{store.ErrClosed, store.ErrNoSpace} // of the stop, of the start
		f.crash(t, m)
		if r := f.begin(t, brings("", "1")); r.err != nil || r.over {
			t.Errorf("read %q, %v", r.seen(), r.err)
		}
		if diff := cmp.Diff([]string{"user: q", "assistant:  …", "tool: of 1"}, f.kept(t)); diff != "" {
			t.Errorf("kept (-want +got):\n%s", diff)
		}
	})
}

// Of two that interrupt with the result of one call, one does, and the other cuts nothing off.
func TestInterruptsOfOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newPuppet(t, nil)
		past(t, f, p, "calls:1")
		slow := asks("ahead", 0)
		slow.Metadata = stubborn
		f.begin(t, slow)
		var both []*reader
		for range 2 {
			request := brings("", "1")
			request.OnBusy = interrupt
			both = append(both, f.begin(t, request))
		}
		p.last().end()
		synctest.Wait()
		if both[0].err != nil || both[0].over || !errors.As(both[1].err, new(*NoOpenCallError)) {
			t.Errorf("the one got %q, %v; the other %q, %v", both[0].seen(), both[0].err, both[1].seen(), both[1].err)
		}
	})
}

// A turn that runs or waits holds no history that was read for it: it may be one of 3 MiB.
func TestTurnsHoldNoHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newPuppet(t, nil)
		past(t, f, p, "calls:1 2")
		first, second := brings("", "1"), brings("", "2")
		first.OnBusy, second.OnBusy = interrupt, queue
		f.begin(t, first)
		f.begin(t, second)
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, one := range f.turns {
			if one.found != nil {
				t.Errorf("the turn with %v holds what was read", one.request)
			}
		}
	})
}
