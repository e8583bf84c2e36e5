package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func (a *app) newShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show a conversation and its messages",
		Args:  cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				history, err := history(ctx, c, args[0])
				if err != nil {
					return err
				}
				return a.print(history, func(w io.Writer) {
					a.printConversation(w, history.GetConversation())
					if len(history.GetMessages()) > 0 {
						fmt.Fprintln(w)
					}
					a.printMessages(w, history.GetMessages())
				})
			})
		},
	}
}

// history returns a conversation with all its messages, oldest first. If they need several pages, the header
// is that of the last page.
func history(ctx context.Context, c *client.Client, id string) (*parleyv1.ListMessagesResponse, error) {
	request := &parleyv1.ListMessagesRequest{ConversationId: id, PageSize: maxPage, Ascending: true}
	var messages []*parleyv1.Message
	for {
		page, err := c.ListMessages(ctx, request)
		if err != nil {
			return nil, err
		}
		messages = append(messages, page.GetMessages()...)
		if request.PageToken = page.GetNextPageToken(); request.GetPageToken() == "" {
			page.Messages = messages
			return page, nil
		}
	}
}

// printConversation writes the fields of the header that are set.
func (a *app) printConversation(w io.Writer, c *parleyv1.Conversation) {
	var rows [][]string
	row := func(name, value string) {
		if value != "" {
			rows = append(rows, []string{name, value})
		}
	}
	row("conversation", c.GetId())
	row("title", c.GetTitle())
	for _, key := range slices.Sorted(maps.Keys(c.GetLabels())) {
		row("label", key+"="+c.GetLabels()[key])
	}
	row("agent", c.GetAgent())
	row("active agent", activeAgent(c.GetActiveAgent()))
	row("active turn", c.GetActiveTurnId())
	row("system prompt", c.GetSystemPrompt())
	row("version", fmt.Sprint(c.GetVersion()))
	kept := fmt.Sprintf("%d at most", c.GetRetention().GetMaxMessages())
	if c.GetRetention().GetKeepAll() {
		kept = "all are kept"
	}
	row("messages", fmt.Sprintf("%d, %s, %s, last sequence %d", c.GetMessageCount(), kept,
		size(int64(c.GetSizeBytes())), c.GetLastSequence()))
	turns := fmt.Sprintf("newest %d", c.GetRetention().GetMaxTurns())
	if c.GetRetention().GetMaxTurns() == 0 {
		turns = fmt.Sprintf("newest %d, the default", defaultMaxTurns)
	}
	row("turns", turns)
	if c.GetRecordCount() > 0 {
		row("records", fmt.Sprintf("%d, %s", c.GetRecordCount(), size(c.GetRecordBytes())))
	}
	if origin := c.GetForkedFrom(); origin != nil {
		row("forked from", fmt.Sprintf("%s at sequence %d", origin.GetConversationId(), origin.GetSequence()))
	}
	row("created", a.when(c.GetCreateTime()))
	row("updated", a.when(c.GetUpdateTime()))
	expires := a.when(c.GetExpireTime())
	if c.GetRetention().GetNoExpiry() {
		expires = "never"
	}
	row("expires", expires)
	if c.GetRetention().GetNoEviction() {
		row("evicted", "never")
	}
	table(w, rows...)
}

// activeAgent returns the agent of a lease with its reason.
func activeAgent(lease *parleyv1.ActiveAgent) string {
	if lease.GetReason() == "" {
		return lease.GetAgent()
	}
	return lease.GetAgent() + ": " + lease.GetReason()
}

// when returns a time in seconds and its distance from now, or "" if t is nil.
func (a *app) when(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return fmt.Sprintf("%s (%s)", t.AsTime().Format(time.RFC3339), relative(a.now(), t.AsTime()))
}
