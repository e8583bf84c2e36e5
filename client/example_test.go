package client_test

import (
	"context"
	"fmt"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// What stands between the deferred Close and the output is in README.md, too, word for word.

// An agent service adds what was said, in one step: all of it is kept or nothing.
func ExampleClient_append() {
	ctx := context.Background()
	c, err := client.Dial(exampleServer()) // Elsewhere "127.0.0.1:50051", where `make run` serves.
	if err != nil {
		fmt.Println(err) // The address or an option makes no sense; nothing was sent yet.
		return
	}
	defer c.Close()

	reply, err := c.AppendMessages(ctx, &parleyv1.AppendMessagesRequest{
		ConversationId: "garden", // Made if it does not exist.
		Messages: []*parleyv1.Message{
			{Role: parleyv1.Role_ROLE_USER, Content: "Which herbs like shade?"},
			{Role: parleyv1.Role_ROLE_ASSISTANT, Agent: "gardener", Content: "Mint and parsley.", Summary: "named herbs for shade"},
		},
	})
	if err != nil {
		fmt.Println(client.Reason(err), err)
		return
	}
	for _, message := range reply.GetAppended() {
		fmt.Println("kept as message", message.GetSequence())
	}
	// Output:
	// kept as message 1
	// kept as message 2
}

// Whoever goes on with a conversation loads it with its newest messages.
func ExampleClient_load() {
	ctx := context.Background()
	c, err := client.Dial(exampleServer(garden()...)) // Elsewhere "127.0.0.1:50051", where `make run` serves.
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

// A front end asks an agent and shows the answer as it comes.
func ExampleClient_Chat() {
	ctx := context.Background()
	c, err := client.Dial(exampleServer()) // Elsewhere "127.0.0.1:50051", where `make run` serves.
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

// A coordinator reads what has happened so far and gives the lead to an agent.
func ExampleClient_route() {
	ctx := context.Background()
	c, err := client.Dial(exampleServer(garden()...)) // Elsewhere "127.0.0.1:50051", where `make run` serves.
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
		Agent:          "echo", // Gets the next messages of Chat, unless one names another.
		Reason:         "the questions get simpler",
		IfVersion:      new(summary.GetVersion()), // ABORTED if something was said meanwhile.
	})
	if err != nil {
		fmt.Println(client.Reason(err), err)
		return
	}
	// Output:
	// Previous: named herbs for shade
	// gardener wrote message 2
}

// A page that lists conversations keeps itself up to date. To leave the loop ends the watch.
func ExampleClient_WatchConversations() {
	ctx := context.Background()
	c, err := client.Dial(exampleServer(garden()...)) // Elsewhere "127.0.0.1:50051", where `make run` serves.
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

	// What happens from now on comes behind the list's cursor, also before the watch begins.
	_, err = c.CreateConversation(ctx, &parleyv1.CreateConversationRequest{Conversation: &parleyv1.Conversation{Title: "Kitchen"}})
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
			fmt.Println("the watch stands")
		case parleyv1.ChangeKind_CHANGE_KIND_GAP:
			fmt.Println("changes are missing: list anew")
		case parleyv1.ChangeKind_CHANGE_KIND_CREATED:
			fmt.Println("made:", change.GetConversation().GetTitle())
			return // Enough seen; leaving the loop ends the watch.
		}
	}
	// Output:
	// garden ends with Mint and parsley.
	// the watch stands
	// made: Kitchen
}

// What a call failed with has a code of gRPC, for any program, and a reason, for those who
// know Parley.
func ExampleReason() {
	ctx := context.Background()
	c, err := client.Dial(exampleServer()) // Elsewhere "127.0.0.1:50051", where `make run` serves.
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	_, err = c.GetConversation(ctx, &parleyv1.GetConversationRequest{ConversationId: "desert"})
	switch client.Reason(err) {
	case "CONVERSATION_NOT_FOUND":
		fmt.Println("there is no such conversation, or it has expired")
	case "": // No error, or none that a Parley server made: no connection, a deadline.
		fmt.Println(err)
	default:
		fmt.Println(client.Reason(err), err)
	}
	// Output:
	// there is no such conversation, or it has expired
}

// garden is what the examples that need a past go on from.
func garden() []*parleyv1.Message {
	return []*parleyv1.Message{
		{Role: parleyv1.Role_ROLE_USER, Content: "Which herbs like shade?"},
		{Role: parleyv1.Role_ROLE_ASSISTANT, Agent: "gardener", Content: "Mint and parsley.", Summary: "named herbs for shade"},
	}
}

// exampleServer starts a server with these messages in the conversation garden and returns its
// address. It ends with the run of the tests. What goes wrong is printed: no example wants that.
func exampleServer(messages ...*parleyv1.Message) string {
	s, err := programs.start()
	if err != nil {
		fmt.Println(err)
		return "localhost:1" // Nobody is there.
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
