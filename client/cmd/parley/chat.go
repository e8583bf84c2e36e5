package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const aboutChat = `Send a message to an agent and print its answer as it arrives.

With TEXT or a message on standard input, chat sends one message. On a terminal, write - to read
standard input. The answer goes to standard output, everything else to standard error. The exit
code is 1 if the turn did not complete, and 0 if it completed or waits for tool results. On a
terminal without TEXT, chat is interactive: each line is a message, and /quit, Ctrl-D, or Ctrl-C at
the prompt exits.

Ctrl-C during an answer cancels the turn: the agent stops, and the received part of the answer is
stored as an incomplete message. A second Ctrl-C does not wait for that. It ends the program or, in
interactive mode, returns to the prompt.

If the agent waits for tool results, chat prints which calls have none. Continue with one
--tool-result for each call, with or without TEXT; standard input is then read only if you write -.
Calls without a result stay open. A call whose id contains "=" can only get its result through
tool_results of the API.

--record writes records in the same commit as the message or the tool results; see parley record.

If the model reports its reasoning, a terminal shows it dimmed, on standard error. With --reasoning it
is printed to a file or a program too, and --reasoning=false leaves it out.

A lost connection does not cancel the turn, unless --on-disconnect says so: the turn continues on
the server, and parley resume shows it.`

// chatFlags are the flags whose values are converted for the request.
type chatFlags struct {
	system, onBusy, onDisconnect string
	results, records             []string
	retention                    retentionFlags
}

func (a *app) newChatCommand() *cobra.Command {
	var request parleyv1.ChatRequest
	var f chatFlags
	command := &cobra.Command{
		Use:   "chat [TEXT... | -]",
		Short: "Send a message to an agent and print its answer as it arrives",
		Long:  aboutChat,
		Example: `  parley chat hello there
  parley chat --conversation shop --agent writer "Add a product"
  echo "Sugar for 50 cents" | parley chat -c shop
  parley chat -c shop --again
  parley chat -c shop --tool-result 'call_1={"cents":50}'
  parley chat -c shop --record cart=@cart.json "Check my cart"`,
		RunE: func(command *cobra.Command, args []string) error {
			if command.Flags().Changed("system") {
				request.SystemPrompt = new(f.system)
			}
			if err := f.apply(&request); err != nil {
				return err
			}
			if !a.timeoutSet {
				a.timeout = 0 // An answer may take minutes.
			}
			oneMessage := request.GetAnswerPending() || len(f.results) > 0 || len(args) > 0 || !a.inTerminal
			if err := f.check(&request, len(args) > 0, oneMessage); err != nil {
				return err
			}
			if !oneMessage {
				return a.withClient(func(c *client.Client) error {
					return a.converse(command.Context(), c, &request)
				})
			}
			var err error
			if request.Records, err = a.recordWrites(command.Context(), f.records); err != nil {
				return err
			}
			return a.ask(command.Context(), &request, args)
		},
	}
	flags := command.Flags()
	flags.StringVarP(&request.ConversationId, "conversation", "c", "",
		"conversation to continue or create; if empty, a new one")
	flags.StringVar(&request.Agent, "agent", "",
		"agent that answers; if empty, the agent that has the lease, or else the conversation's agent")
	flags.StringVar(&f.system, "system", "", "system prompt for these turns, instead of the conversation's or the agent's")
	flags.StringArrayVar(&f.results, "tool-result", nil,
		"result of a tool call that the agent waits for, as CALL_ID=CONTENT; may be repeated")
	addRecordFlag(command, &f.records)
	flags.BoolVar(&request.AnswerPending, "again", false,
		"answer the last message of the history again, for example after a failed turn; without TEXT and standard input")
	flags.StringVar(&f.onBusy, "on-busy", "reject",
		"if another turn is running: reject this one, queue it, or interrupt the running one")
	flags.StringVar(&f.onDisconnect, "on-disconnect", "continue",
		"if the connection is lost: continue the turn, or cancel it")
	flags.StringVar(&request.RequestId, "request-id", "",
		"id of the request: a second chat with the same id shows the same turn")
	a.addReasoningFlag(command)
	flags.BoolVar(&request.MustExist, "must-exist", false,
		"fail if the conversation does not exist, instead of creating it")
	f.retention.add(command, ifCreated)
	return command
}

