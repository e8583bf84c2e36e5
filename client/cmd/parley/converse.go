package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// converse sends each line of input as a message of one conversation, until /quit, Ctrl-D, or Ctrl-C
// at the prompt. An error of one message does not end it. first is the request without content.
func (a *app) converse(ctx context.Context, c *client.Client, first *parleyv1.ChatRequest) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := a.lines(ctx)
	request, connected := proto.CloneOf(first), false
	for {
		fmt.Fprint(a.err, "> ")
		select {
		case line, more := <-lines:
			switch {
			case !more:
				fmt.Fprintln(a.err) // After Ctrl-D the cursor is still in the line of the prompt.
				return a.printContinue(first, request)
			case line == "/quit":
				return a.printContinue(first, request)
			case strings.TrimSpace(line) != "":
				request.Content = line
				connected = a.askNext(ctx, c, request, connected) || connected
			}
		case <-a.interrupts:
			fmt.Fprintln(a.err)
			return a.printContinue(first, request)
		case <-ctx.Done():
			return a.printContinue(first, request)
		}
	}
}

// askNext sends one message, prints the answer, and sets the conversation of the next message in
// request. It reports whether the server was reached. If it was reached before (connected), askNext
// waits for it, so that a line typed while the server restarts is not lost.
func (a *app) askNext(ctx context.Context, c *client.Client, request *parleyv1.ChatRequest, connected bool) bool {
	ctx, cancel := a.withTimeout(ctx)
	defer cancel()
	request.RequestId = uuid.NewString() // If the request is sent twice, it starts one turn.
	seen, err := a.answer(ctx, c, request, answerOptions{waitForServer: connected})
	if seen.conversation != "" {
		request.ConversationId = seen.conversation
	}
	if err == nil {
		err = seen.failure()
	}
	if err != nil {
		fmt.Fprintf(a.err, "parley: %s\n", oneLine(a.explain(err)))
	}
	return seen.turnID != ""
}

// printContinue prints the command that continues a conversation whose id the server chose.
func (a *app) printContinue(first, last *parleyv1.ChatRequest) error {
	if first.GetConversationId() != last.GetConversationId() {
		v := view{conversation: last.GetConversationId(), agent: last.GetAgent()}
		fmt.Fprintf(a.err, "continue with: %s\n", sanitize(v.chatCommand(a.programCommand())))
	}
	return nil
}
