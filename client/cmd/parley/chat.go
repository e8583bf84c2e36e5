package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const aboutChat = `Ask an agent and see its answer as it comes.

With TEXT, or with a message on standard input (- says so, where there is a terminal), one
question is asked: the answer goes to standard output, all else to standard error, and the
exit code is 1 when the turn did not complete. Without, on a terminal, chat asks line by
line: /quit or Ctrl-D leaves, and Ctrl-C stops reading an answer.

To stop reading is not to cancel: the turn goes on at the server, and its answer is kept.`

func (a *app) newChatCommand() *cobra.Command {
	var request parleyv1.ChatRequest
	var system string
	command := &cobra.Command{
		Use:   "chat [TEXT... | -]",
		Short: "Ask an agent and see its answer as it comes",
		Long:  aboutChat,
		Example: `  parley chat hello there
  parley chat --conversation shop --agent writer "Add a product"
  echo "Sugar for 50 cents" | parley chat -c shop`,
		RunE: func(command *cobra.Command, args []string) error {
			if command.Flags().Changed("system") {
				request.SystemPrompt = new(system)
			}
			if !a.timeoutSet {
				a.timeout = 0 // An agent may think for minutes.
			}
			if len(args) > 0 || !a.inTerminal {
				return a.ask(command.Context(), &request, args)
			}
			if request.GetRequestId() != "" {
				return usageError("--request-id names one question: give it TEXT")
			}
			return a.dialled(func(c *client.Client) error {
				return a.converse(command.Context(), c, &request)
			})
		},
	}
	flags := command.Flags()
	flags.StringVarP(&request.ConversationId, "conversation", "c", "", "conversation to go on with or to make; a new one when empty")
	flags.StringVar(&request.Agent, "agent", "", "agent that answers, instead of the conversation's own")
	flags.StringVar(&system, "system", "", "system prompt for these turns, instead of the conversation's or the agent's")
	flags.StringVar(&request.RequestId, "request-id", "", "asked twice with the same, the agent answers once")
	flags.BoolVar(&request.MustExist, "must-exist", false, "fail instead of making the conversation")
	return command
}

// ask asks one question and shows what comes.
func (a *app) ask(ctx context.Context, request *parleyv1.ChatRequest, args []string) error {
	content, err := a.text(ctx, args)
	if err != nil {
		return err
	}
	request.Content = content
	return a.call(ctx, func(ctx context.Context, c *client.Client) error {
		got, err := a.answer(ctx, c, request)
		switch {
		case got.conversation == "":
		case err != nil:
			fmt.Fprintf(a.err, "see what came of it with: %s show %s\n", a.again(), got.conversation)
		case !got.named:
			fmt.Fprintf(a.err, "continue with: %s chat -c %s ...\n", a.again(), got.conversation)
		}
		if err != nil {
			return err
		}
		return got.failure()
	})
}

// again is how this program is called to reach the same server, for lines to paste.
func (a *app) again() string {
	words := []string{a.program}
	if a.addressSet {
		words = append(words, "--address", a.address)
	}
	if a.credentials != nil {
		words = append(words, fmt.Sprintf("--tls=%t", a.tls))
	}
	return strings.Join(words, " ")
}
