package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const aboutRecordDelete = `Delete the records of up to 100 keys, in one commit: either all of them are deleted
or none. The command prints the keys that had a record. A key without a record is no error.

With --prefix, delete all records whose keys begin with a text, and print their number. The command
asks for confirmation. It needs --yes if standard input is not a terminal. It deletes up to 100
records at a time: if it fails, it has deleted some.

--output json prints the number of deleted records: {"deleted": 2}.`

// recordDelete are the flags of record delete.
type recordDelete struct {
	scope      recordScope
	prefix     string
	byPrefix   bool
	yes        bool
	ifRevision *int64
	requestID  string
}

func (a *app) newRecordDeleteCommand() *cobra.Command {
	var f recordDelete
	command := &cobra.Command{
		Use:   "delete {KEY... | --prefix TEXT}",
		Short: "Delete records",
		Long:  aboutRecordDelete,
		Example: `  parley record delete -c shop cart
  parley record delete -c shop --prefix checkpoints/`,
		RunE: func(command *cobra.Command, keys []string) error {
			f.byPrefix = command.Flags().Changed("prefix")
			if err := f.check(keys); err != nil {
				return err
			}
			if !f.byPrefix {
				return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
					return a.deleteRecords(ctx, c, &f, keys)
				})
			}
			switch {
			case f.yes:
			case !a.inTerminal: // The prefix may be the value of an empty variable of a script.
				return usageError("--prefix: set --yes to delete without a terminal that can be asked for confirmation")
			default:
				if err := a.confirm(command.Context(), f.question()); err != nil {
					return err
				}
			}
			return a.interruptibleCall(command.Context(), func(ctx context.Context, c *client.Client) error {
				return a.deletePrefix(ctx, c, &f)
			})
		},
	}
	f.scope.add(command)
	flags := command.Flags()
	flags.StringVar(&f.prefix, "prefix", "", `delete all records whose keys begin with this text, "" for all`)
	flags.BoolVarP(&f.yes, "yes", "y", false, "do not ask for confirmation")
	flags.Var(revisionFlag{&f.ifRevision}, "if-revision", "delete the record only if it is at this revision")
	flags.StringVar(&f.requestID, "request-id", "",
		"id of the request: a second delete with the same id changes nothing")
	return command
}

// check returns an error if the command line is invalid.
func (f *recordDelete) check(keys []string) error {
	switch {
	case f.byPrefix == (len(keys) > 0):
		return usageError("name the keys of the records to delete, or set --prefix")
	case f.byPrefix && (f.ifRevision != nil || f.requestID != ""):
		return usageError("--prefix: leave out --if-revision and --request-id")
	case f.yes && !f.byPrefix:
		return usageError("--yes is for --prefix: the records of KEY are deleted without a question")
	case f.ifRevision != nil && len(keys) > 1:
		return usageError("--if-revision is for one KEY")
	}
	return f.scope.check()
}

// question asks whether to delete by prefix.
func (f *recordDelete) question() string {
	which := "all records"
	if f.prefix != "" {
		which = fmt.Sprintf("all records whose keys begin with %q", f.prefix)
	}
	return fmt.Sprintf("permanently delete %s of %s?", which, f.scope.String())
}

// deleteRecords deletes the records of keys in one commit, and prints those that existed before.
func (a *app) deleteRecords(ctx context.Context, c *client.Client, f *recordDelete, keys []string) error {
	request := &parleyv1.WriteRecordsRequest{ConversationId: f.scope.conversation, RequestId: f.requestID}
	for _, key := range keys {
		request.Writes = append(request.Writes, &parleyv1.RecordWrite{Key: key, Delete: true, IfRevision: f.ifRevision})
	}
	existing := keys
	if len(keys) > 1 { // The reply says only whether there was any record.
		before, err := c.GetRecords(ctx, &parleyv1.GetRecordsRequest{ConversationId: f.scope.conversation, Keys: keys})
		if err != nil {
			return err
		}
		existing = before.GetOmittedKeys() // They exist too, the reply only had no space.
		for _, record := range before.GetRecords() {
			existing = append(existing, record.GetKey())
		}
	}
	reply, err := c.WriteRecords(ctx, request)
	if err != nil {
		return err
	}
	if reply.GetReplayed() && f.requestID != "" { // The records that exist now were written after the deletion.
		fmt.Fprintln(a.err, "this request id was already used: its first use deleted the records")
		existing = nil
	}
	if cmp.Or(reply.GetRevision(), reply.GetTenantRevision()) == 0 {
		existing = nil
	}
	if a.output == "json" || len(existing) == 0 {
		return a.printDeleted(len(existing))
	}
	return a.print(nil, func(w io.Writer) {
		for _, key := range keys {
			if slices.Contains(existing, key) {
				fmt.Fprintf(w, "deleted %s\n", a.printable(key))
			}
		}
	})
}

// printDeleted prints how many records were deleted.
func (a *app) printDeleted(n int) error {
	text := "deleted " + count(n, "record")
	if a.output == "json" {
		text = fmt.Sprintf(`{"deleted": %d}`, n)
	}
	_, err := fmt.Fprintln(a.out, text)
	return err
}

// deletePrefix deletes records page by page and prints their number, also if it fails.
func (a *app) deletePrefix(ctx context.Context, c *client.Client, f *recordDelete) error {
	deleted := 0
	request := &parleyv1.ListRecordsRequest{
		ConversationId: f.scope.conversation, Prefix: f.prefix, KeysOnly: true, PageSize: client.MaxRecordKeys,
	}
	for more := true; more; more = request.GetPageToken() != "" {
		n, err := a.deletePage(ctx, c, f.scope.records(c), request)
		deleted += n
		if err != nil {
			fmt.Fprintf(a.err, "deleted %s\n", count(deleted, "record"))
			return err
		}
	}
	return a.printDeleted(deleted)
}

// deletePage deletes the records of the next page of a list and returns their number. --timeout applies to the page and
// to its deletion.
func (a *app) deletePage(
	ctx context.Context, c *client.Client, records client.Records, request *parleyv1.ListRecordsRequest,
) (deleted int, err error) {
	page, err := a.recordPage(ctx, c, request)
	if err != nil {
		return 0, err
	}
	keys := make([]string, len(page.GetRecords()))
	for i, record := range page.GetRecords() {
		keys[i] = record.GetKey()
	}
	ctx, cancel := a.withTimeout(ctx)
	defer cancel()
	if err := records.Delete(ctx, keys); err != nil {
		return 0, err
	}
	return len(keys), nil
}
