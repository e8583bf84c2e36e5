package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func (a *app) newAgentsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "agents",
		Short: "List the agents that are configured on the server",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				reply, err := c.ListAgents(ctx, &parleyv1.ListAgentsRequest{})
				if err != nil {
					return err
				}
				return a.print(reply, func(w io.Writer) {
					rows := [][]string{{"NAME", "KIND", "DEFAULT", "DESCRIPTION"}}
					for _, agent := range reply.GetAgents() {
						isDefault := ""
						if agent.GetIsDefault() {
							isDefault = "yes"
						}
						rows = append(rows, []string{agent.GetName(), agent.GetKind(), isDefault, agent.GetDescription()})
					}
					table(w, rows...)
				})
			})
		},
	}
}

func (a *app) newStatsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "stats",
		Short: "Show statistics of the server",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				reply, err := c.GetStats(ctx, &parleyv1.GetStatsRequest{})
				if err != nil {
					return err
				}
				return a.print(reply, func(w io.Writer) { a.printStats(w, reply) })
			})
		},
	}
}

func (a *app) printStats(w io.Writer, s *parleyv1.GetStatsResponse) {
	rows := [][]string{
		{"version", s.GetVersion()},
		{"started", a.when(s.GetStartTime())},
		{"store", s.GetStore()},
		{"conversations", fmt.Sprint(s.GetConversationCount())},
		{"messages", fmt.Sprint(s.GetMessageCount())},
		{"data", size(s.GetDataBytes())},
		{"records", fmt.Sprintf("%d, %s", s.GetRecordCount(), size(s.GetRecordBytes()))},
		{"memory", size(s.GetMemoryBytes())},
	}
	if s.GetFileBytes() > 0 {
		rows = append(rows, []string{"file", size(s.GetFileBytes()) + ", " + size(s.GetFileBytesInUse()) + " in use"})
	}
	table(w, append(rows,
		[]string{"active turns", fmt.Sprint(s.GetActiveTurnCount())},
		[]string{"watchers", fmt.Sprint(s.GetWatcherCount())},
		[]string{"expired", fmt.Sprint(s.GetExpiredTotal())},
		[]string{"evicted", fmt.Sprint(s.GetEvictedTotal())},
		[]string{"log entries lost", fmt.Sprint(s.GetLostInteractionTotal())},
		[]string{"calls on damaged data", fmt.Sprint(s.GetDataLossTotal())},
	)...)
}

func (a *app) newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program; stats prints the server's",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if a.output == "json" {
				_, err := fmt.Fprintf(a.out, "{\"version\": %q, \"commit\": %q, \"date\": %q}\n",
					a.build.Version, a.build.Commit, a.build.Date)
				return err
			}
			_, err := fmt.Fprintf(a.out, "parley %s\n", a.build)
			return err
		},
	}
}
