package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func (a *app) newSummaryCommand() *cobra.Command {
	var request parleyv1.GetRoutingSummaryRequest
	var messages int32
	command := &cobra.Command{
		Use:   "summary ID",
		Short: "Show what a coordinator needs to route the next message",
		Args:  cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			request.ConversationId = args[0]
			if command.Flags().Changed("messages") {
				request.MessageLimit = new(messages)
			}
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				reply, err := c.GetRoutingSummary(ctx, &request)
				if err != nil {
					return err
				}
				return a.print(reply, func(w io.Writer) { a.printSummary(w, reply.GetSummary()) })
			})
		},
	}
	flags := command.Flags()
	flags.Int32Var(&messages, "messages", 3, "newest messages to show, 20 at most")
	flags.Int32Var(&request.MaxBytes, "max-bytes", 0, "bytes of messages and referenced data at most, 0 all")
	return command
}

// printSummary writes what is set of a summary: the line for coordinators first, the newest
// messages last.
func (a *app) printSummary(w io.Writer, s *parleyv1.RoutingSummary) {
	if s.GetText() != "" {
		fmt.Fprintln(w, oneLine(s.GetText()))
	}
	var rows [][]string
	row := func(name, format string, values ...any) {
		rows = append(rows, []string{name, fmt.Sprintf(format, values...)})
	}
	row("version", "%d", s.GetVersion())
	if lease := activeAgent(s.GetActiveAgent()); lease != "" {
		row("active agent", "%s", lease)
	}
	for _, use := range s.GetRecentAgents() {
		row("agent", "%s, last at %d", use.GetAgent(), use.GetLastSequence())
	}
	for _, use := range s.GetStructuredDataTypes() {
		row("structured data", "%s, %d times, last at %d", use.GetType(), use.GetCount(), use.GetLastSequence())
	}
	if turn := s.GetActiveTurnId(); turn != "" {
		row("active turn", "%s", turn)
	}
	if s.GetAwaitingAnswer() {
		row("awaiting answer", "yes")
	}
	for _, call := range s.GetPendingToolCalls() {
		row("pending", "%s", describeCall(call))
	}
	if s.GetTruncated() {
		row("truncated", "to fit --max-bytes")
	}
	table(w, rows...)

	for _, referenced := range s.GetReferencedData() {
		from := strings.TrimRight(fmt.Sprintf("[%d] %s", referenced.GetSequence(), referenced.GetAgent()), " ")
		fmt.Fprintln(w, a.printable("\nreferenced "+from+"\n"+describeData(referenced.GetData())))
	}
	if len(s.GetRecentMessages()) > 0 {
		fmt.Fprintln(w)
	}
	a.printMessages(w, s.GetRecentMessages())
}
