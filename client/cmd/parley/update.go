package main

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// updatePaths returns the flags of update with the paths of the fields that they change.
func updatePaths() [][2]string {
	return [][2]string{
		{"title", "title"},
		{"label", "labels"},
		{"agent", "agent"},
		{"system", "system_prompt"},
		{"max-messages", "retention.max_messages"},
		{"ttl", "retention.ttl"},
		{"keep-all", "retention.keep_all"},
		{"no-expiry", "retention.no_expiry"},
		{"no-eviction", "retention.no_eviction"},
		{"max-turns", "retention.max_turns"},
	}
}

const aboutUpdate = `Change the fields of a conversation whose flags are set, and print it. An empty value clears the
field of --title, --label, --agent and --system. --label replaces all labels. --ttl "", --max-messages 0
and --max-turns 0 change back to the defaults. Set a flag to false to change the retention back:
--keep-all=false drops the messages over the limit at once.`

func (a *app) newUpdateCommand() *cobra.Command {
	var header headerFlags
	var ifVersion int32
	command := &cobra.Command{
		Use:   "update ID",
		Short: "Change the title, agent, retention and so on of a conversation",
		Long:  aboutUpdate,
		Example: `  parley update shop --title "The shop" --ttl 7d
  parley update shop --label "" --ttl ""
  parley update shop --keep-all --no-expiry=false`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			request := &parleyv1.UpdateConversationRequest{
				Conversation: header.conversation(), UpdateMask: new(fieldmaskpb.FieldMask),
			}
			request.Conversation.Id = args[0]
			var names []string
			for _, path := range updatePaths() {
				names = append(names, "--"+path[0])
				if command.Flags().Changed(path[0]) {
					request.UpdateMask.Paths = append(request.UpdateMask.Paths, path[1])
				}
			}
			if len(request.GetUpdateMask().GetPaths()) == 0 {
				return usageError("nothing to change: set at least one of " + strings.Join(names, ", "))
			}
			if command.Flags().Changed("if-version") {
				request.IfVersion = new(ifVersion)
			}
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				reply, err := c.UpdateConversation(ctx, request)
				if err != nil {
					return err
				}
				return a.print(reply, func(w io.Writer) { a.printConversation(w, reply.GetConversation()) })
			})
		},
	}
	header.add(command, true)
	command.Flags().Int32Var(&ifVersion, "if-version", 0, "change it only if it is at this version")
	return command
}
