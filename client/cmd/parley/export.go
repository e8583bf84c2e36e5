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

const aboutExport = `Write whole conversations, all or those named, as JSON Lines: one conversation a line, the
oldest first, or in the order named. parley import takes them in elsewhere, with their ids,
sequences and times. Each line is

  {"conversation": {...}, "messages": [...]}

with the fields that are set, and the same conversation is always the same bytes. --output
changes nothing about it.

Each conversation is as it is when its turn comes; what is made meanwhile may be missing.
When the export fails the exit code is 1. What came to standard output by then is whole
lines; a FILE is written in full or not at all, for its owner's eyes only. Where the server
finds some damaged, it sends all others first: without --to they can be kept.`

// exportFlags are the flags of export.
type exportFlags struct {
	to    string
	quiet bool
}

func (a *app) newExportCommand() *cobra.Command {
	var f exportFlags
	command := &cobra.Command{
		Use:   "export [ID...]",
		Short: "Write whole conversations, one a line",
		Long:  aboutExport,
		Example: `  parley export > conversations.jsonl
  parley export shop --to shop.jsonl
  parley export --quiet | parley import --address 127.0.0.1:50052`,
		RunE: func(command *cobra.Command, ids []string) error {
			if !a.timeoutSet {
				a.timeout = 0 // It takes as long as there is something to write.
			}
			return a.export(command.Context(), ids, f)
		},
	}
	flags := command.Flags()
	flags.StringVar(&f.to, "to", "", "file to write, in place of what it holds, instead of standard output")
	flags.BoolVar(&f.quiet, "quiet", false, "no progress and no count on standard error, only what goes wrong")
	return command
}

// check reports whether there is a file to write. A device or a pipe would be replaced by one.
func (f exportFlags) check() error {
	if info, err := os.Stat(f.to); err == nil && !info.Mode().IsRegular() {
		return usageError(fmt.Sprintf("--to %q: not a file; without --to all goes to standard output", f.to))
	}
	return nil
}

// export writes conversations to where f says, and says how many they were.
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
		err = writeFile(f.to, write)
	}
	switch {
	case err != nil && f.to != "":
		fmt.Fprintf(a.err, "%s had come; %s is as it was before\n", count(exported, "conversation"), f.to)
	case err != nil:
		fmt.Fprintf(a.err, "%s written\n", count(exported, "conversation"))
	case !f.quiet:
		fmt.Fprintf(a.err, "exported %s\n", count(exported, "conversation"))
	}
	return err
}

// exportTo writes conversations to w and returns how many, also when it fails.
func (a *app) exportTo(ctx context.Context, c *client.Client, w io.Writer, ids []string, f exportFlags) (count int, err error) {
	bar, err := a.exportProgress(ctx, c, ids, f)
	if err != nil {
		return 0, err
	}
	defer bar.clear()
	stream, err := c.ExportConversations(ctx, &parleyv1.ExportConversationsRequest{ConversationIds: ids})
	if err != nil {
		return 0, err
	}
	for conversation, err := range wholes(stream.Recv) {
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

// exportProgress counts conversations, unless nobody sees it or it would be in the way.
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

// wholes joins the parts of conversations that receive returns one after the other, until
// io.EOF. An error comes last; a conversation that had not come in full by then is left out.
func wholes(receive func() (*parleyv1.ExportConversationsResponse, error)) iter.Seq2[*parleyv1.ExportConversationsResponse, error] {
	return func(yield func(*parleyv1.ExportConversationsResponse, error) bool) {
		var whole *parleyv1.ExportConversationsResponse // nil: between two.
		for {
			part, err := receive()
			ended := errors.Is(err, io.EOF)
			switch id := whole.GetConversation().GetId(); {
			case err != nil && !ended:
				yield(nil, err)
				return
			case whole != nil && (ended || part.GetConversation().GetId() != id):
				yield(nil, fmt.Errorf("conversation %q: only %d of %d messages came",
					id, len(whole.GetMessages()), whole.GetConversation().GetMessageCount()))
				return
			case ended:
				return
			case whole == nil:
				whole = part
			default:
				whole.Messages = append(whole.Messages, part.GetMessages()...)
			}
			if len(whole.GetMessages()) >= int(whole.GetConversation().GetMessageCount()) {
				if !yield(whole, nil) {
					return
				}
				whole = nil
			}
		}
	}
}

// writeLine writes a conversation as one line. Unlike in replies, what is empty is left out:
// the file is smaller, and a server that does not know a field minds it only where it is used.
func writeLine(w io.Writer, whole *parleyv1.ExportConversationsResponse) error {
	loose, err := protojson.Marshal(whole)
	if err != nil {
		return fmt.Errorf("conversation %q: %w", whole.GetConversation().GetId(), err)
	}
	var line bytes.Buffer
	if err := json.Compact(&line, loose); err != nil { // protojson varies blanks on purpose.
		return fmt.Errorf("conversation %q: %w", whole.GetConversation().GetId(), err)
	}
	line.WriteByte('\n')
	_, err = line.WriteTo(w)
	return err
}

// writeFile has write fill the file name, with 0600. Until all is well it holds what it held.
func writeFile(name string, write func(io.Writer) error) error {
	if target, err := filepath.EvalSymlinks(name); err == nil {
		name = target // Else it would be the link that is replaced.
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
