package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const aboutExport = `Write complete conversations as JSON Lines, one conversation on each line. Without ID, export
writes all conversations, the oldest first; otherwise it writes the named ones in that order.
parley import imports them with their ids, sequences and times. Each line is

  {"conversation": {...}, "messages": [...]}

with the fields that are set. The same conversation always results in the same bytes. --output has no
effect on the lines.

Each conversation is exported in its state at that moment. Conversations that are created during the
export may be missing. If the export fails, the exit code is 1. Standard output then contains only
complete lines; a FILE is written completely or not at all, with permissions for its owner only. If
the server finds damaged conversations, it sends all others first. To keep those, do not use --to.`

// exportFlags are the flags of export.
type exportFlags struct {
	to    string
	quiet bool
}

func (a *app) newExportCommand() *cobra.Command {
	var f exportFlags
	command := &cobra.Command{
		Use:   "export [ID...]",
		Short: "Write complete conversations, one on each line",
		Long:  aboutExport,
		Example: `  parley export > conversations.jsonl
  parley export shop --to shop.jsonl
  parley export --quiet | parley import --address 127.0.0.1:50052`,
		RunE: func(command *cobra.Command, ids []string) error {
			if !a.timeoutSet {
				a.timeout = 0 // The duration depends on the number of conversations.
			}
			return a.export(command.Context(), ids, f)
		},
	}
	flags := command.Flags()
	flags.StringVar(&f.to, "to", "", "write to this file, replacing its content, instead of standard output")
	flags.BoolVar(&f.quiet, "quiet", false, "print only errors to standard error, no progress and no count")
	return command
}

// check returns an error if --to is not a regular file, because a device or pipe would be replaced by one.
func (f exportFlags) check() error {
	if info, err := os.Stat(f.to); err == nil && !info.Mode().IsRegular() {
		return usageError(fmt.Sprintf("--to %q: not a regular file; leave out --to to write to standard output", f.to))
	}
	return nil
}

// export writes conversations to the destination of f and prints their number.
func (a *app) export(ctx context.Context, ids []string, f exportFlags) error {
	if err := f.check(); err != nil {
		return err
	}
	exported := 0
	write := func(w io.Writer) error {
		return a.call(ctx, func(ctx context.Context, c *client.Client) (err error) {
			exported, err = a.exportTo(ctx, c, w, ids, f)
			return err
		})
	}
	var err error
	if f.to == "" {
		err = write(a.out)
	} else {
		err = replaceFile(f.to, write)
	}
	switch {
	case err != nil && f.to != "":
		fmt.Fprintf(a.err, "received %s; %s is unchanged\n", count(exported, "conversation"), f.to)
	case err != nil:
		fmt.Fprintf(a.err, "%s written\n", count(exported, "conversation"))
	case !f.quiet:
		fmt.Fprintf(a.err, "exported %s\n", count(exported, "conversation"))
	}
	return err
}

// exportTo writes conversations to w and returns their number, also with an error.
func (a *app) exportTo(
	ctx context.Context, c *client.Client, w io.Writer, ids []string, f exportFlags,
) (count int, err error) {
	bar, err := a.exportProgress(ctx, c, ids, f)
	if err != nil {
		return 0, err
	}
	defer bar.clear()
	stream, err := c.ExportConversations(ctx, &parleyv1.ExportConversationsRequest{ConversationIds: ids})
	if err != nil {
		return 0, err
	}
	for conversation, err := range joinParts(stream.Recv) {
		if err != nil {
			return count, err
		}
		if err := writeLine(w, conversation); err != nil {
			return count, err
		}
		count++
		bar.add(1)
	}
	return count, nil
}

// exportProgress returns a progress bar that counts conversations. It is not shown if standard error is not
// a terminal, with --quiet, or if the conversations go to the terminal.
func (a *app) exportProgress(ctx context.Context, c *client.Client, ids []string, f exportFlags) (*progress, error) {
	bar := &progress{err: a.err}
	if !a.errTerminal || f.quiet || a.outTerminal && f.to == "" {
		return bar, nil
	}
	total := int64(len(ids))
	if total == 0 {
		list, err := c.ListConversations(ctx, &parleyv1.ListConversationsRequest{PageSize: 1})
		if err != nil {
			return nil, err
		}
		total = list.GetTotalSize()
	}
	bar.show("exporting", total)
	return bar, nil
}

// joinParts joins the parts of conversations that receive returns until io.EOF. An error is the last element;
// an incomplete conversation before it is left out.
func joinParts(
	receive func() (*parleyv1.ExportConversationsResponse, error),
) iter.Seq2[*parleyv1.ExportConversationsResponse, error] {
	return func(yield func(*parleyv1.ExportConversationsResponse, error) bool) {
		var joined *parleyv1.ExportConversationsResponse // nil between two conversations
		for {
			part, err := receive()
			ended := errors.Is(err, io.EOF)
			switch id := joined.GetConversation().GetId(); {
			case err != nil && !ended:
				yield(nil, err)
				return
			case joined != nil && (ended || part.GetConversation().GetId() != id):
				yield(nil, fmt.Errorf("conversation %q: only %d of %d messages received",
					id, len(joined.GetMessages()), joined.GetConversation().GetMessageCount()))
				return
			case ended:
				return
			case joined == nil:
				joined = part
			default:
				joined.Messages = append(joined.Messages, part.GetMessages()...)
			}
			if len(joined.GetMessages()) >= int(joined.GetConversation().GetMessageCount()) {
				if !yield(joined, nil) {
					return
				}
				joined = nil
			}
		}
	}
}

// writeLine writes a conversation as one line of JSON. Unlike in replies, empty fields are left out. The
// file is smaller, and a server that does not know a field accepts the lines that do not use it.
func writeLine(w io.Writer, conversation *parleyv1.ExportConversationsResponse) error {
	spaced, err := protojson.Marshal(conversation)
	if err != nil {
		return fmt.Errorf("conversation %q: %w", conversation.GetConversation().GetId(), err)
	}
	var line bytes.Buffer
	if err := json.Compact(&line, spaced); err != nil { // protojson varies its spaces on purpose.
		return fmt.Errorf("conversation %q: %w", conversation.GetConversation().GetId(), err)
	}
	line.WriteByte('\n')
	_, err = line.WriteTo(w)
	return err
}

// replaceFile writes the content that write writes to the file name, with mode 0600. If an error occurs, the
// file keeps its old content.
func replaceFile(name string, write func(io.Writer) error) error {
	if target, err := filepath.EvalSymlinks(name); err == nil {
		name = target // Otherwise the rename would replace the link.
	}
	file, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	err = write(file)
	if err == nil {
		err = file.Sync()
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = os.Rename(file.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}
