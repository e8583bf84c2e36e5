package a2a

import (
	"bytes"
	"encoding/json"
	"time"

	sdk "github.com/a2aproject/a2a-go/v2/a2a"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	// maxIDBytes is the maximum length of an id that the remote agent chooses.
	maxIDBytes = 256
	// maxArtifacts is the maximum number of artifacts of a task.
	maxArtifacts = 4096
)

// RecordKey returns the key of the record in which the agent with this name keeps its state of a conversation.
func RecordKey(agentName string) string { return "a2a/" + agentName }

// state is the value of the record, as JSON: what connects a conversation with the remote agent.
type state struct {
	// UID of the conversation. A copy of the conversation has another one and starts a new context, so that two
	// conversations never share one.
	UID string `json:"uid"`
	// ContextID is the context of the remote agent.
	ContextID string `json:"contextId"`
	// TaskID is the task that waits for input; empty if none does.
	TaskID string `json:"taskId,omitempty"`
	// Status identifies the status in which the task began to wait.
	Status string `json:"status,omitempty"`
	// Artifacts of the task that the conversation has already.
	Artifacts map[sdk.ArtifactID]extent `json:"artifacts,omitempty"`
}

// extent is how much of an artifact an answer has. An artifact may grow.
type extent struct {
	Bytes int    `json:"bytes,omitempty"` // of its text
	Sum   uint64 `json:"sum,omitempty"`   // of these bytes
	Parts int    `json:"parts,omitempty"` // that are no text
}

// readState returns the state in a record, which may be nil. The result is empty if the record belongs to another
// conversation or is malformed, or if the conversation has lost its history: then the remote agent must not remember
// it either.
func readState(record *parleyv1.Record, request *parleyv1.RespondRequest) state {
	var s state
	c := request.GetConversation()
	if json.Unmarshal(record.GetValue(), &s) != nil || s.UID != c.GetUid() ||
		int(c.GetMessageCount()) <= len(inputs(request.GetMessages())) {
		return state{}
	}
	for _, e := range s.Artifacts {
		if e.Bytes < 0 || e.Parts < 0 {
			return state{} // A client has written the record.
		}
	}
	return s
}

// piece returns the piece that writes the state, nil if before is the same.
func (s state) piece(agentName string, before state) (*parleyv1.RespondResponse, error) {
	value, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	old, err := json.Marshal(before)
	if err != nil || bytes.Equal(old, value) {
		return nil, err
	}
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Record{Record: &parleyv1.RecordWrite{
		Key: RecordKey(agentName), Value: value, MediaType: mediaJSON,
	}}}, nil
}

// mark identifies a status of a task.
func mark(s sdk.TaskStatus) string {
	if s.Message != nil && s.Message.ID != "" {
		return s.Message.ID
	}
	if s.Timestamp != nil {
		return s.Timestamp.UTC().Format(time.RFC3339Nano)
	}
	return ""
}
