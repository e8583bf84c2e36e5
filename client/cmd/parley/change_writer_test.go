package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// noon returns the time of all changes in these tests.
func noon() time.Time { return time.Date(2026, time.November, 20, 12, 0, 5, 0, time.UTC) }

// newChange returns a change of a kind, without payload.
func newChange(id string, kind parleyv1.ChangeKind) *parleyv1.ConversationChange {
	return &parleyv1.ConversationChange{
		Cursor: "c", Kind: kind, ConversationId: id, Version: 7,
		Time: timestamppb.New(noon().In(time.FixedZone("", 3600))), // It is printed in the time zone of the console's clock.
	}
}

// conversationChange returns a change of the conversation a with a conversation.
func conversationChange(kind parleyv1.ChangeKind, c *parleyv1.Conversation) *parleyv1.ConversationChange {
	change := newChange("a", kind)
	change.Payload = &parleyv1.ConversationChange_Conversation{Conversation: c}
	return change
}

// withRemoved returns a change that cleared the conversation a, of which one message is left.
func withRemoved(removed *parleyv1.RemovedMessages) *parleyv1.ConversationChange {
	change := conversationChange(parleyv1.ChangeKind_CHANGE_KIND_CLEARED, &parleyv1.Conversation{MessageCount: 1})
	change.Removed = removed
	return change
}

// messageChange returns an appended message of the conversation a.
func messageChange(m *parleyv1.Message) *parleyv1.ConversationChange {
	change := newChange("a", parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED)
	change.Payload = &parleyv1.ConversationChange_Message{Message: m}
	return change
}

// recordChange returns a change of a record of the conversation a.
func recordChange(record *parleyv1.RecordChange) *parleyv1.ConversationChange {
	change := newChange("a", parleyv1.ChangeKind_CHANGE_KIND_RECORD)
	change.Record = record
	return change
}

// turnChange returns an event of a turn.
func turnChange(id, turn string, event *parleyv1.TurnEvent) *parleyv1.ConversationChange {
	change := newChange(id, parleyv1.ChangeKind_CHANGE_KIND_TURN)
	event.TurnId = turn
	change.Payload = &parleyv1.ConversationChange_TurnEvent{TurnEvent: event}
	return change
}

func gap() *parleyv1.ConversationChange { return newChange("", parleyv1.ChangeKind_CHANGE_KIND_GAP) }

func heartbeat() *parleyv1.ConversationChange {
	return newChange("", parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT)
}