// addReasoningFlag adds the flag of the commands that print an answer.
func (a *app) addReasoningFlag(command *cobra.Command) {
	command.Flags().BoolVar(&a.reasoning, "reasoning", a.errTerminal,
		"print the reasoning that the model reports to standard error; by default only on a terminal")
}

// check returns an error if the flags contradict each other or the rest of the command line.
func (f chatFlags) check(request *parleyv1.ChatRequest, hasText, oneMessage bool) error {
	switch again, results := request.GetAnswerPending(), len(f.results) > 0; {
	case again && results:
		return usageError("--again repeats the last message: leave out --tool-result")
	case results && request.GetConversationId() == "":
		return usageError("--tool-result needs --conversation, the conversation of the call")
	case again && request.GetConversationId() == "":
		return usageError("--again needs --conversation, the conversation to answer")
	case again && hasText:
		return usageError("--again repeats the last message: leave out TEXT")
	case again && len(f.records) > 0:
		return usageError("--again repeats the last message: leave out --record")
	case !oneMessage && request.GetRequestId() != "":
		return usageError("--request-id identifies one message: write TEXT")
	case !oneMessage && len(f.records) > 0:
		return usageError("--record is written with one message: write TEXT")
	}
	return nil
}

// apply sets the fields of request that the flags describe.
func (f chatFlags) apply(request *parleyv1.ChatRequest) error {
	request.CreateWith = f.retention.createWith()
	request.OnBusy = parleyv1.OnBusy(parleyv1.OnBusy_value["ON_BUSY_"+strings.ToUpper(f.onBusy)])
	if request.GetOnBusy() == parleyv1.OnBusy_ON_BUSY_UNSPECIFIED {
		return usageError(fmt.Sprintf("--on-busy %q: use reject, queue or interrupt", f.onBusy))
	}
	onDisconnect := "ON_DISCONNECT_" + strings.ToUpper(f.onDisconnect)
	request.OnDisconnect = parleyv1.OnDisconnect(parleyv1.OnDisconnect_value[onDisconnect])
	if request.GetOnDisconnect() == parleyv1.OnDisconnect_ON_DISCONNECT_UNSPECIFIED {
		return usageError(fmt.Sprintf("--on-disconnect %q: use continue or cancel", f.onDisconnect))
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

// ask sends one message and prints the answer.
func (a *app) ask(ctx context.Context, request *parleyv1.ChatRequest, args []string) error {
	needsNoText := request.GetAnswerPending() || len(request.GetToolResults()) > 0
	if !needsNoText || len(args) > 0 {
		content, err := a.text(ctx, args)
		if err != nil {
			return err
		}
		request.Content = content
	}
	ctx, cancel := a.withTimeout(ctx)
	defer cancel()
	return a.withClient(func(c *client.Client) error {
		seen, err := a.answer(ctx, c, request, answerOptions{mayBeRepeated: request.GetRequestId() != ""})
		switch {
		case seen.conversation == "":
		case err != nil:
			fmt.Fprintf(a.err, "see the result with: %s resume %s %s\n", a.programCommand(),
				sanitize(argument(seen.conversation)), seen.turnID)
		case seen.retryable():
			fmt.Fprintf(a.err, "ask again with: %s --again\n", sanitize(seen.chatCommand(a.programCommand())))
		case !seen.namedConversation && !seen.awaitsToolResults():
			fmt.Fprintf(a.err, "continue with: %s ...\n", sanitize(seen.chatCommand(a.programCommand())))
		}
		if err != nil {
			return err
		}
		return seen.failure()
	})
}

// programCommand returns the command that calls this program for the same server. Messages to the user
// contain it.
func (a *app) programCommand() string {
	words := []string{a.program}
	if a.addressSet {
		words = append(words, "--address", a.address)
	}
	return strings.Join(append(words, a.signIn.words()...), " ")
}
