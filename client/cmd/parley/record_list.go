package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const aboutRecordList = `List records in the order of their keys, without their values. --output json prints
the records with their values in base64, a document for each page; with --keys it leaves out the
values.`

func (a *app) newRecordListCommand() *cobra.Command {
	var scope recordScope
	var request parleyv1.ListRecordsRequest
	var limit int32
	command := &cobra.Command{
		Use:   "list",
		Short: "List records",
		Long:  aboutRecordList,
		Example: `  parley record list -c shop
  parley record list -c shop --prefix checkpoints/ --descending --limit 1 --keys
  parley record list --tenant-scope --output json | jq -r '.records[].key'`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := scope.check(); err != nil {
				return err
			}
			if limit < 0 {
				return usageError(fmt.Sprintf("--limit %d: must not be negative", limit))
			}
			list := recordList{app: a, onlyKeys: request.GetKeysOnly(), limit: limit, request: &request}
			request.ConversationId, request.KeysOnly = scope.conversation, list.onlyKeys || a.output != "json"
			return a.interruptibleCall(command.Context(), list.run)
		},
	}
	scope.add(command)
	flags := command.Flags()
	flags.StringVar(&request.Prefix, "prefix", "", "only records whose keys begin with this text")
	flags.StringVar(&request.AfterKey, "after", "", "only records after this key, in the order of the list")
	flags.BoolVar(&request.Descending, "descending", false, "from the last key to the first")
	flags.BoolVar(&request.KeysOnly, "keys", false, "print only the keys, one on each line")
	flags.Int32Var(&limit, "limit", 0, "maximum number of records, 0 for all")
	return command
}

// recordList is one run of record list.
type recordList struct {
	*app

	request  *parleyv1.ListRecordsRequest
	onlyKeys bool
	limit    int32 // 0 for all.
}

// run prints the records. It prints JSON and keys as they arrive, and a table at the end, so that the columns are
// aligned.
func (l recordList) run(ctx context.Context, c *client.Client) error {
	rows, last := [][]string{{"KEY", "SIZE", "REVISION", "UPDATED", "EXPIRES", "MEDIA TYPE", "LABELS"}}, ""
	for listed := int32(0); l.limit == 0 || listed < l.limit; {
		l.request.PageSize = maxPage
		if l.limit > 0 {
			l.request.PageSize = min(l.limit-listed, maxPage)
		}
		page, err := l.recordPage(ctx, c, l.request)
		if err != nil {
			return err
		}
		switch {
		case l.output == "json":
			err = l.print(page, nil)
		case l.onlyKeys:
			err = l.printKeys(page.GetRecords())
		default:
			for _, record := range page.GetRecords() {
				rows = append(rows, l.row(record))
			}
		}
		if err != nil {
			return err
		}
		if n := len(page.GetRecords()); n > 0 {
			listed, last = listed+int32(n), page.GetRecords()[n-1].GetKey()
		}
		if l.request.GetPageToken() == "" {
			break
		}
	}
	if l.output == "json" {
		return nil
	}
	if !l.onlyKeys {
		err := l.print(nil, func(w io.Writer) { table(w, fitted(l.width, rows, "MEDIA TYPE", "LABELS")...) })
		if err != nil {
			return err
		}
	}
	if l.request.GetPageToken() != "" {
		fmt.Fprintf(l.err, "there are more; use --after=%s to continue\n", quoted(last))
	}
	return nil
}

// recordPage returns the next page of a list, and sets the page token of request to that of the page after it.
// --timeout applies to each page.
func (a *app) recordPage(
	ctx context.Context, c *client.Client, request *parleyv1.ListRecordsRequest,
) (*parleyv1.ListRecordsResponse, error) {
	ctx, cancel := a.withTimeout(ctx)
	defer cancel()
	page, err := c.ListRecords(ctx, request)
	request.PageToken = page.GetNextPageToken()
	return page, err
}

// printKeys prints the keys of records, one on each line.
func (l recordList) printKeys(records []*parleyv1.Record) error {
	var lines strings.Builder
	for _, record := range records {
		lines.WriteString(l.printable(record.GetKey()) + "\n")
	}
	_, err := io.WriteString(l.out, lines.String())
	return err
}

// row returns the row of a record in the table.
func (l recordList) row(record *parleyv1.Record) []string {
	var labels []string
	for _, key := range slices.Sorted(maps.Keys(record.GetLabels())) {
		labels = append(labels, key+"="+record.GetLabels()[key])
	}
	now, expires := l.now(), ""
	if record.GetConversationId() == "" { // Otherwise it expires with the conversation.
		expires = expiry(now, record.GetExpireTime())
	}
	return []string{
		record.GetKey(),
		size(int64(record.GetSizeBytes())),
		fmt.Sprint(record.GetRevision()),
		relative(now, record.GetUpdateTime().AsTime()),
		expires,
		record.GetMediaType(),
		strings.Join(labels, ","),
	}
}
