package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const aboutWatch = `Show what happens to conversations as it happens, a line for each change: to those named,
which need not exist yet, or to all. Ctrl-C, or the end of --timeout where that is set, ends
it; the exit code is 0 then. A connection that breaks is made anew, and nothing is missed or
shown twice; where the server does not know any more what has happened since, a line says so.

Long messages are cut in the lines; parley show has them whole. With --output json each line
is one change as the server sends it. Its cursor is where --from goes on: behind it. A change
of kind CHANGE_KIND_HEARTBEAT comes first of all, and after every 15 s of silence; one of
CHANGE_KIND_GAP says that changes are missing, and that the state has to be read anew.

--delete-after-disconnect makes the conversations named session memory: while somebody
watches them so, they neither expire nor make room for others; they are deleted that long
after the last such watch has ended, be it with Ctrl-C, kill -9 or a broken connection. Who
comes back in time keeps them. 0s deletes them at once.`

func (a *app) newWatchCommand() *cobra.Command {
	var request parleyv1.WatchConversationsRequest
	var deleteAfter duration
	command := &cobra.Command{
		Use:   "watch [ID...]",
		Short: "Show what happens to conversations as it happens",
		Long:  aboutWatch,
		Example: `  parley watch
  parley watch shop --turns
  parley watch session-7 --delete-after-disconnect 5s
  parley watch --output json | jq -r 'select(.message).message.content'`,
		RunE: func(command *cobra.Command, args []string) error {
			request.ConversationIds = args
			if command.Flags().Changed("delete-after-disconnect") {
				if len(args) == 0 {
					return usageError("--delete-after-disconnect needs an ID: which conversations to delete")
				}
				request.DeleteAfterDisconnect = durationpb.New(time.Duration(deleteAfter))
			}
			if !a.timeoutSet {
				a.timeout = 0
			}
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				return a.watch(ctx, c, &request)
			})
		},
	}
	flags := command.Flags()
	flags.StringVar(&request.Cursor, "from", "", "cursor to go on behind, from --output json; from now on when empty")
	flags.BoolVar(&request.IncludeTurnEvents, "turns", false, "show answers as they come, and how turns end")
	flags.Var(&deleteAfter, "delete-after-disconnect", "session memory: delete the conversations named so long after the last such watch on them has ended")
	return command
}

// watch shows changes until there is no more time or somebody ends it.
func (a *app) watch(ctx context.Context, c *client.Client, request *parleyv1.WatchConversationsRequest) error {
	lines := changeLines{app: a, watched: request.GetConversationIds()}
	stands := false
	for change, err := range c.WatchConversations(ctx, request) {
		if err != nil {
			// What ends a watch is that somebody ends it, or the time that it was given.
			late := status.Code(err) == codes.DeadlineExceeded
			if late && stands || !late && ctx.Err() != nil {
				err = nil
			}
			return errors.Join(lines.end(), err)
		}
		if !stands && change.GetKind() == parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT {
			stands = true
			a.noteWatch(request)
		}
		if a.output == "json" {
			err = a.printLine(change)
		} else {
			err = lines.show(change)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// noteWatch tells who sits before a terminal that the silence is not one of the server.
func (a *app) noteWatch(request *parleyv1.WatchConversationsRequest) {
	if !a.errTerminal {
		return
	}
	which := "all conversations"
	if n := len(request.GetConversationIds()); n > 0 {
		which = count(n, "conversation")
	}
	if after := request.GetDeleteAfterDisconnect(); after != nil {
		which += fmt.Sprintf(", to be deleted %s after this ends", after.AsDuration())
	}
	fmt.Fprintf(a.err, "watching %s; Ctrl-C ends it\n", which)
}
