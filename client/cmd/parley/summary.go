package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// maxBatch is the server's limit of conversations in one batch of summaries.
const maxBatch = 100

const aboutSummary = `Show the routing summary, which a coordinator needs to route the next message. The line for
coordinators comes first, the newest messages last. If some of several conversations do not exist,
their ids are printed to standard error and the exit code is 1.

With --known-version the output is "not modified" if the conversation is at that version (0: if it
does not exist). --wait waits for another version, even longer than --timeout. The exit code is 0 in
both cases.`

// summaryFlags are the flags of optional fields of the request.
type summaryFlags struct {
	messages, maxBytes, knownVersion int32
	wait                             duration
}

func (a *app) newSummaryCommand() *cobra.Command {
	var f summaryFlags
	command := &cobra.Command{
		Use:   "summary ID...",
		Short: "Show the routing summary of conversations",
		Long:  aboutSummary,
		Example: `  parley summary shop
  parley summary shop --known-version 7 --wait 30s
  parley summary shop library --output json`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			request := &parleyv1.GetRoutingSummaryRequest{ConversationId: args[0], MaxBytes: f.maxBytes}
			if command.Flags().Changed("messages") {
				request.MessageLimit = &f.messages
			}
			if command.Flags().Changed("known-version") {
				request.KnownVersion = &f.knownVersion
			}
			if err := f.setWait(request, len(args)); err != nil {
				return err
			}
			if a.timeout > 0 {
				a.timeout += request.GetWaitTimeout().AsDuration()
			}
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				if len(args) == 1 {
					return a.summarize(ctx, c, request)
				}
				return a.summarizeAll(ctx, c, request, args)
			})
		},
	}
	flags := command.Flags()
	flags.Int32Var(&f.messages, "messages", 3, "number of newest messages to show, at most 20")
	flags.Int32Var(&f.maxBytes, "max-bytes", 0, "maximum bytes of messages and referenced data of each conversation; 0 "+
		"for all, or for 32 KiB each with several conversations")
	flags.Int32Var(&f.knownVersion, "known-version", 0, "show the summary only if the conversation is at another version")
	flags.Var(&f.wait, "wait", "with --known-version: wait up to this long for another version, at most 60s")
	return command
}

// setWait validates --wait and --known-version for a number of conversations and sets the wait of request.
func (f summaryFlags) setWait(request *parleyv1.GetRoutingSummaryRequest, conversations int) error {
	switch {
	case f.wait != 0 && request.KnownVersion == nil:
		return usageError("--wait needs --known-version, the version that you have")
	case request.KnownVersion != nil && conversations > 1:
		return usageError("--known-version applies to one conversation: write one ID")
	case f.wait != 0:
		request.WaitTimeout = durationpb.New(time.Duration(f.wait))
	}
	return nil
}

// summarize prints the summary of one conversation.
func (a *app) summarize(ctx context.Context, c *client.Client, request *parleyv1.GetRoutingSummaryRequest) error {
	reply, err := c.GetRoutingSummary(ctx, request)
	if err != nil {
		return err
	}
	return a.print(reply, func(w io.Writer) {
		if reply.GetNotModified() {
			fmt.Fprintln(w, "not modified")
			return
		}
		a.printSummary(w, reply.GetSummary())
	})
}

// summarizeAll prints the summaries of several conversations with the limits of request.
func (a *app) summarizeAll(ctx context.Context, c *client.Client, request *parleyv1.GetRoutingSummaryRequest,
	ids []string,
) error {
	var missing []string
	first := true
	for batch := range slices.Chunk(ids, maxBatch) {
		reply, err := c.BatchGetRoutingSummaries(ctx, &parleyv1.BatchGetRoutingSummariesRequest{
			ConversationIds: batch, MessageLimit: request.MessageLimit, MaxBytes: request.GetMaxBytes(),
		})
		if err != nil {
			return err
		}
		missing = append(missing, reply.GetMissingIds()...)
		err = a.print(reply, func(w io.Writer) {
			for _, summary := range reply.GetSummaries() {
				if !first {
					fmt.Fprintln(w)
				}
				first = false
				fmt.Fprintln(w, oneLine("conversation "+summary.GetConversationId()))
				a.printSummary(w, summary)
			}
		})
		if err != nil {
			return err
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("not found, or damaged: %s", strings.Join(missing, ", "))
	}
	return nil
}

// printSummary writes the fields of a summary that are set: the line for coordinators first, the newest messages
// last.
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
