package storetest

import (
	"crypto/sha256"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/structpb"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

func user(text string) *parleyv1.Message {
	return &parleyv1.Message{Id: "id of " + text, Role: parleyv1.Role_ROLE_USER, Content: text}
}

// assistant returns an answer with structured data of the given types.
func assistant(text string, types ...string) *parleyv1.Message {
	m := &parleyv1.Message{Id: "id of " + text, Role: parleyv1.Role_ROLE_ASSISTANT, Content: text, Agent: "writer"}
	for _, t := range types {
		m.StructuredData = append(m.StructuredData, &parleyv1.StructuredData{Type: t, Value: structpb.NewStringValue(text)})
	}
	return m
}

// calling returns a message of an assistant that calls tools, with the ids of the calls.
func calling(ids ...string) *parleyv1.Message {
	m := assistant("calls")
	for _, id := range ids {
		m.ToolCalls = append(m.ToolCalls, &parleyv1.ToolCall{Id: id, Name: "find"})
	}
	return m
}

// result returns the result of a tool call.
func result(id string) *parleyv1.Message {
	return &parleyv1.Message{
		Id: "result of " + id, Role: parleyv1.Role_ROLE_TOOL, ToolResult: &parleyv1.ToolResult{CallId: id, Content: "found"},
	}
}

// turnEvents returns events with a value in every field, derived from seed.
func turnEvents(seed int32) *storev1.TurnEvents {
	e := &storev1.TurnEvents{
		TurnId: "forged", Started: seed, Created: true, HistoryCount: -seed, Finished: seed + 100, LostAfter: seed + 50,
		ConversationVersion: -7,
		Messages: []*storev1.MessageEvents{
			{AnswerStarted: 2, FirstText: 3, LastText: seed, StructuredData: []int32{4, seed}, ToolCalls: []int32{5, 1 << 30}},
			{ToolResult: seed},
		},
	}
	e.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), 7))
	return e
}

// keptEvents returns turnEvents(seed) as a store stores it.
func keptEvents(seed int32, turn string, version int32) *storev1.TurnEvents {
	e := turnEvents(seed)
	e.TurnId, e.ConversationVersion = turn, version
	return e
}

// request returns a Request of AppendMessages with this id and content.
func request(id, content string) *store.Request {
	return &store.Request{ID: id, Method: "AppendMessages", Digest: sha256.Sum256([]byte(content))}
}
