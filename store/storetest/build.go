package storetest

import (
	"crypto/sha256"

	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

func user(text string) *parleyv1.Message {
	return &parleyv1.Message{Id: "id of " + text, Role: parleyv1.Role_ROLE_USER, Content: text}
}

// assistant is an answer that carries structured data of some types.
func assistant(text string, types ...string) *parleyv1.Message {
	m := &parleyv1.Message{Id: "id of " + text, Role: parleyv1.Role_ROLE_ASSISTANT, Content: text, Agent: "writer"}
	for _, t := range types {
		m.StructuredData = append(m.StructuredData, &parleyv1.StructuredData{Type: t, Value: structpb.NewStringValue(text)})
	}
	return m
}

// request is an AppendMessages with that id and content.
func request(id, content string) *store.Request {
	return &store.Request{ID: id, Method: "AppendMessages", Digest: sha256.Sum256([]byte(content))}
}
