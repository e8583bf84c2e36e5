package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const aboutRecord = `Read and write records: values under keys, such as the state, checkpoints and artifacts
of a framework. They belong to a conversation, and end with it, or to the tenant. Name the
conversation with -c, or use --tenant-scope.

A record has a revision, which rises with each write. --if-revision writes or deletes only if the
record still has that revision; 0 means that it must not exist. A value may have up to 3 MiB.`

func (a *app) newRecordCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "record",
		Short: "Read and write the records of a conversation or of the tenant",
		Long:  aboutRecord,
		Example: `  parley record put -c shop cart '{"items": []}' --json
  parley record get -c shop cart
  parley record list -c shop --prefix checkpoints/
  parley record delete -c shop cart`,
		Args: cobra.NoArgs, // With NoArgs, cobra reports an unknown subcommand.
		RunE: func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	command.AddCommand(a.newRecordPutCommand(), a.newRecordGetCommand(), a.newRecordListCommand(),
		a.newRecordDeleteCommand())
	return command
}

// recordScope are the flags that name the owner of records.
type recordScope struct {
	conversation string
	tenant       bool
}

// add adds the flags to a command.
func (s *recordScope) add(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVarP(&s.conversation, "conversation", "c", "", "use the records of this conversation")
	flags.BoolVar(&s.tenant, "tenant-scope", false, "use the records of the tenant, which belong to no conversation")
}

// check returns an error unless the flags name one owner.
func (s *recordScope) check() error {
	if (s.conversation != "") == s.tenant {
		return usageError("set either --conversation or --tenant-scope, to name the owner of the records")
	}
	return nil
}

// records returns the records of the owner.
func (s *recordScope) records(c *client.Client) client.Records {
	if s.tenant {
		return c.TenantRecords()
	}
	return c.Records(s.conversation)
}

// String returns the owner for messages.
func (s *recordScope) String() string {
	if s.tenant {
		return "the tenant"
	}
	return "conversation " + oneLine(s.conversation)
}

const aboutRecordGet = `Print the value of a record as it is. With --to, write it to a file, which is replaced
with permissions for its owner only. --output json prints the record with its revision, media type
and labels, and its value in base64; with --to it leaves out the value.

With --revision, print only the revision, for --if-revision of put and delete. It is 0 for a record
that does not exist; without --revision that is an error.`

func (a *app) newRecordGetCommand() *cobra.Command {
	var scope recordScope
	var to string
	var onlyRevision bool
	command := &cobra.Command{
		Use:   "get KEY",
		Short: "Print the value of a record",
		Long:  aboutRecordGet,
		Example: `  parley record get -c shop cart | jq .items
  parley record get -c shop cart --revision
  parley record get --tenant-scope logo --to logo.png`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if err := scope.check(); err != nil {
				return err
			}
			if to != "" && onlyRevision {
				return usageError("--revision prints no value: leave out --to")
			}
			if err := checkTarget(to); err != nil {
				return err
			}
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				record, err := scope.records(c).Get(ctx, args[0])
				switch {
				case err != nil:
					return err
				case onlyRevision: // 0 if there is no record.
					_, err = fmt.Fprintln(a.out, record.GetRevision())
					return err
				case record == nil:
					return fmt.Errorf("%s has no record %q (RECORD_NOT_FOUND)", scope.String(), args[0])
				}
				return a.writeRecord(record, to)
			})
		},
	}
	scope.add(command)
	flags := command.Flags()
	flags.StringVar(&to, "to", "", "write the value to this file, replacing its content, instead of standard output")
	flags.BoolVar(&onlyRevision, "revision", false, "print only the revision of the record, 0 if it does not exist")
	return command
}

// writeRecord writes the value of a record to the file to, or to standard output if to is empty.
func (a *app) writeRecord(record *parleyv1.Record, to string) error {
	value := record.GetValue()
	switch {
	case to != "":
		err := replaceFile(to, func(w io.Writer) error {
			_, err := w.Write(value)
			return err
		})
		if err != nil || a.output != "json" {
			return err
		}
		record.Value = nil
		return a.print(record, nil)
	case a.output == "json":
		return a.print(record, nil)
	case a.outTerminal:
		_, err := fmt.Fprintln(a.out, sanitize(string(value)))
		return err
	default:
		_, err := a.out.Write(value)
		return err
	}
}
