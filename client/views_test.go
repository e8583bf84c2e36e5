package client

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

var update = flag.Bool("update", false, "write testdata/views.json again")

const viewsFile = "testdata/views.json"

// viewsAbout describes views.json for the authors of clients in other languages.
func viewsAbout() []string {
	return []string{
		"The events that a client delivers of a turn that it reads over several streams. The tests of all client packages " +
			"read this file.",
		"`go test ./client -run TestViews -update` generates it from hand-written and random cases. Change the cases, not this file.",
		"A case is the steps of one view, see view.go. turn, after: the caller called ResumeTurn with this turn_id and " +
			"after_index; without them it called Chat.",
		"begin: a stream begins after this index.",
		"take: the stream contains this event (proto JSON). shown: the part of it that the caller receives, or null for " +
			"nothing. The offset of a delta is in bytes of UTF-8.",
		"gone: the server returned EVENTS_GONE; true means that the view can resume from the start.",
		"next: the index after which the next stream must begin.",
	}
}

// views is the content of views.json.
type views struct {
	About []string   `json:"about"`
	Cases []viewCase `json:"cases"`
}

type viewCase struct {
	Name  string     `json:"name"`
	Turn  string     `json:"turn,omitempty"`
	After int32      `json:"after,omitempty"`
	Steps []viewStep `json:"steps"`
}

// viewStep is one call of a method of view. Exactly one field is set, or Take and Shown.
type viewStep struct {
	Begin *int32          `json:"begin,omitempty"`
	Take  json.RawMessage `json:"take,omitempty"`
	Shown json.RawMessage `json:"shown,omitempty"`
	Gone  *bool           `json:"gone,omitempty"`
	Next  *int32          `json:"next,omitempty"`
}

// recorder is a view that records the calls of its methods.
type recorder struct {
	view

	steps  []viewStep
	traits []string // The kinds of behaviour that the steps show.
}

func (r *recorder) resumeIndex() int32 {
	next := r.view.resumeIndex()
	r.steps = append(r.steps, viewStep{Next: &next})
	r.addTrait(next == 0 && r.last > 0, "restarts from the beginning")
	return next
}

func (r *recorder) startStream(after int32) int32 {
	r.steps = append(r.steps, viewStep{Begin: &after})
	return r.view.startStream(after)
}

func (r *recorder) restart() bool {
	r.addTrait(true, "events are gone")
	resumable := r.view.restart()
	r.steps = append(r.steps, viewStep{Gone: &resumable})
	r.addTrait(!resumable, "cannot resume")
	return resumable
}

func (r *recorder) newPart(event *parleyv1.TurnEvent) *parleyv1.TurnEvent {
	last, resumed := r.last, r.bytes == unknown
	shown := r.view.newPart(event)
	step := viewStep{Take: eventJSON(event), Shown: eventJSON(shown)}
	r.steps = append(r.steps, step)
	known := ""
	if of, text, _ := delta(event); of != "" && shown != nil {
		_, rest, _ := delta(shown)
		known = (*text)[:len(*text)-len(*rest)]
	}
	r.addTrait(resumed, "resumes an earlier call")
	r.addTrait(shown == nil, "skips known events")
	r.addTrait(shown != nil && known != "", "cuts a text")
	r.addTrait(shown != nil && strings.ContainsFunc(known, func(c rune) bool {
		return c >= 0x80
	}), "cuts a text of many bytes")
	r.addTrait(shown != nil && event.GetIndex() > last+1 && event.GetFinished() == nil, "leaves indexes out")
	r.addTrait(shown != nil && event.GetIndex() >= 1000, "ends with a crash")
	r.addTrait(known != "" && event.GetReasoningDelta() != nil, "cuts reasoning")
	r.addTrait(known != "" && event.GetToolCallDelta() != nil, "cuts arguments")
	r.addTrait(shown.GetToolResult() != nil, "has a tool result")
	r.addTrait(shown.GetAnswerStarted() != nil, "has another message")
	return shown
}

// addTrait adds trait if it applies and is new.
func (r *recorder) addTrait(applies bool, trait string) {
	if applies && !slices.Contains(r.traits, trait) {
		r.traits = append(r.traits, trait)
	}
}

