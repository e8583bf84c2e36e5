package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const aboutAppend = `Append one message, from TEXT or standard input. With --json, append all messages of standard
input: JSON objects one after the other, an array of them, or an object with the array messages, as
parley show --output json prints it. Either all of them are stored or none. Fields that the server
sets (sequence, exchange, times) are ignored. --record writes records in the same commit; see parley
record.

With --from, append each line of FILE, or of standard input if FILE is "-". A line is the JSON of an
AppendMessagesRequest, or of one message with the id of its conversation:

  {"conversation_id": "shop", "role": "ROLE_USER", "content": "Add a product"}

Many lines are under way at the same time. The lines of a conversation are appended in their order. A
line that is invalid, or that the server refuses, is reported with its number on standard error and not
tried again. The others are appended, and the exit code is 1. Put the refused lines into another file:
a run that has reached the last line is over, and the same command appends all lines again.

If the command ends before the last line, the same command continues with the next line, and appends no
line twice. It stores its progress in FILE.progress until all lines are done. A run from standard input
cannot be continued.`

// appendFlags are the flags that describe one message.
type appendFlags struct {
	role, agent, summary string
	data                 []string
	records              []string // With --json they belong to all messages.
	retention            retentionFlags
}

// add adds the flags to a command.
func (f *appendFlags) add(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&f.role, "role", "user", "role of the author: user, assistant or system")
	flags.StringVar(&f.agent, "agent", "", "agent that wrote the message")
	flags.StringVar(&f.summary, "summary", "", "what the agent did, one short clause for coordinators")
	flags.StringArrayVar(&f.data, "data", nil, "structured data as TYPE=JSON; may be repeated")
	addRecordFlag(command, &f.records)
	f.retention.add(command, ifCreated)
}

func (a *app) newAppendCommand() *cobra.Command {
	var request parleyv1.AppendMessagesRequest
	var one appendFlags
	var from string
	var asJSON bool
	var ifVersion int32
	command := &cobra.Command{
		Use:   "append {ID [TEXT... | -] | --from FILE}",
		Short: "Append messages to a conversation",
		Long:  aboutAppend,
		Example: `  parley append shop Add a product
  parley append shop --role assistant --agent writer --data 'cart={"items":[]}' "Which one?"
  parley show shop --output json | parley append copy --json
  parley append shop --record cart=@cart.json "The cart is ready"
  parley append --from messages.jsonl`,
		Args: func(command *cobra.Command, args []string) error {
			if command.Flags().Changed("from") {
				return onlyFrom(command, args)
			}
			return cobra.MinimumNArgs(1)(command, args)
		},
		RunE: func(command *cobra.Command, args []string) error {
			if command.Flags().Changed("from") {
				return a.appendFrom(command.Context(), from)
			}
			if asJSON && (len(args) > 1 || one.any() || command.Flags().Changed("role")) {
				return usageError("--json reads everything from standard input: " +
					"leave out TEXT, --role, --agent, --summary or --data")
			}
			request.ConversationId, request.CreateWith = args[0], one.retention.createWith()
			if command.Flags().Changed("if-version") {
				request.IfVersion = new(ifVersion)
			}
			var err error
			if request.Records, err = a.recordWrites(command.Context(), one.records); err != nil {
				return err
			}
			if asJSON {
				request.Messages, err = a.messages(command.Context())
			} else {
				request.Messages, err = a.message(command.Context(), one, args[1:])
			}
			if err != nil {
				return err
			}
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				return a.append(ctx, c, &request)
			})
		},
	}
	one.add(command)
	flags := command.Flags()
	flags.BoolVar(&asJSON, "json", false, "read messages from standard input")
	flags.StringVar(&from, "from", "", "append the lines of `FILE`, which name their conversations; - is standard input")
	flags.StringVar(&request.RequestId, "request-id", "",
		"id of the request: a second append with the same id changes nothing")
	flags.Int32Var(&ifVersion, "if-version", 0,
		"append only if the conversation is at this version; 0: only if it does not exist")
	flags.BoolVar(&request.MustExist, "must-exist", false,
		"fail if the conversation does not exist, instead of creating it")
	return command
}

// onlyFrom returns an error if the command line has an argument or another flag of the command.
func onlyFrom(command *cobra.Command, args []string) error {
	if len(args) > 0 {
		return errors.New("--from: leave out ID and TEXT, because each line names its conversation")
	}
	var err error
	command.LocalNonPersistentFlags().VisitAll(func(flag *pflag.Flag) {
		if flag.Changed && flag.Name != "from" {
			err = fmt.Errorf("--from: leave out --%s, because each line has its own fields", flag.Name)
		}
	})
	return err
}

