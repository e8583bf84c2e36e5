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

// converse asks line by line what is typed, in one conversation, until /quit, Ctrl-D, or
// Ctrl-C at the prompt. What goes wrong with one question does not end it. first is the
// question without its words.
func (a *app) converse(ctx context.Context, c *client.Client, first *parleyv1.ChatRequest) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := a.lines(ctx)
	request, met := proto.CloneOf(first), false
	for {
		fmt.Fprint(a.err, "> ")
		select {
		case line, more := <-lines:
			switch {
			case !more:
				fmt.Fprintln(a.err) // Ctrl-D leaves the cursor behind the prompt.
				return a.leave(first, request)
			case line == "/quit":
				return a.leave(first, request)
			case strings.TrimSpace(line) != "":
				request.Content = line
				met = a.askNext(ctx, c, request, met) || met
			}
		case <-a.interrupts:
			fmt.Fprintln(a.err)
			return a.leave(first, request)
		case <-ctx.Done():
			return a.leave(first, request)
		}
	}
}

// askNext asks one question, shows what comes, and puts into request the conversation that
// the next question goes to. It says whether there was a server. Where it has been met
// before it is waited for: a line that is typed while it is started anew is not lost.
func (a *app) askNext(ctx context.Context, c *client.Client, request *parleyv1.ChatRequest, met bool) bool {
	ctx, cancel := a.limited(ctx)
	defer cancel()
	request.RequestId = uuid.NewString() // Asked twice, it is one question.
	got, err := a.answer(ctx, c, request, question{met: met})
	if got.conversation != "" {
		request.ConversationId = got.conversation
	}
	if err == nil {
		err = got.failure()
	}
	if err != nil {
		fmt.Fprintf(a.err, "parley: %s\n", oneLine(a.explain(err)))
	}
	return got.turnID != ""
}

// leave says how to come back to a conversation that had no name at first.
func (a *app) leave(first, last *parleyv1.ChatRequest) error {
	if first.GetConversationId() != last.GetConversationId() {
		went := view{conversation: last.GetConversationId(), agent: last.GetAgent()}
		fmt.Fprintf(a.err, "continue with: %s\n", harmless(went.chat(a.self())))
	}
	return nil
}
