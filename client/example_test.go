package client_test

import (
	"context"
	"fmt"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// README.md contains the code between the deferred Close and the output, word for word.

// An agent service appends messages in one step: either all of them are stored or none.
func ExampleClient_append() {
	ctx := context.Background()
	c, err := client.Dial(exampleServer()) // In a program: "127.0.0.1:50051", the address of `make run`.
	if err != nil {
		fmt.Println(err) // The address or an option is invalid; nothing has been sent.
		return
	}
	defer c.Close()

	reply, err := c.AppendMessages(ctx, &parleyv1.AppendMessagesRequest{
		ConversationId: "garden", // Created if it does not exist.
		Messages: []*parleyv1.Message{
			{Role: parleyv1.Role_ROLE_USER, Content: "Which herbs like shade?"},
			{
				Role: parleyv1.Role_ROLE_ASSISTANT, Agent: "gardener", Content: "Mint and parsley.",
				Summary: "named herbs for shade",
			},
		},
	})
	if err != nil {
		fmt.Println(client.Reason(err), err)
		return
	}
	for _, message := range reply.GetAppended() {
		fmt.Println("stored as message", message.GetSequence())
	}
	// Output:
	// stored as message 1
	// stored as message 2
}

// A program that edits a history replaces the end of it in one step.
func ExampleClient_replace() {
	ctx := context.Background()
	c, err := client.Dial(exampleServer(garden()...)) // In a program: "127.0.0.1:50051", the address of `make run`.
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	reply, err := c.AppendMessages(ctx, &parleyv1.AppendMessagesRequest{
		ConversationId:       "garden",
		ReplaceAfterSequence: new(int32(1)), // Keeps the question.
		Messages: []*parleyv1.Message{
			{Role: parleyv1.Role_ROLE_ASSISTANT, Agent: "gardener", Content: "Mint, parsley and chervil."},
		},
	})
	if err != nil {
		fmt.Println(client.Reason(err), err)
		return
	}
	fmt.Println("replaced by message", reply.GetAppended()[0].GetSequence())
	// Output:
	// replaced by message 3
}

// A program that appends many messages does not wait for each reply.
func ExampleClient_NewAppender() {
	ctx := context.Background()
	c, err := client.Dial(exampleServer()) // In a program: "127.0.0.1:50051", the address of `make run`.
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	appender := c.NewAppender(ctx)
	var results []*client.AppendResult
	for _, content := range []string{"Sow the mint.", "Water the parsley.", "Cut the sage."} {
		results = append(results, appender.Append(ctx, &parleyv1.AppendMessagesRequest{
			ConversationId: "work",
			Messages:       []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: content}},
		}))
	}
	for _, result := range results {
		reply, err := result.Wait(ctx)
		if err != nil { // Only this request was refused, unless appender.Err() is not nil.
			fmt.Println(client.Reason(err), err)
			continue
		}
		fmt.Println("stored as message", reply.GetAppended()[0].GetSequence())
	}
	if err := appender.Close(); err != nil {
		fmt.Println(client.Reason(err), err)
		return
	}
	// Output:
	// stored as message 1
	// stored as message 2
	// stored as message 3
}

// To continue a conversation, a program loads it with its newest messages.
func ExampleClient_load() {
	ctx := context.Background()
	c, err := client.Dial(exampleServer(garden()...)) // In a program: "127.0.0.1:50051", the address of `make run`.
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	reply, err := c.LoadConversation(ctx, &parleyv1.LoadConversationRequest{ConversationId: "garden"})
	if err != nil {
		fmt.Println(client.Reason(err), err)
		return
	}
	for _, message := range reply.GetMessages() {
		fmt.Println(message.GetRole(), message.GetContent())
	}
	// Output:
	// ROLE_USER Which herbs like shade?
	// ROLE_ASSISTANT Mint and parsley.
}

