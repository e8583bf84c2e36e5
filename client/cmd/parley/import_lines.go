package main

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	// partBytes limits the messages of one request. The server's limits are 3 MiB of messages in a
	// conversation and 4 MiB in a request.
	partBytes = 1 << 20
	// recordPartBytes limits the messages and records of one request that has records. The server imports
	// the first 3 MiB of records in one commit with the conversation.
	recordPartBytes = 3 << 20
	// maxPartRecords is the limit of records in one request.
	maxPartRecords = 1000
	// maxID is the limit of proto/parley/v1/conversation.proto.
	maxID = 256
)

// parseConversation returns the conversation of a line. It is an error if the id is empty or too long.
func parseConversation(line []byte) (*parleyv1.ExportConversationsResponse, error) {
	conversation := &parleyv1.ExportConversationsResponse{}
	if err := unmarshal(line, conversation); err != nil {
		return nil, err
	}
	if n := len(conversation.GetConversation().GetId()); n == 0 || n > maxID {
		return nil, fmt.Errorf("the conversation needs an id of 1 to %d bytes", maxID)
	}
	return conversation, nil
}

// requests divides a conversation into requests within the server's limits. It returns an error if one message, one
// record or the header exceeds the limit of a request.
func requests(
	conversation *parleyv1.ExportConversationsResponse, overwrite bool,
) ([]*parleyv1.ImportConversationsRequest, error) {
	var parts []*parleyv1.ImportConversationsRequest
	var part *parleyv1.ImportConversationsRequest
	addPart := func() {
		part = &parleyv1.ImportConversationsRequest{Conversation: conversation.GetConversation(), Overwrite: overwrite}
		parts = append(parts, part)
	}
	addPart()
	total := 0
	for _, message := range conversation.GetMessages() {
		n := proto.Size(message)
		if total > 0 && total+n > partBytes {
			addPart()
			total = 0
		}
		part.Messages = append(part.Messages, message)
		total += n
	}
	for _, record := range conversation.GetRecords() {
		n := proto.Size(record)
		if total > 0 && total+n > recordPartBytes || len(part.GetRecords()) == maxPartRecords {
			addPart()
			total = 0
		}
		part.Records = append(part.Records, record)
		total += n
	}
	for _, part := range parts {
		if n := proto.Size(part); n > maxInput {
			return nil, fmt.Errorf("a message, a record or the header has %s; the limit of a request is %s",
				size(int64(n)), size(maxInput))
		}
	}
	return parts, nil
}
