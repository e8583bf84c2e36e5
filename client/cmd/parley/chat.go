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
exit code is 1 when the turn did not complete, but 0 when it waits for results of tools.
Without, on a terminal, chat asks line by line: /quit, Ctrl-D, or Ctrl-C at the prompt leaves.

Ctrl-C during an answer cancels the turn: the agent stops, and what had arrived is kept as
an incomplete message. Another Ctrl-C does not wait for that: it ends the program or, where
chat asks line by line, goes back to the prompt.

Where the agent waits for the results of tool calls, chat ends by saying of which. It goes
on with --tool-result for each of them, with TEXT or without; standard input is not read then
unless - says so. Calls that get no result stay open. A call whose id has a "=" in it can be
given its result with tool_results of the API alone.

To lose the connection is not to cancel, unless --on-disconnect says so: the turn goes on
at the server, and parley resume shows it.`

// chatFlags are the flags that are words for something else in the request.
type chatFlags struct {
	system, onBusy, onDisconnect string
	results                      []string
}

func (a *app) newChatCommand() *cobra.Command {
	var request parleyv1.ChatRequest
	var words chatFlags
	command := &cobra.Command{
		Use:   "chat [TEXT... | -]",
		Short: "Ask an agent and see its answer as it comes",
		Long:  aboutChat,
		Example: `  parley chat hello there
  parley chat --conversation shop --agent writer "Add a product"
  echo "Sugar for 50 cents" | parley chat -c shop
  parley chat -c shop --again
  parley chat -c shop --tool-result 'call_1={"cents":50}'`,
		RunE: func(command *cobra.Command, args []string) error {
			if command.Flags().Changed("system") {
				request.SystemPrompt = new(words.system)
			}
			if err := words.fill(&request); err != nil {
				return err
			}
			if !a.timeoutSet {
				a.timeout = 0 // An agent may think for minutes.
			}
			switch again, results := request.GetAnswerPending(), len(request.GetToolResults()) > 0; {
			case again && results:
				return usageError("--again asks what was asked before: no --tool-result")
			case results && request.GetConversationId() == "":
				return usageError("--tool-result needs --conversation: which one's call it answers")
			case again && request.GetConversationId() == "":
				return usageError("--again needs --conversation: which one's history to answer")
			case again && len(args) > 0:
				return usageError("--again asks what was asked before: no TEXT")
			case again || results || len(args) > 0 || !a.inTerminal:
				return a.ask(command.Context(), &request, args)
			case request.GetRequestId() != "":
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
	flags.StringVar(&words.system, "system", "", "system prompt for these turns, instead of the conversation's or the agent's")
	flags.StringArrayVar(&words.results, "tool-result", nil, "result of a tool call that the agent waits for, as CALL_ID=CONTENT; more than once for more")
	flags.BoolVar(&request.AnswerPending, "again", false, "have what the history ends with answered again, say after a turn that failed; no TEXT, and standard input is not read")
	flags.StringVar(&words.onBusy, "on-busy", "reject", "while another turn runs: reject this one, queue it, or interrupt the other")
	flags.StringVar(&words.onDisconnect, "on-disconnect", "continue", "continue the turn when the connection is lost, or cancel it")
	flags.StringVar(&request.RequestId, "request-id", "", "asked twice with the same, the agent answers once")
	flags.BoolVar(&request.MustExist, "must-exist", false, "fail instead of making the conversation")
	return command
}

// fill puts what the words mean into request.
func (f chatFlags) fill(request *parleyv1.ChatRequest) error {
	request.OnBusy = parleyv1.OnBusy(parleyv1.OnBusy_value["ON_BUSY_"+strings.ToUpper(f.onBusy)])
	if request.GetOnBusy() == parleyv1.OnBusy_ON_BUSY_UNSPECIFIED {
		return usageError(fmt.Sprintf("--on-busy %q: only reject, queue and interrupt are known", f.onBusy))
	}
	request.OnDisconnect = parleyv1.OnDisconnect(parleyv1.OnDisconnect_value["ON_DISCONNECT_"+strings.ToUpper(f.onDisconnect)])
	if request.GetOnDisconnect() == parleyv1.OnDisconnect_ON_DISCONNECT_UNSPECIFIED {
		return usageError(fmt.Sprintf("--on-disconnect %q: only continue and cancel are known", f.onDisconnect))
	}
	for _, result := range f.results {
		id, content, found := strings.Cut(result, "=")
		if id == "" || !found {
			return usageError(fmt.Sprintf("--tool-result %q: want CALL_ID=CONTENT", result))
		}
		request.ToolResults = append(request.ToolResults, &parleyv1.ToolResult{CallId: id, Content: content})
	}
	return nil
}

// ask asks one question and shows what comes.
func (a *app) ask(ctx context.Context, request *parleyv1.ChatRequest, args []string) error {
	wordless := request.GetAnswerPending() || len(request.GetToolResults()) > 0
	if !wordless || len(args) > 0 {
		content, err := a.text(ctx, args)
		if err != nil {
			return err
		}
		request.Content = content
	}
	ctx, cancel := a.limited(ctx)
	defer cancel()
	return a.dialled(func(c *client.Client) error {
		got, err := a.answer(ctx, c, request, question{again: request.GetRequestId() != ""})
		switch {
		case got.conversation == "":
		case err != nil:
			fmt.Fprintf(a.err, "see what came of it with: %s resume %s %s\n", a.self(), got.conversation, got.turnID)
		case got.worthAsking():
			fmt.Fprintf(a.err, "ask again with: %s --again\n", harmless(got.chat(a.self())))
		case !got.named && !got.waits():
			fmt.Fprintf(a.err, "continue with: %s ...\n", harmless(got.chat(a.self())))
		}
		if err != nil {
			return err
		}
		return got.failure()
	})
}

// self is how this program is called to reach the same server, for lines to paste.
func (a *app) self() string {
	words := []string{a.program}
	if a.addressSet {
		words = append(words, "--address", a.address)
	}
	if a.credentials != nil {
		words = append(words, fmt.Sprintf("--tls=%t", a.tls))
	}
	return strings.Join(words, " ")
}
