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

const aboutAgent = `Say which agent is to get the next messages of a conversation: the active agent, which holds
its routing lease. Chat without --agent goes to it, ahead of the conversation's own agent, and
parley summary names it to coordinators. It may be an agent that this server does not have;
chat without --agent is refused then. parley agents lists those that it has.`

func (a *app) newAgentCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "agent",
		Short: "Give an agent the next messages of a conversation, or end that",
		Long:  aboutAgent,
		Args:  cobra.NoArgs, // Also names a subcommand that does not exist.
		RunE:  func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	command.AddCommand(a.newAgentSetCommand(), a.newAgentClearCommand())
	return command
}

func (a *app) newAgentSetCommand() *cobra.Command {
	var request parleyv1.SetActiveAgentRequest
	var lease duration
	command := &cobra.Command{
		Use:   "set ID AGENT",
		Short: "Make an agent the active one",
		Example: `  parley agent set shop writer --reason "it asked which product" --for 10m
  parley agent set shop writer --if-version 7`,
		Args: cobra.ExactArgs(2),
		RunE: func(command *cobra.Command, args []string) error {
			request.ConversationId, request.Agent = args[0], args[1]
			if request.GetAgent() == "" {
				return usageError("AGENT is empty; parley agent clear ends the lease")
			}
			if command.Flags().Changed("for") {
				request.LeaseDuration = durationpb.New(time.Duration(lease))
			}
			return a.setActiveAgent(command, &request)
		},
	}
	flags := command.Flags()
	flags.StringVar(&request.Reason, "reason", "", "why, for people")
	flags.Var(&lease, "for", "how long, as in 10m or 7d (default: until the conversation ends)")
	addIfVersion(command)
	return command
}

func (a *app) newAgentClearCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "clear ID",
		Short: "End what set began: the conversation's own agent answers again",
		Args:  cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			return a.setActiveAgent(command, &parleyv1.SetActiveAgentRequest{ConversationId: args[0]})
		},
	}
	addIfVersion(command)
	return command
}

func addIfVersion(command *cobra.Command) {
	command.Flags().Int32("if-version", 0, "only if the conversation is at this version")
}

// setActiveAgent sends request, with the --if-version of command, and says who is active then.
func (a *app) setActiveAgent(command *cobra.Command, request *parleyv1.SetActiveAgentRequest) error {
	if command.Flags().Changed("if-version") {
		version, err := command.Flags().GetInt32("if-version")
		if err != nil {
			return err
		}
		request.IfVersion = &version
	}
	return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
		reply, err := c.SetActiveAgent(ctx, request)
		if err != nil {
			return err
		}
		return a.print(reply, func(w io.Writer) { a.printActiveAgent(w, reply.GetConversation()) })
	})
}

func (a *app) printActiveAgent(w io.Writer, c *parleyv1.Conversation) {
	who, until := "none", ""
	if lease := c.GetActiveAgent(); lease != nil {
		who = lease.GetAgent()
		if lease.GetLeaseExpireTime() != nil {
			until = ", until " + a.when(lease.GetLeaseExpireTime())
		}
	}
	fmt.Fprintln(w, oneLine(fmt.Sprintf("active agent of %s: %s%s", c.GetId(), who, until)))
}
