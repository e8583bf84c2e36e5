package client_test

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func Example() {
	address, stop := exampleServer() // Elsewhere: "127.0.0.1:50051", where `make run` serves.
	defer stop()

	c, err := client.Dial(address)
	if err != nil {
		fmt.Println(err) // The target or an option makes no sense; nothing was sent yet.
		return
	}
	defer c.Close()

	request := &parleyv1.ChatRequest{ConversationId: "first-steps", Content: "hello there"}
	for event, err := range c.Chat(context.Background(), request) {
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
	// hello there
	// TURN_STATE_COMPLETED
}

func ExampleClient_WatchConversations() {
	address, stop := exampleServer()
	defer stop()
	c, err := client.Dial(address)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	request := &parleyv1.WatchConversationsRequest{ConversationIds: []string{"first-steps"}}
	for change, err := range c.WatchConversations(context.Background(), request) {
		if err != nil {
			fmt.Println(client.Reason(err), err)
			return
		}
		switch change.GetKind() {
		case parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT:
			fmt.Println("all quiet behind", change.GetCursor()) // A place to go on from later.
		case parleyv1.ChangeKind_CHANGE_KIND_GAP:
			fmt.Println("something was missed: load the conversation anew")
		case parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED:
			fmt.Println(change.GetConversationId(), "has a new message:", change.GetMessage().GetContent())
		case parleyv1.ChangeKind_CHANGE_KIND_DELETED:
			return
		}
	}
	// Output:
	// all quiet behind cursor-7
	// first-steps has a new message: hello there
}

func exampleServer() (address string, stop func()) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer()
	parleyv1.RegisterConversationServiceServer(server, &fake{turn: func(a *asked) error {
		if w, watch := a.ServerStream.(*watched); watch {
			return w.send(exampleChanges()...)
		}
		words := a.chat.GetContent()
		return a.send(client.Numbered("t", client.Started(a.chat.GetConversationId()), client.Text(words[:6]), client.Text(words[6:]), client.Finished())...)
	}})
	go func() { _ = server.Serve(listener) }()
	return listener.Addr().String(), server.Stop
}

func exampleChanges() []*parleyv1.ConversationChange {
	return []*parleyv1.ConversationChange{
		{Kind: parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT, Cursor: "cursor-7"},
		{
			Kind: parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED, Cursor: "cursor-8", ConversationId: "first-steps",
			Payload: &parleyv1.ConversationChange_Message{Message: &parleyv1.Message{Content: "hello there"}},
		},
		{Kind: parleyv1.ChangeKind_CHANGE_KIND_DELETED, Cursor: "cursor-9", ConversationId: "first-steps"},
	}
}