// A service makes a conversation that loses nothing when it loads it first.
func ExampleClient_keep() {
	ctx := context.Background()
	c, err := client.Dial(exampleServer()) // In a program: "127.0.0.1:50051", the address of `make run`.
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	reply, err := c.LoadConversation(ctx, &parleyv1.LoadConversationRequest{
		ConversationId: "archive",
		CreateWith: &parleyv1.Conversation{
			Title:     "Archive",
			Retention: &parleyv1.Retention{KeepAll: true, NoExpiry: true, NoEviction: true},
		},
	})
	if err != nil {
		fmt.Println(client.Reason(err), err)
		return
	}
	fmt.Println(reply.GetConversation().GetTitle(), reply.GetCreated())
	// Output:
	// Archive true
}

// A program keeps the state of its work beside the messages.
func ExampleClient_Records() {
	ctx := context.Background()
	c, err := client.Dial(exampleServer()) // In a program: "127.0.0.1:50051", the address of `make run`.
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	type state struct {
		Step int `json:"step"`
	}
	first, err := client.JSONWrite("state", state{Step: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = c.AppendMessages(ctx, &parleyv1.AppendMessagesRequest{
		ConversationId: "garden",
		Messages:       []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: "Sow the mint."}},
		Records:        []*parleyv1.RecordWrite{first}, // In the same commit as the message.
	})
	if err != nil {
		fmt.Println(client.Reason(err), err)
		return
	}

	records := c.Records("garden")
	present, revision, err := client.GetJSON[state](ctx, records, "state")
	if err != nil {
		fmt.Println(client.Reason(err), err)
		return
	}
	fmt.Println("step", present.Step)

	next, err := client.JSONWrite("state", state{Step: present.Step + 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	next.IfRevision = new(revision) // Otherwise the program would replace what another one wrote since.
	if _, err = records.Put(ctx, next); err != nil {
		if mismatch, ok := client.RevisionMismatch(err); ok {
			fmt.Println("read", mismatch.Key, "again, it is at revision", mismatch.CurrentRevision)
			return
		}
		fmt.Println(client.Reason(err), err)
		return
	}

	for record, err := range records.List(ctx, &parleyv1.ListRecordsRequest{KeysOnly: true}) {
		if err != nil {
			fmt.Println(client.Reason(err), err)
			return
		}
		fmt.Println(record.GetKey(), "has", record.GetSizeBytes(), "bytes")
	}
	// Output:
	// step 1
	// state has 10 bytes
}

// A front end asks an agent and shows the answer as it arrives.
func ExampleClient_Chat() {
	ctx := context.Background()
	c, err := client.Dial(exampleServer()) // In a program: "127.0.0.1:50051", the address of `make run`.
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	request := &parleyv1.ChatRequest{ConversationId: "garden", Content: "And which like sun?"}
	for event, err := range c.Chat(ctx, request) {
		if err != nil {
			fmt.Println(client.Reason(err), err)
			return
		}
		switch step := event.GetEvent().(type) {
		case *parleyv1.TurnEvent_TextDelta:
			fmt.Print(step.TextDelta.GetText())
		case *parleyv1.TurnEvent_Finished:
			fmt.Println()
			fmt.Println(step.Finished.GetTurn().GetState())
		}
	}
	// Output:
	// And which like sun?
	// TURN_STATE_COMPLETED
}

// A coordinator reads the routing summary and makes an agent the active one.
func ExampleClient_route() {
	ctx := context.Background()
	c, err := client.Dial(exampleServer(garden()...)) // In a program: "127.0.0.1:50051", the address of `make run`.
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	reply, err := c.GetRoutingSummary(ctx, &parleyv1.GetRoutingSummaryRequest{ConversationId: "garden"})
	if err != nil {
		fmt.Println(client.Reason(err), err)
		return
	}
	summary := reply.GetSummary()
	fmt.Println(summary.GetText())
	for _, use := range summary.GetRecentAgents() {
		fmt.Println(use.GetAgent(), "wrote message", use.GetLastSequence())
	}

	_, err = c.SetActiveAgent(ctx, &parleyv1.SetActiveAgentRequest{
		ConversationId: "garden",
		Agent:          "echo", // Answers the next messages of Chat, unless a request names another agent.
		Reason:         "the questions get simpler",
		IfVersion:      new(summary.GetVersion()), // ABORTED if the conversation has changed since the summary.
	})
	if err != nil {
		fmt.Println(client.Reason(err), err)
		return
	}
	// Output:
	// Previous: named herbs for shade
	// gardener wrote message 2
}

// A page that lists conversations keeps its list up to date. Leaving the loop ends the watch.
func ExampleClient_WatchConversations() {
	ctx := context.Background()
	c, err := client.Dial(exampleServer(garden()...)) // In a program: "127.0.0.1:50051", the address of `make run`.
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	list, err := c.ListConversations(ctx, &parleyv1.ListConversationsRequest{})
	if err != nil {
		fmt.Println(client.Reason(err), err)
		return
	}
	for _, entry := range list.GetConversations() {
		fmt.Println(entry.GetConversation().GetId(), "ends with", entry.GetPreview())
	}

	// Changes that are committed after the list follow its cursor, even those before the watch begins.
	_, err = c.CreateConversation(ctx, &parleyv1.CreateConversationRequest{
		Conversation: &parleyv1.Conversation{Title: "Kitchen"},
	})
	if err != nil {
		fmt.Println(client.Reason(err), err)
		return
	}

	request := &parleyv1.WatchConversationsRequest{Cursor: list.GetWatchCursor()}
	for change, err := range c.WatchConversations(ctx, request) {
		if err != nil {
			fmt.Println(client.Reason(err), err)
			return
		}
		switch change.GetKind() {
		case parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT:
			fmt.Println("the watch is active")
		case parleyv1.ChangeKind_CHANGE_KIND_GAP:
			fmt.Println("changes are missing: list again")
		case parleyv1.ChangeKind_CHANGE_KIND_CREATED:
			fmt.Println("created:", change.GetConversation().GetTitle())
			return // Leaving the loop ends the watch.
		}
	}
	// Output:
	// garden ends with Mint and parsley.
	// the watch is active
	// created: Kitchen
}

// An error has a gRPC code, which every gRPC program understands, and a reason, which is specific to
// Parley.
func ExampleReason() {
	ctx := context.Background()
	c, err := client.Dial(exampleServer()) // In a program: "127.0.0.1:50051", the address of `make run`.
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	_, err = c.GetConversation(ctx, &parleyv1.GetConversationRequest{ConversationId: "desert"})
	switch client.Reason(err) {
	case "CONVERSATION_NOT_FOUND":
		fmt.Println("there is no such conversation, or it has expired")
	case "": // There is no error, or it does not come from a Parley server, such as a deadline.
		fmt.Println(err)
	default:
		fmt.Println(client.Reason(err), err)
	}
	// Output:
	// there is no such conversation, or it has expired
}

// garden returns the messages of the conversation that several examples start with.
func garden() []*parleyv1.Message {
	return []*parleyv1.Message{
		{Role: parleyv1.Role_ROLE_USER, Content: "Which herbs like shade?"},
		{
			Role: parleyv1.Role_ROLE_ASSISTANT, Agent: "gardener", Content: "Mint and parsley.",
			Summary: "named herbs for shade",
		},
	}
}

// exampleServer starts a server with messages in the conversation garden and returns its address. The
// server ends with the test run. Errors are printed, so that the output of the example does not match.
func exampleServer(messages ...*parleyv1.Message) string {
	s, err := programs.start()
	if err != nil {
		fmt.Println(err)
		return "localhost:1" // No server listens there.
	}
	if len(messages) == 0 {
		return s.address
	}
	c, err := client.Dial(s.address)
	if err != nil {
		fmt.Println(err)
		return s.address
	}
	defer c.Close()
	request := &parleyv1.AppendMessagesRequest{ConversationId: "garden", Messages: messages}
	if _, err := c.AppendMessages(context.Background(), request); err != nil {
		fmt.Println(err)
	}
	return s.address
}