// printed returns what a changeWriter prints for changes.
func printed(t *testing.T, c console, watched []string, changes ...*parleyv1.ConversationChange) string {
	t.Helper()
	var out strings.Builder
	c.program, c.out, c.now = "parley", &out, noon
	if c.getenv == nil {
		c.getenv = func(string) string { return "" }
	}
	lines := changeWriter{app: &app{console: c}, watched: watched}
	for _, change := range changes {
		if err := lines.show(change); err != nil {
			t.Fatal(err)
		}
	}
	if err := lines.end(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestChangeWriter(t *testing.T) {
	user, assistant := parleyv1.Role_ROLE_USER, parleyv1.Role_ROLE_ASSISTANT
	withoutTime := messageChange(&parleyv1.Message{Sequence: 1, Role: user, Content: "hi"})
	withoutTime.Time = nil
	failed := finished(parleyv1.TurnState_TURN_STATE_FAILED)
	failed.GetFinished().GetTurn().Error = &parleyv1.TurnError{Reason: "AGENT_FAILED", Message: "out of\nideas"}
	tests := []struct {
		change *parleyv1.ConversationChange
		want   string
	}{
		{heartbeat(), ""},
		{gap(), "changes are missing here; see the current state with: parley list --order updated"},
		{conversationChange(parleyv1.ChangeKind_CHANGE_KIND_CREATED, &parleyv1.Conversation{Id: "a"}), "a created"},
		{
			conversationChange(parleyv1.ChangeKind_CHANGE_KIND_CREATED, &parleyv1.Conversation{Id: "a", Title: "The\nshop"}),
			"a created: The shop",
		},
		{
			conversationChange(parleyv1.ChangeKind_CHANGE_KIND_CREATED, &parleyv1.Conversation{
				ForkedFrom: &parleyv1.ForkOrigin{ConversationId: "b", Sequence: 3},
			}),
			"a forked from b at 3",
		},
		{
			conversationChange(parleyv1.ChangeKind_CHANGE_KIND_UPDATED, &parleyv1.Conversation{Id: "a"}),
			"a updated to version 7",
		},
		{
			conversationChange(parleyv1.ChangeKind_CHANGE_KIND_UPDATED, &parleyv1.Conversation{
				ActiveAgent: &parleyv1.ActiveAgent{Agent: "writer", Reason: "why not"},
			}),
			"a updated to version 7, active agent writer: why not",
		},
		{
			conversationChange(parleyv1.ChangeKind_CHANGE_KIND_CLEARED, &parleyv1.Conversation{MessageCount: 1}),
			"a cleared, 1 message left",
		},
		{
			withRemoved(&parleyv1.RemovedMessages{Count: 2, AfterSequence: 4}),
			"a cleared 2 messages after 4, 1 message left",
		},
		{
			withRemoved(&parleyv1.RemovedMessages{Count: 1, Sequences: []int32{3}}),
			"a cleared 1 message, 1 message left",
		},
		{newChange("a", parleyv1.ChangeKind_CHANGE_KIND_DELETED), "a deleted"},
		{newChange("a", parleyv1.ChangeKind_CHANGE_KIND_EXPIRED), "a expired"},
		{newChange("a", parleyv1.ChangeKind_CHANGE_KIND_EVICTED), "a evicted at capacity"},
		{recordChange(&parleyv1.RecordChange{Key: "k\x1b/1", Revision: 7}), "a record k\uFFFD/1 written, revision 7"},
		{recordChange(&parleyv1.RecordChange{Key: "k", Revision: 8, Deleted: true}), "a record k deleted, revision 8"},
		{newChange("a", 99), "a 99"},
		{withoutTime, "a message 1 user: hi"},
		{
			messageChange(&parleyv1.Message{Sequence: 3, Role: user, Content: "And the\n second\x1b[2J one?"}),
			"a message 3 user: And the second\uFFFD[2J one?",
		},
		{
			messageChange(&parleyv1.Message{
				Sequence: 4, Role: assistant, Agent: "writer", Status: parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE,
				Content: strings.Repeat("ö", 300),
			}),
			"a message 4 assistant writer, incomplete: " + strings.Repeat("ö", 199) + "…",
		},
		{
			messageChange(&parleyv1.Message{
				Sequence: 5, Role: assistant, StructuredData: []*parleyv1.StructuredData{
					{Type: "list", Value: structpb.NewNumberValue(1)},
				},
				ToolCalls:   []*parleyv1.ToolCall{{Id: "c1", Name: "price", Arguments: "{}"}},
				Attachments: []*parleyv1.Attachment{{Uri: "s3://b/k"}},
			}),
			"a message 5 assistant: structured data list: 1; tool call price c1: {}; attachment: s3://b/k",
		},
		{
			messageChange(&parleyv1.Message{
				Sequence: 6, Role: parleyv1.Role_ROLE_TOOL,
				ToolResult: &parleyv1.ToolResult{CallId: "c1", Name: "price", Content: "50 cents"},
			}),
			"a message 6 tool: tool result price c1: 50 cents",
		},
		{
			turnChange("a", "t", &parleyv1.TurnEvent{
				Event: &parleyv1.TurnEvent_Started{Started: &parleyv1.TurnStarted{Agent: "writer"}},
			}),
			"a the turn started; writer answers",
		},
		{turnChange("a", "t", queued(2)), "a waiting, number 2 in the queue"},
		{turnChange("a", "t", handover("other")), "a other answers"},
		{
			turnChange("a", "t", &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Progress{Progress: &parleyv1.TurnProgress{}}}),
			"",
		},
		{
			turnChange("a", "t", &parleyv1.TurnEvent{
				Event: &parleyv1.TurnEvent_ToolCall{ToolCall: &parleyv1.ToolCall{Id: "c1", Name: "price"}},
			}),
			"a tool call price c1:",
		},
		{turnChange("a", "t", finished(parleyv1.TurnState_TURN_STATE_COMPLETED)), "a the turn completed"},
		{
			turnChange("a", "t", finished(parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED)),
			"a the turn waits for the results of its tool calls",
		},
		{turnChange("a", "t", failed), "a the turn failed: out of ideas (AGENT_FAILED)"},
		{turnChange("a", "t", &parleyv1.TurnEvent{}), ""},
	}
	for _, test := range tests {
		want := ""
		if test.want != "" {
			want = "12:00:05 " + test.want + "\n"
		}
		if diff := cmp.Diff(want, printed(t, console{}, nil, test.change)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", test.change, diff)
		}
	}
	if got, want := printed(t, console{}, []string{"a"}, gap()), "12:00:05 changes are missing here; see the current "+
		"state with: parley show a\n"; got != want {
		t.Errorf("gap of one watched conversation = %q, want %q", got, want)
	}
}

// TestChangeWriterPrintsAnswersAsTheyArrive checks that the text of an answer continues its line unless
// another change was printed in between.
func TestChangeWriterPrintsAnswersAsTheyArrive(t *testing.T) {
	got := printed(t, console{}, nil,
		turnChange("a", "t1", delta("one ")), turnChange("a", "t1", delta("two\n")),
		turnChange("a", "t1", delta("three\n\n")), heartbeat(),
		turnChange("b", "t2", delta("other\x1b[1m")), turnChange("a", "t1", delta("four")), turnChange("a", "t1", delta("")),
		messageChange(&parleyv1.Message{Sequence: 2, Content: "one"}),
		turnChange("a", "t1", finished(parleyv1.TurnState_TURN_STATE_COMPLETED)), turnChange("b", "t2", delta("end\n")))
	want := `12:00:05 a answer: one two
         three
12:00:05 b answer: other` + "\x1b[1m" + `
12:00:05 a answer: four
12:00:05 a message 2 unspecified: one
12:00:05 a the turn completed
12:00:05 b answer: end
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

func TestColours(t *testing.T) {
	changes := []*parleyv1.ConversationChange{
		newChange("a", parleyv1.ChangeKind_CHANGE_KIND_DELETED), turnChange("a", "t1", delta("\x1b[2J")),
	}
	without := "12:00:05 a deleted\n12:00:05 a answer: \uFFFD[2J\n"
	tests := []struct {
		name     string
		terminal bool
		noColour string
		want     string
	}{
		{
			"a terminal", true, "",
			"\x1b[2m12:00:05\x1b[0m \x1b[1ma\x1b[0m \x1b[31mdeleted\x1b[0m\n\x1b[2m12:00:05\x1b[0m \x1b[1ma\x1b[0m " +
				"\x1b[32manswer: \x1b[0m\uFFFD[2J\n",
		},
		{"a terminal without colours", true, "1", without},
		{"a file", false, "", strings.ReplaceAll(without, "\uFFFD", "\x1b")},
	}
	for _, test := range tests {
		getenv := func(name string) string { return map[string]string{"NO_COLOR": test.noColour}[name] }
		if diff := cmp.Diff(test.want, printed(t, console{outTerminal: test.terminal, getenv: getenv}, nil, changes...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}
