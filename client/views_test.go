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

var update = flag.Bool("update", false, "write testdata/views.json anew")

const viewsFile = "testdata/views.json"

// viewsAbout says what views.json is, to those who write clients in other languages.
func viewsAbout() []string {
	return []string{
		"What a client shows of a turn whose events come over many streams, read by the tests of all client packages.",
		"Made by `go test ./client -run TestViews -update` from cases picked by hand and from random ones: change those, not this file.",
		"A case is one view, see view.go, used step by step. turn, after: the caller began with ResumeTurn and this turn_id and after_index; left out: with Chat.",
		"begin: a stream begins behind this index.",
		"take: the stream brings this event (proto JSON). shown: what of it the caller is shown; null: nothing. The offset of a text is in bytes of UTF-8.",
		"gone: the server has said EVENTS_GONE; true: there is a way to go on all the same.",
		"next: the index behind which the next stream has to begin.",
	}
}

// views is the file.
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

// viewStep has one of its fields; Shown goes with Take.
type viewStep struct {
	Begin *int32          `json:"begin,omitempty"`
	Take  json.RawMessage `json:"take,omitempty"`
	Shown json.RawMessage `json:"shown,omitempty"`
	Gone  *bool           `json:"gone,omitempty"`
	Next  *int32          `json:"next,omitempty"`
}

// recorder is a view that writes down how it is used.
type recorder struct {
	view

	steps  []viewStep
	traits []string // What is worth telling about them.
}

func (r *recorder) next() int32 {
	next := r.view.next()
	r.steps = append(r.steps, viewStep{Next: &next})
	r.note(next == 0 && r.last > 0, "asks from the start again")
	return next
}

func (r *recorder) begin(after int32) int32 {
	r.steps = append(r.steps, viewStep{Begin: &after})
	return r.view.begin(after)
}

func (r *recorder) gone() bool {
	r.note(true, "events are gone")
	goesOn := r.view.gone()
	r.steps = append(r.steps, viewStep{Gone: &goesOn})
	r.note(!goesOn, "there is no way on")
	return goesOn
}

func (r *recorder) take(event *parleyv1.TurnEvent) *parleyv1.TurnEvent {
	last, elsewhere := r.last, r.bytes == unknown
	shown := r.view.take(event)
	step := viewStep{Take: eventJSON(event), Shown: eventJSON(shown)}
	r.steps = append(r.steps, step)
	known := event.GetTextDelta().GetText()[:len(event.GetTextDelta().GetText())-len(shown.GetTextDelta().GetText())]
	r.note(elsewhere, "begins elsewhere")
	r.note(shown == nil, "skips what is known")
	r.note(shown != nil && known != "", "cuts a text")
	r.note(shown != nil && strings.ContainsFunc(known, func(c rune) bool { return c >= 0x80 }), "cuts a text of many bytes")
	r.note(shown != nil && event.GetIndex() > last+1 && event.GetFinished() == nil, "leaves indexes out")
	r.note(shown != nil && event.GetIndex() >= 1000, "ends with a crash")
	r.note(shown.GetToolResult() != nil, "has a tool's result")
	r.note(shown.GetAnswerStarted() != nil, "has another message")
	return shown
}

func (r *recorder) note(is bool, trait string) {
	if is && !slices.Contains(r.traits, trait) {
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
	var compact bytes.Buffer // protojson puts in blanks at random.
	if err := json.Compact(&compact, text); err != nil {
		panic(err)
	}
	return compact.Bytes()
}

// makeViews makes the cases: those picked by hand, and of the random ones the first that have
// what few before them had.
func makeViews() views {
	made := views{About: viewsAbout()}
	for _, c := range cuts() {
		v, _ := c.run()
		made.add(c.name, c.begin, v)
	}
	for _, w := range ways() {
		v, _, _ := w.run()
		made.add(w.name, w.begin, v)
	}
	const enough, longest = 7, 25
	random := rapid.Custom(followAnyTurn)
	had := map[string]int{}
	for seed := range 2000 {
		v := random.Example(seed)
		if len(v.steps) > longest || !slices.ContainsFunc(v.traits, func(trait string) bool { return had[trait] < enough }) {
			continue
		}
		for _, trait := range v.traits {
			had[trait]++
		}
		began := view{}
		if begin := *v.steps[1].Begin; begin > 0 {
			began = viewFrom("t", begin)
		}
		made.add(fmt.Sprintf("random %d: %s", seed, strings.Join(v.traits, ", ")), began, v)
	}
	return made
}

func (v *views) add(name string, begin view, r *recorder) {
	v.Cases = append(v.Cases, viewCase{Name: name, Turn: begin.turn, After: begin.last, Steps: r.steps})
}

// text is the file with a line for each step.
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

// TestViews holds the view to the file that clients in other languages are held to, and the
// file to what it is made from.
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
		t.Errorf("%s is not what it would be made of now: add -update to this test, then look at what has changed", viewsFile)
	}
	var file views
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&file); err != nil {
		t.Fatal(err)
	}
	for _, c := range file.Cases {
		t.Run(c.Name, func(t *testing.T) {
			v := viewFrom(c.Turn, c.After)
			for i, step := range c.Steps {
				if got := step.replay(t, &v); !bytes.Equal(line(t, step), line(t, got)) {
					t.Fatalf("step %d is %s, want %s", i, line(t, got), line(t, step))
				}
			}
		})
	}
}

// replay makes the step and returns what it gives.
func (s viewStep) replay(t *testing.T, v *view) viewStep {
	t.Helper()
	switch {
	case s.Begin != nil:
		v.begin(*s.Begin)
		return s
	case s.Next != nil:
		return viewStep{Next: new(v.next())}
	case s.Gone != nil:
		return viewStep{Gone: new(v.gone())}
	default:
		event := &parleyv1.TurnEvent{}
		if err := protojson.Unmarshal(s.Take, event); err != nil {
			t.Fatal(err)
		}
		taken := proto.CloneOf(event)
		return viewStep{Take: eventJSON(event), Shown: eventJSON(v.take(taken))}
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
