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

const aboutWatch = `Print changes of conversations as they are committed, one on each line. Without ID, watch prints the
changes of all conversations; the named ones need not exist yet. Ctrl-C ends the watch, and so does
--timeout if it is set; the exit code is then 0. After a broken connection watch reconnects, and no
change is missing or repeated. If the server no longer has the changes of that time, a line says so.

Long messages are shortened; parley show prints them completely. With --output json each line is one
change as the server sends it. --from continues after the cursor of a change. A change of kind
CHANGE_KIND_HEARTBEAT comes first, and after every 15 s without a change. CHANGE_KIND_GAP means that
changes are missing and that the state must be read again.

--delete-after-disconnect makes the named conversations ephemeral. While such a watch is connected,
they neither expire nor are evicted. They are deleted this long after the last such watch has ended,
whether by Ctrl-C, kill -9 or a broken connection, unless another such watch begins before. 0s
deletes them at once.`

func (a *app) newWatchCommand() *cobra.Command {
	var request parleyv1.WatchConversationsRequest
	var deleteAfter duration
	command := &cobra.Command{
		Use:   "watch [ID...]",
		Short: "Print changes of conversations as they are committed",
		Long:  aboutWatch,
		Example: `  parley watch
  parley watch shop --turns
  parley watch draft-7 --delete-after-disconnect 5s
  parley watch --output json | jq -r 'select(.message).message.content'`,
		RunE: func(command *cobra.Command, args []string) error {
			request.ConversationIds = args
			if command.Flags().Changed("delete-after-disconnect") {
				if len(args) == 0 {
					return usageError("--delete-after-disconnect needs the ID of a conversation to delete")
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
	flags.StringVar(&request.Cursor, "from", "",
		"continue after this cursor of --output json; if empty, print only new changes")
	flags.BoolVar(&request.IncludeTurnEvents, "turns", false, "also print answers as they arrive, and how turns end")
	flags.BoolVar(&request.IncludeRecords, "records", false,
		"also print which records of conversations are written and deleted, without their values")
	flags.Var(&deleteAfter, "delete-after-disconnect",
		"make the named conversations ephemeral: delete them this long after the last such watch has ended")
	return command
}

// watch prints changes until ctx ends or an error occurs. Ctrl-C and the end of --timeout are no errors.
func (a *app) watch(ctx context.Context, c *client.Client, request *parleyv1.WatchConversationsRequest) error {
	writer := changeWriter{app: a, watched: request.GetConversationIds()}
	active := false
	for change, err := range c.WatchConversations(ctx, request) {
		if err != nil {
			// Ctrl-C, SIGTERM and, once the watch is active, the end of --timeout are regular ends.
			late := status.Code(err) == codes.DeadlineExceeded
			if late && active || !late && ctx.Err() != nil {
				err = nil
			}
			return errors.Join(writer.end(), err)
		}
		if !active && change.GetKind() == parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT {
			active = true
			a.noteWatch(request)
		}
		if a.output == "json" {
			err = a.printLine(change)
		} else {
			err = writer.show(change)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// noteWatch informs the user of a terminal that the watch is active, although there is no output yet.
func (a *app) noteWatch(request *parleyv1.WatchConversationsRequest) {
	if !a.errTerminal {
		return
	}
	which := "all conversations"
	if n := len(request.GetConversationIds()); n > 0 {
		which = count(n, "conversation")
	}
	if after := request.GetDeleteAfterDisconnect(); after != nil {
		which += fmt.Sprintf(", deleted %s after this ends", after.AsDuration())
	}
	fmt.Fprintf(a.err, "watching %s; press Ctrl-C to stop\n", which)
}
