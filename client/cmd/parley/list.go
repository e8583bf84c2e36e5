package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// maxPage is the server's limit of rows in one reply.
const maxPage = 1000

func (a *app) newListCommand() *cobra.Command {
	var request parleyv1.ListConversationsRequest
	var limit int32
	var order string
	command := &cobra.Command{
		Use:   "list",
		Short: "List conversations",
		Example: `  parley list
  parley list --order updated --label team=blue --limit 10
  parley list --limit 0 --output json | jq -r '.conversations[].conversation.id'`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			switch order {
			case "created":
				request.Order = parleyv1.ListOrder_LIST_ORDER_CREATE_TIME_DESC
			case "updated":
				request.Order = parleyv1.ListOrder_LIST_ORDER_UPDATE_TIME_DESC
			default:
				return usageError(fmt.Sprintf("--order %q: use created or updated", order))
			}
			if limit < 0 {
				return usageError(fmt.Sprintf("--limit %d: must not be negative", limit))
			}
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				return a.list(ctx, c, &request, limit)
			})
		},
	}
	flags := command.Flags()
	flags.Int32Var(&limit, "limit", 50, "maximum number of conversations, 0 for all")
	flags.StringVar(&order, "order", "created", "created: newest first; updated: most recently changed first")
	flags.StringVar(&request.Text, "text", "", "only conversations whose id or title contains this text, in any case")
	flags.Var(labelsFlag{labels: &request.Labels}, "label",
		"only conversations with this label, key=value; may be repeated")
	flags.StringVar(&request.StructuredDataType, "data-type", "",
		"only conversations that contain structured data of this type")
	flags.StringVar(&request.PageToken, "page-token", "", "continue a previous list")
	return command
}

// list prints up to limit conversations, or all if limit is 0. As JSON it prints each reply as it
// arrives. As a table it prints all rows at the end, so that the columns are aligned.
func (a *app) list(
	ctx context.Context, c *client.Client, request *parleyv1.ListConversationsRequest, limit int32,
) error {
	all := &parleyv1.ListConversationsResponse{}
	for count := int32(0); limit == 0 || count < limit; {
		request.PageSize = maxPage
		if limit > 0 {
			request.PageSize = min(limit-count, maxPage)
		}
		page, err := c.ListConversations(ctx, request)
		if err != nil {
			return err
		}
		if a.output == "json" {
			if err := a.print(page, nil); err != nil {
				return err
			}
		} else {
			all.Conversations = append(all.Conversations, page.GetConversations()...)
		}
		all.TotalSize, all.NextPageToken = page.GetTotalSize(), page.GetNextPageToken()
		count += int32(len(page.GetConversations()))
		if request.PageToken = page.GetNextPageToken(); request.GetPageToken() == "" {
			break
		}
	}
	if a.output == "json" {
		return nil
	}
	if err := a.print(all, func(w io.Writer) { a.listTable(w, all) }); err != nil {
		return err
	}
	if all.GetNextPageToken() != "" {
		fmt.Fprintf(a.err, "there are more; use --page-token %s to continue\n", all.GetNextPageToken())
	}
	return nil
}

// expiry returns the distance of an expire_time from now, or "never" if it is unset.
func expiry(now time.Time, t *timestamppb.Timestamp) string {
	if t == nil {
		return "never"
	}
	return relative(now, t.AsTime())
}

func (a *app) listTable(w io.Writer, list *parleyv1.ListConversationsResponse) {
	rows := [][]string{{"ID", "MESSAGES", "UPDATED", "EXPIRES", "AGENT", "TITLE", "PREVIEW"}}
	now := a.now()
	for _, entry := range list.GetConversations() {
		c := entry.GetConversation()
		rows = append(rows, []string{
			c.GetId(),
			fmt.Sprint(c.GetMessageCount()),
			relative(now, c.GetUpdateTime().AsTime()),
			expiry(now, c.GetExpireTime()),
			c.GetAgent(),
			short(c.GetTitle(), 30),
			short(strings.TrimSpace(entry.GetPreview()), 50),
		})
	}
	table(w, fitted(a.width, rows, "AGENT", "TITLE", "PREVIEW")...)
}
