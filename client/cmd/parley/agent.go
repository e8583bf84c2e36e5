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

const aboutAgent = `Set or remove the active agent of a conversation, which holds its routing lease. The active agent
answers chat without --agent, before the conversation's own agent. parley summary shows it to
coordinators. It may be an agent that is not configured on this server; the server then refuses
chat without --agent. parley agents lists the configured agents.`

func (a *app) newAgentCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "agent",
		Short: "Set or remove the active agent of a conversation",
		Long:  aboutAgent,
		Args:  cobra.NoArgs, // With NoArgs, cobra reports an unknown subcommand.
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
	flags.StringVar(&request.Reason, "reason", "", "reason, shown to people")
	flags.Var(&lease, "for", "duration of the lease, such as 10m or 7d (default: until the conversation ends)")
	addIfVersion(command)
	return command
}

func (a *app) newAgentClearCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "clear ID",
		Short: "Remove the active agent; the conversation's own agent answers again",
		Args:  cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			return a.setActiveAgent(command, &parleyv1.SetActiveAgentRequest{ConversationId: args[0]})
		},
	}
	addIfVersion(command)
	return command
}

func addIfVersion(command *cobra.Command) {
	command.Flags().Int32("if-version", 0, "set only if the conversation is at this version")
}

// setActiveAgent sends request with the --if-version of command and prints the active agent.
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
	agent, until := "none", ""
	if lease := c.GetActiveAgent(); lease != nil {
		agent = lease.GetAgent()
		if lease.GetLeaseExpireTime() != nil {
			until = ", until " + a.when(lease.GetLeaseExpireTime())
		}
	}
	fmt.Fprintln(w, oneLine(fmt.Sprintf("active agent of %s: %s%s", c.GetId(), agent, until)))
}
