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

const aboutPurge = `Delete the conversations that nothing has been appended to for a time, with their messages,
and print how many and which; of many the first hundred. It does not ask: see with --dry-run
what would go. A turn that runs in one of them is cancelled.`

func (a *app) newPurgeCommand() *cobra.Command {
	var request parleyv1.PurgeConversationsRequest
	var inactive duration
	command := &cobra.Command{
		Use:   "purge --inactive DURATION",
		Short: "Delete conversations that have been inactive",
		Long:  aboutPurge,
		Example: `  parley purge --inactive 24h --dry-run
  parley purge --inactive 7d`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if !command.Flags().Changed("inactive") {
				return usageError("--inactive is required: how long ago the last append has to be, as in 24h or 7d")
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
	flags.Var(&inactive, "inactive", "delete what has not been appended to for this long, as in 24h or 7d; required")
	flags.BoolVar(&request.DryRun, "dry-run", false, "delete nothing, only say what would be")
	return command
}

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