// append sends request and prints the appended messages. Without messages it prints how many are left.
func (a *app) append(ctx context.Context, c *client.Client, request *parleyv1.AppendMessagesRequest) error {
	reply, err := c.AppendMessages(ctx, request)
	if err != nil {
		return err
	}
	return a.print(reply, func(w io.Writer) {
		if len(request.GetMessages()) == 0 {
			fmt.Fprintf(w, "cleared %s: %d messages left\n",
				a.printable(request.GetConversationId()), reply.GetConversation().GetMessageCount())
			return
		}
		rows := [][]string{{"SEQUENCE", "EXCHANGE", "ID"}}
		for _, m := range reply.GetAppended() {
			rows = append(rows, []string{fmt.Sprint(m.GetSequence()), fmt.Sprint(m.GetExchange()), m.GetId()})
		}
		table(w, rows...)
		if n := len(request.GetRecords()); n > 0 && !reply.GetReplayed() {
			fmt.Fprintf(w, "wrote %s at revision %d\n", count(n, "record"), reply.GetConversation().GetVersion())
		}
	})
}

// any reports whether a flag other than --role is set.
func (f *appendFlags) any() bool { return f.agent != "" || f.summary != "" || len(f.data) > 0 }

// message returns the message that the command line describes.
func (a *app) message(ctx context.Context, f appendFlags, words []string) ([]*parleyv1.Message, error) {
	role := parleyv1.Role(parleyv1.Role_value["ROLE_"+strings.ToUpper(f.role)])
	if role == parleyv1.Role_ROLE_UNSPECIFIED || role == parleyv1.Role_ROLE_TOOL {
		// A tool message needs a tool result, which only --json can express.
		return nil, usageError(fmt.Sprintf("--role %q: use user, assistant or system", f.role))
	}
	message := &parleyv1.Message{Role: role, Agent: f.agent, Summary: f.summary}
	for _, data := range f.data {
		kind, document, found := strings.Cut(data, "=")
		value := &structpb.Value{}
		if err := protojson.Unmarshal([]byte(document), value); !found || err != nil {
			return nil, usageError(fmt.Sprintf("--data %q: want TYPE=JSON", data))
		}
		message.StructuredData = append(message.StructuredData, &parleyv1.StructuredData{Type: kind, Value: value})
	}
	content, err := a.text(ctx, words)
	message.Content = content
	return []*parleyv1.Message{message}, err
}

// messages returns the messages that standard input contains as JSON.
func (a *app) messages(ctx context.Context) ([]*parleyv1.Message, error) {
	input, err := a.readAll(ctx)
	if err != nil {
		return nil, err
	}
	messages, err := parseMessages(input, standardInput)
	if err == nil && len(messages) == 0 {
		err = usageError(standardInput + ": it contains no messages")
	}
	return messages, err
}

// standardInput is the name of standard input in errors.
const standardInput = "standard input"

// parseMessages returns the messages that an input contains as JSON: messages one after the other, arrays of messages,
// or objects with the field messages. It returns none if these are empty, and an error if the input is. source is its
// name in errors.
func parseMessages(input []byte, source string) ([]*parleyv1.Message, error) {
	documents, err := split(input)
	if err != nil {
		return nil, usageError(fmt.Sprintf("%s: %v", source, err))
	}
	messages := make([]*parleyv1.Message, len(documents))
	for i, document := range documents {
		messages[i] = &parleyv1.Message{}
		if err := protojson.Unmarshal(document, messages[i]); err != nil {
			return nil, usageError(fmt.Sprintf("message %d of %s: %v", i+1, source, err))
		}
	}
	return messages, nil
}

// split returns the JSON documents of input. An array, also that of the field messages of an object, counts as one
// document for each element. split returns an error if there is neither a document nor an array.
func split(input []byte) ([]json.RawMessage, error) {
	var documents []json.RawMessage
	decoder := json.NewDecoder(bytes.NewReader(input))
	for {
		var document json.RawMessage
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			if documents == nil {
				return nil, errors.New("it contains no messages")
			}
			return documents, nil
		}
		if err != nil {
			return nil, err
		}
		array := []json.RawMessage{document}
		var shown struct {
			Messages []json.RawMessage `json:"messages"`
		}
		if json.Unmarshal(document, &shown) == nil && shown.Messages != nil {
			array = shown.Messages
		} else if list := []json.RawMessage(nil); json.Unmarshal(document, &list) == nil && list != nil {
			array = list
		}
		documents = append(documents, array...)
		if documents == nil {
			documents = []json.RawMessage{} // An empty array is a document.
		}
	}
}