func eventJSON(event *parleyv1.TurnEvent) json.RawMessage {
	if event == nil {
		return json.RawMessage("null")
	}
	text, err := protojson.Marshal(event)
	if err != nil {
		panic(err)
	}
	var compact bytes.Buffer // protojson inserts spaces at random.
	if err := json.Compact(&compact, text); err != nil {
		panic(err)
	}
	return compact.Bytes()
}

// makeViews returns the hand-written cases. It adds each random case that has a trait with fewer than
// enough cases.
func makeViews() views {
	made := views{About: viewsAbout()}
	for _, c := range streamsCases() {
		v, _ := c.run()
		made.add(c.name, c.begin, v)
	}
	for _, w := range resumeCases() {
		v, _, _ := w.run()
		made.add(w.name, w.begin, v)
	}
	const enough, longest = 7, 25
	random := rapid.Custom(followAnyTurn)
	casesWith := map[string]int{}
	for seed := range 2000 {
		v := random.Example(seed)
		if len(v.steps) > longest ||
			!slices.ContainsFunc(v.traits, func(trait string) bool { return casesWith[trait] < enough }) {
			continue
		}
		for _, trait := range v.traits {
			casesWith[trait]++
		}
		began := view{}
		if begin := *v.steps[1].Begin; begin > 0 {
			began = newView("t", begin)
		}
		made.add(fmt.Sprintf("random %d: %s", seed, strings.Join(v.traits, ", ")), began, v)
	}
	return made
}

func (v *views) add(name string, begin view, r *recorder) {
	v.Cases = append(v.Cases, viewCase{Name: name, Turn: begin.turn, After: begin.last, Steps: r.steps})
}

// text returns the content of the file, with one line for each step.
func (v *views) text() []byte {
	var text bytes.Buffer
	line := func(v any) []byte {
		line, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		return line
	}
	between := func(i, n int) string {
		if i < n-1 {
			return ","
		}
		return ""
	}
	fmt.Fprintf(&text, "{\n  \"about\": [\n")
	for i, about := range v.About {
		fmt.Fprintf(&text, "    %s%s\n", line(about), between(i, len(v.About)))
	}
	fmt.Fprintf(&text, "  ],\n  \"cases\": [\n")
	for i, c := range v.Cases {
		head := line(viewCase{Name: c.Name, Turn: c.Turn, After: c.After, Steps: []viewStep{}})
		fmt.Fprintf(&text, "    %s\n", bytes.TrimSuffix(head, []byte("]}")))
		for i, step := range c.Steps {
			fmt.Fprintf(&text, "      %s%s\n", line(step), between(i, len(c.Steps)))
		}
		fmt.Fprintf(&text, "    ]}%s\n", between(i, len(v.Cases)))
	}
	fmt.Fprintf(&text, "  ]\n}\n")
	return text.Bytes()
}

// TestViews checks that views.json is up to date and that view behaves as the file says. The clients in
// other languages are tested against the same file.
func TestViews(t *testing.T) {
	made := makeViews()
	if *update {
		if err := os.WriteFile(viewsFile, made.text(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(viewsFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, made.text()) {
		t.Errorf("%s is not up to date: run this test with -update, then check the changes", viewsFile)
	}
	var file views
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&file); err != nil {
		t.Fatal(err)
	}
	for _, c := range file.Cases {
		t.Run(c.Name, func(t *testing.T) {
			v := newView(c.Turn, c.After)
			for i, step := range c.Steps {
				if got := step.replay(t, &v); !bytes.Equal(line(t, step), line(t, got)) {
					t.Fatalf("step %d is %s, want %s", i, line(t, got), line(t, step))
				}
			}
		})
	}
}

// replay executes the step and returns it with the results.
func (s viewStep) replay(t *testing.T, v *view) viewStep {
	t.Helper()
	switch {
	case s.Begin != nil:
		v.startStream(*s.Begin)
		return s
	case s.Next != nil:
		return viewStep{Next: new(v.resumeIndex())}
	case s.Gone != nil:
		return viewStep{Gone: new(v.restart())}
	default:
		event := &parleyv1.TurnEvent{}
		if err := protojson.Unmarshal(s.Take, event); err != nil {
			t.Fatal(err)
		}
		taken := proto.CloneOf(event)
		return viewStep{Take: eventJSON(event), Shown: eventJSON(v.newPart(taken))}
	}
}

func line(t *testing.T, step viewStep) []byte {
	t.Helper()
	text, err := json.Marshal(step)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
