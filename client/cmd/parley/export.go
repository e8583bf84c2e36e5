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
	"google.golang.org/protobuf/proto"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const aboutExport = `Write complete conversations with their records as JSON Lines, one conversation on each
line. Without ID, export writes all conversations, the oldest first; otherwise it writes the named
ones in that order. parley import imports them with their ids, sequences and times. Each line is

  {"conversation": {...}, "messages": [...], "records": [...]}

with the fields that are set. A conversation with more than 8 MiB of messages or 3 MiB of records
continues on the next lines, with the messages first; record_count is the number of records in the
last of these lines, and larger in the others. The same conversation always results in the same bytes. --output has
no effect on the lines.

Each conversation is exported in its state at that moment, except that many or large records may be
those of a later moment. Conversations that are created during the export may be missing. If the
export fails, the exit code is 1. Standard output then contains only complete lines, of which the
last one may lack the lines that continue it; a FILE is written completely or not at all, with
permissions for its owner only. If the server finds damaged conversations, it sends all others
first. To keep those, do not use --to.`

// Limits of the encoded size of the messages and of the records in a line, unless the server sends more in one
// response. The JSON of the messages is at most about six times as long, below maxLine.
const (
	maxLineMessages = 8 << 20
	maxLineRecords  = 3 << 20
)

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

// checkTarget returns an error if the value of --to is not a regular file, because a device or pipe would be replaced
// by one.
func checkTarget(name string) error {
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		return usageError(fmt.Sprintf("--to %q: not a regular file; leave out --to to write to standard output", name))
	}
	return nil
}

// export writes conversations to the destination of f and prints their number.
func (a *app) export(ctx context.Context, ids []string, f exportFlags) error {
	if err := checkTarget(f.to); err != nil {
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
	stream, err := c.ExportConversations(ctx, &parleyv1.ExportConversationsRequest{
		ConversationIds: ids, IncludeRecords: true,
	})
	if err != nil {
		return 0, err
	}
	last := ""
	for line, err := range joinParts(stream.Recv) {
		if err != nil {
			return count, err
		}
		if err := writeLine(w, line); err != nil {
			return count, err
		}
		if id := line.GetConversation().GetId(); id != last { // Otherwise the line continues the one before.
			last = id
			count++
			bar.add(1)
		}
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

// joinParts joins the parts of conversations that receive returns until io.EOF to lines. An error is the last
// element; an incomplete line before it is left out.
func joinParts(
	receive func() (*parleyv1.ExportConversationsResponse, error),
) iter.Seq2[*parleyv1.ExportConversationsResponse, error] {
	return func(yield func(*parleyv1.ExportConversationsResponse, error) bool) {
		var j joiner
		for {
			part, err := receive()
			ended := errors.Is(err, io.EOF)
			var lines []*parleyv1.ExportConversationsResponse
			switch {
			case ended:
				lines, err = j.end()
			case err == nil:
				lines, err = j.add(part)
			}
			for _, line := range lines {
				if !yield(line, nil) {
					return
				}
			}
			if err != nil {
				yield(nil, err)
			}
			if err != nil || ended {
				return
			}
		}
	}
}

// joiner joins the parts of conversations to lines.
type joiner struct {
	line         *parleyv1.ExportConversationsResponse // The line that is not complete; nil if there is none.
	messageBytes int                                   // The encoded size of its messages.
	recordBytes  int                                   // The same of its records.

	header            *parleyv1.Conversation // That of the last part.
	messages, records int                    // The numbers of its messages and records so far.
}

// add adds a part and returns the lines that are complete now.
func (j *joiner) add(part *parleyv1.ExportConversationsResponse) (
	complete []*parleyv1.ExportConversationsResponse, err error,
) {
	if !j.continuesWith(part) {
		if complete, err = j.end(); err != nil {
			return nil, err
		}
		j.messages, j.records = 0, 0
	}
	j.header = part.GetConversation()
	m, n := sizeOf(part.GetMessages()), sizeOf(part.GetRecords())
	if j.messageBytes > 0 && j.messageBytes+m > maxLineMessages || j.recordBytes > 0 && j.recordBytes+n > maxLineRecords {
		complete = append(complete, j.take())
	}
	if j.line == nil {
		j.line = part
	} else {
		j.line.Conversation = j.header // Its record_count is that of the last part.
		j.line.Messages = append(j.line.Messages, part.GetMessages()...)
		j.line.Records = append(j.line.Records, part.GetRecords()...)
	}
	j.messageBytes, j.recordBytes = j.messageBytes+m, j.recordBytes+n
	j.messages, j.records = j.messages+len(part.GetMessages()), j.records+len(part.GetRecords())
	// The header of a part that is not the last one counts more records.
	if j.hasMessages() && j.records >= int(j.header.GetRecordCount()) {
		complete = append(complete, j.take())
	}
	return complete, nil
}

// continuesWith reports whether a part belongs to the same conversation as the part before.
func (j *joiner) continuesWith(part *parleyv1.ExportConversationsResponse) bool {
	if j.header == nil || part.GetConversation().GetId() != j.header.GetId() {
		return false
	}
	return !j.hasMessages() || len(part.GetMessages()) == 0 && (len(part.GetRecords()) > 0 || j.line != nil)
}

// hasMessages reports whether all messages of the conversation have arrived.
func (j *joiner) hasMessages() bool { return j.messages >= int(j.header.GetMessageCount()) }

// take returns the line, and begins the next one.
func (j *joiner) take() *parleyv1.ExportConversationsResponse {
	line := j.line
	j.line, j.messageBytes, j.recordBytes = nil, 0, 0
	return line
}

// sizeOf returns the encoded size of values.
func sizeOf[M proto.Message](values []M) (n int) {
	for _, v := range values {
		n += proto.Size(v)
	}
	return n
}

// end returns the last line of a conversation, or an error if messages are missing. Records may be missing, because
// they may have been deleted during the export.
func (j *joiner) end() ([]*parleyv1.ExportConversationsResponse, error) {
	if !j.hasMessages() {
		return nil, fmt.Errorf("conversation %q: only %d of %d messages received",
			j.header.GetId(), j.messages, j.header.GetMessageCount())
	}
	if j.line == nil {
		return nil, nil
	}
	return []*parleyv1.ExportConversationsResponse{j.take()}, nil
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
