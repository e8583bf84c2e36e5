package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const aboutPurge = `Delete conversations without an append for some time, with their messages, and print their number
and ids (the first hundred). Purge does not ask for confirmation: use --dry-run to see what it would
delete. Running turns of the conversations are cancelled.`

func (a *app) newPurgeCommand() *cobra.Command {
	var request parleyv1.PurgeConversationsRequest
	var inactive duration
	command := &cobra.Command{
		Use:   "purge --inactive DURATION",
		Short: "Delete inactive conversations",
		Long:  aboutPurge,
		Example: `  parley purge --inactive 24h --dry-run
  parley purge --inactive 7d`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if !command.Flags().Changed("inactive") {
				return usageError("--inactive is required: the minimum time since the last append, such as 24h or 7d")
			}
			request.InactiveFor = durationpb.New(time.Duration(inactive))
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				reply, err := c.PurgeConversations(ctx, &request)
				if err != nil {
					return err
				}
				return a.print(reply, func(w io.Writer) { printPurged(w, reply, request.GetDryRun()) })
			})
		},
	}
	flags := command.Flags()
	flags.Var(&inactive, "inactive", "minimum time since the last append, such as 24h or 7d; required")
	flags.BoolVar(&request.DryRun, "dry-run", false, "only print what would be deleted")
	return command
}

// printPurged prints the number and the ids of the deleted conversations.
func printPurged(w io.Writer, reply *parleyv1.PurgeConversationsResponse, dryRun bool) {
	what := "purged "
	if dryRun {
		what = "would purge "
	}
	fmt.Fprintln(w, what+count(int(reply.GetPurgedCount()), "conversation"))
	for _, id := range reply.GetSampleIds() {
		fmt.Fprintln(w, oneLine(id))
	}
	if more := reply.GetPurgedCount() - int64(len(reply.GetSampleIds())); more > 0 {
		fmt.Fprintf(w, "and %d more\n", more)
	}
}
