package a2a

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	sdk "github.com/a2aproject/a2a-go/v2/a2a"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/a2aparts"
	"github.com/parleyhq/parley/server/internal/agent"
)

const (
	maxTypeBytes     = 128
	maxProgressBytes = 1 << 10
)

// errStopped says that the consumer of the answer has stopped.
var errStopped = errors.New("the consumer has stopped")

// answer converts what the remote agent sends to pieces. It belongs to one turn.
type answer struct {
	yield     func(*parleyv1.RespondResponse, error) bool
	artifacts map[sdk.ArtifactID]extent // that this answer or an earlier one has
	source    string                    // of the last text
	text      strings.Builder
	hasOutput bool   // text, data or a call was sent
	progress  string // the last one of the remote agent
}

func newAnswer(yield func(*parleyv1.RespondResponse, error) bool, earlier state) *answer {
	a := &answer{yield: yield, artifacts: maps.Clone(earlier.Artifacts)}
	if a.artifacts == nil {
		a.artifacts = make(map[sdk.ArtifactID]extent)
	}
	return a
}

func (a *answer) send(piece *parleyv1.RespondResponse) error {
	if !a.yield(piece, nil) {
		return errStopped
	}
	return nil
}

// addText sends text. Texts of different sources become paragraphs.
func (a *answer) addText(source, text string) error {
	if text == "" {
		return nil
	}
	if a.text.Len() > 0 && a.source != source {
		text = "\n\n" + text
	}
	a.source, a.hasOutput = source, true
	a.text.WriteString(text)
	return a.send(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: text}})
}

// addProgress sends a note for readers, unless it is empty.
func (a *answer) addProgress(text string) error {
	text = agent.Truncate(text, maxProgressBytes)
	if text == "" {
		return nil
	}
	a.progress = text
	return a.sendProgress(text)
}

func (a *answer) sendProgress(text string) error {
	return a.send(&parleyv1.RespondResponse{
		Piece: &parleyv1.RespondResponse_Progress{Progress: &parleyv1.TurnProgress{Text: text}},
	})
}

// addPart sends a part that is no text. It ignores parts of an unknown kind, because the remote agent may be newer.
func (a *answer) addPart(p *sdk.Part) error {
	kind := a2aparts.TypeData
	var value any
	switch content := p.Content.(type) {
	case sdk.Data:
		value = content.Value
		if of, ok := p.Metadata[a2aparts.TypeKey].(string); ok && of != "" {
			kind = agent.Truncate(of, maxTypeBytes)
		}
	case sdk.URL, sdk.Raw:
		kind, value = a2aparts.TypeFile, a2aparts.File(p)
	default:
		return nil
	}
	converted, err := structpb.NewValue(value)
	if err != nil {
		return &agent.Error{Message: "the agent sent data that is not valid JSON", Detail: err.Error()}
	}
	a.hasOutput = true
	return a.send(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_StructuredData{
		StructuredData: &parleyv1.StructuredData{Type: kind, Value: converted},
	}})
}

// addMessage sends a message of the remote agent. A text that the answer has already is not repeated: some agents end
// a task with all of its text. If withCalls is set, tool calls become calls of the answer.
func (a *answer) addMessage(m *sdk.Message, withCalls bool) error {
	if m == nil {
		return nil
	}
	if text := textOf(m); text != strings.TrimSpace(a.text.String()) {
		if err := a.addText("message "+m.ID, text); err != nil {
			return err
		}
	}
	for _, p := range m.Parts {
		if p == nil {
			continue
		}
		call, isCall := a2aparts.Call(p)
		var err error
		switch {
		case !isCall || !withCalls:
			err = a.addPart(p)
		case call == nil:
			err = &agent.Error{Message: "the agent sent a malformed tool call, want " +
				`{"toolCall": {"id": "…", "name": "…", "arguments": {…}}}`}
		default:
			a.hasOutput = true
			err = a.send(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolCall{ToolCall: call}})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// textOf returns the text of a message, with a line for each part.
func textOf(m *sdk.Message) string {
	if m == nil {
		return ""
	}
	var lines []string
	for _, p := range m.Parts {
		if p != nil && p.Text() != "" {
			lines = append(lines, p.Text())
		}
	}
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

// addArtifact sends what is new in an artifact. If isAppend is set, all of it is; otherwise it is the complete
// artifact. If an artifact was replaced by another content, that follows as a new paragraph. A part of a task that is
// read later may be older than what was received, so a shorter artifact of it has nothing new.
func (a *answer) addArtifact(artifact *sdk.Artifact, isAppend, isRead bool) error {
	if artifact == nil {
		return nil
	}
	seen, known := a.artifacts[artifact.ID]
	switch {
	case len(artifact.ID) > maxIDBytes:
		return &agent.Error{Message: fmt.Sprintf("the agent sent an artifact with an id of more than %d bytes", maxIDBytes)}
	case !known && len(a.artifacts) == maxArtifacts:
		return &agent.Error{Message: fmt.Sprintf("the agent sent more than %d artifacts", maxArtifacts)}
	}
	var text strings.Builder
	var others []*sdk.Part
	for _, p := range artifact.Parts {
		switch {
		case p == nil:
		case p.Text() != "":
			text.WriteString(p.Text())
		default:
			others = append(others, p)
		}
	}
	source, fresh, all := "artifact "+string(artifact.ID), text.String(), text.String()
	switch {
	case isAppend:
	case len(all) >= seen.Bytes && sumOf(0, all[:seen.Bytes]) == seen.Sum:
		fresh, others = all[seen.Bytes:], others[min(seen.Parts, len(others)):]
	case isRead && len(all) < seen.Bytes:
		return nil
	default:
		source, seen = source+" replaced", extent{}
		if a.source == source {
			source += " again"
		}
	}
	a.artifacts[artifact.ID] = extent{
		Bytes: seen.Bytes + len(fresh), Sum: sumOf(seen.Sum, fresh), Parts: seen.Parts + len(others),
	}
	if err := a.addText(source, fresh); err != nil {
		return err
	}
	for _, p := range others {
		if err := a.addPart(p); err != nil {
			return err
		}
	}
	return nil
}

// sumOf continues the sum of a text, which is 0 for an empty one, with more text: FNV-1a with 64 bits.
func sumOf(sum uint64, text string) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	if sum == 0 && text != "" {
		sum = offset
	}
	for i := range len(text) {
		sum = (sum ^ uint64(text[i])) * prime
	}
	return sum
}
