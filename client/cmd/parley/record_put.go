package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const aboutRecordPut = `Write a record and print its revision. The value is VALUE, the content of the file of
--from, or standard input, each as it is. For an empty value, write '' as VALUE. It replaces the value,
media type and labels of a record that exists.`

// recordPut are the flags and the argument of record put.
type recordPut struct {
	scope     recordScope
	write     parleyv1.RecordWrite
	from      string
	asJSON    bool
	ttl       duration
	requestID string
}

func (a *app) newRecordPutCommand() *cobra.Command {
	var f recordPut
	command := &cobra.Command{
		Use:   "put KEY [VALUE | -]",
		Short: "Write a record and print its revision",
		Long:  aboutRecordPut,
		Example: `  parley record put -c shop cart '{"items": []}' --json --if-revision 0
  parley record put -c shop photo --from photo.png --media-type image/png
  parley record put --tenant-scope cache/today --ttl 24h < today.txt`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(command *cobra.Command, args []string) error {
			if err := f.check(command, args); err != nil {
				return err
			}
			if err := a.readRecord(command.Context(), &f, args); err != nil {
				return err
			}
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				return a.putRecord(ctx, c, &f)
			})
		},
	}
	f.scope.add(command)
	flags := command.Flags()
	flags.StringVar(&f.from, "from", "", "write the content of `FILE`; - is standard input")
	flags.BoolVar(&f.asJSON, "json", false,
		"check that the value is JSON in UTF-8, and set the media type application/json")
	flags.StringVar(&f.write.MediaType, "media-type", "", "what the value is, such as image/png")
	flags.Var(labelsFlag{labels: &f.write.Labels}, "label", "label as key=value; may be repeated")
	flags.Var(&f.ttl, "ttl",
		"time to live of the record, such as 90s or 7d; only with --tenant-scope (default: it does not expire)")
	flags.Var(revisionFlag{&f.write.IfRevision}, "if-revision",
		"write only if the record is at this revision; 0: only if it does not exist")
	flags.StringVar(&f.requestID, "request-id", "", "id of the request: a second put with the same id changes nothing")
	return command
}

// check returns an error if the command line is invalid. It sets the fields of the write that need no input.
func (f *recordPut) check(command *cobra.Command, args []string) error {
	flags := command.Flags()
	switch {
	case flags.Changed("from") && len(args) > 1:
		return usageError("set --from or VALUE, not both")
	case f.asJSON && flags.Changed("media-type"):
		return usageError("--json sets the media type: leave out --media-type")
	case flags.Changed("ttl") && !f.scope.tenant:
		return usageError("--ttl needs --tenant-scope: the records of a conversation expire with it")
	}
	f.write.Key = args[0]
	if flags.Changed("ttl") {
		f.write.Ttl = durationpb.New(time.Duration(f.ttl))
	}
	if f.asJSON {
		f.write.MediaType = "application/json"
	}
	return f.scope.check()
}

// readRecord reads the value of the write.
func (a *app) readRecord(ctx context.Context, f *recordPut, args []string) (err error) {
	switch {
	case len(args) > 1 && args[1] != "-":
		f.write.Value = []byte(args[1])
	case len(args) > 1:
		f.write.Value, err = a.readAll(ctx)
	case f.from != "":
		f.write.Value, err = a.readInput(ctx, f.from)
	case !a.inTerminal:
		f.write.Value, err = a.readAll(ctx)
		if err == nil && len(f.write.GetValue()) == 0 {
			// For example, a script without standard input has forgotten VALUE, or the program before it has failed.
			return usageError("no value: standard input is empty; write VALUE, or '' for an empty value")
		}
	default:
		return usageError("no value: write VALUE, set --from, or pass a value on standard input")
	}
	if err != nil || !f.asJSON {
		return err
	}
	if !utf8.Valid(f.write.GetValue()) {
		return usageError("--json: the value is not JSON: it has invalid UTF-8")
	}
	var document json.RawMessage
	if err := json.Unmarshal(f.write.GetValue(), &document); err != nil {
		return usageError(fmt.Sprintf("--json: the value is not JSON: %v", err))
	}
	return nil
}

// putRecord writes the record and prints its revision.
func (a *app) putRecord(ctx context.Context, c *client.Client, f *recordPut) error {
	reply, err := c.WriteRecords(ctx, &parleyv1.WriteRecordsRequest{
		ConversationId: f.scope.conversation, Writes: []*parleyv1.RecordWrite{&f.write}, RequestId: f.requestID,
	})
	if err != nil {
		return err
	}
	return a.print(reply, func(w io.Writer) {
		revision := cmp.Or(reply.GetRevision(), reply.GetTenantRevision())
		table(w, []string{"KEY", "REVISION"}, []string{f.write.GetKey(), fmt.Sprint(revision)})
	})
}

// addRecordFlag adds the flag of the commands that write records with a message; recordWrites converts its values.
func addRecordFlag(command *cobra.Command, records *[]string) {
	command.Flags().StringArrayVar(records, "record", nil,
		"write a record of the conversation in the same commit, KEY=VALUE or KEY=@FILE; "+
			"@@ begins a VALUE with @; may be repeated")
}

// recordWrites returns the records of the flag --record, each KEY=VALUE or KEY=@FILE. A VALUE that begins with "@" is
// written with another "@" before it.
func (a *app) recordWrites(ctx context.Context, records []string) ([]*parleyv1.RecordWrite, error) {
	var writes []*parleyv1.RecordWrite
	for _, record := range records {
		key, text, found := strings.Cut(record, "=")
		if !found || key == "" {
			return nil, usageError(fmt.Sprintf("--record %q: want KEY=VALUE or KEY=@FILE", short(record, 50)))
		}
		value := []byte(text)
		name, isFile := strings.CutPrefix(text, "@")
		switch {
		case isFile && strings.HasPrefix(name, "@"):
			value = []byte(name)
		case isFile && name == "-":
			return nil, usageError("--record: standard input contains the message, name a file")
		case isFile:
			var err error
			if value, err = a.readInput(ctx, name); err != nil {
				return nil, fmt.Errorf("--record %s: %w; write @@ for a value that begins with @", short(record, 50), err)
			}
		}
		writes = append(writes, &parleyv1.RecordWrite{Key: key, Value: value})
	}
	return writes, nil
}
