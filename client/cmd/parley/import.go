package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const aboutImport = `Import complete conversations that parley export wrote, from FILE or standard input. They
keep their ids, sequences, versions and times, but get new uids. Their records get new revisions.
Import skips expired conversations, and conversations for which the server has no capacity. It also
skips conversations that exist, or replaces them with --overwrite.

Import reports each line that is not a conversation, that repeats one, or that the server refuses,
with its number on standard error. The other lines are imported, and the exit code is 1. Skipped
conversations are not failures, except those for which the server has no capacity.

Conversations are imported one by one. If an import is interrupted, the conversations so far remain,
and the import can be repeated. A conversation with more than 3 MiB of records is imported in several
steps. If one of them fails or the import is interrupted, the server deletes the conversation.`

// maxFailures limits the failures of each kind (found here, reported by the server) in the JSON result. The
// server has the same limit.
const maxFailures = 100

// importFlags are the flags of import.
type importFlags struct {
	overwrite, quiet bool
}

func (a *app) newImportCommand() *cobra.Command {
	var f importFlags
	command := &cobra.Command{
		Use:   "import [FILE | -]",
		Short: "Import conversations that were exported",
		Long:  aboutImport,
		Example: `  parley import < conversations.jsonl
  parley import shop.jsonl --overwrite
  parley import conversations.jsonl --output json | jq .skipped`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if !a.timeoutSet {
				a.timeout = 0 // The duration depends on the size of the input.
			}
			in := a.in
			switch {
			case len(args) == 1 && args[0] != "-":
				file, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer func() { _ = file.Close() }()
				in = file
			case len(args) == 0 && a.inTerminal:
				return usageError("nothing to import: name a FILE or pass one on standard input")
			}
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				return a.importFrom(ctx, c, in, f)
			})
		},
	}
	flags := command.Flags()
	flags.BoolVar(&f.overwrite, "overwrite", false, "replace existing conversations instead of skipping them")
	flags.BoolVar(&f.quiet, "quiet", false, "print only errors to standard error, no progress")
	return command
}

// importResult is the result of an import. --output json prints it.
type importResult struct {
	Imported   int64           `json:"imported"`
	Skipped    int64           `json:"skipped"`
	NoCapacity int64           `json:"noRoom"` // Skipped because the server has no capacity; part of Skipped.
	Failed     int64           `json:"failed"`
	Failures   []importFailure `json:"failures"` // The first failures.
}

// importFailure describes a line that was not imported.
type importFailure struct {
	Line           int    `json:"line"`
	ConversationID string `json:"conversationId"` // Empty if the line has no valid id.
	Reason         string `json:"reason"`
}

// importer executes one import.
type importer struct {
	stream      grpc.ClientStreamingClient[parleyv1.ImportConversationsRequest, parleyv1.ImportConversationsResponse]
	overwrite   bool
	sentLines   map[string]int // The line number of each conversation that was sent, by id.
	last        lastLine
	bar         *progress
	countsBytes bool // The bar counts bytes instead of lines.
	result      importResult
	readErr     error // The error that ended reading the input early, if any.
}

// lastLine is the last line that could be read, or zero if the line after it cannot continue it.
type lastLine struct {
	header   *parleyv1.Conversation
	sequence int32  // The sequence of its last message; 0 if it has none.
	key      string // The key of its last record; empty if it has none.
	failed   bool   // It was not sent.
}

// continuedBy reports whether the next line has more messages or records of the same conversation.
func (l lastLine) continuedBy(next *parleyv1.ExportConversationsResponse) bool {
	messages, records := next.GetMessages(), next.GetRecords()
	follows := len(messages) == 0 && len(records) > 0 && records[0].GetKey() > l.key ||
		len(messages) > 0 && l.sequence > 0 && l.key == "" && messages[0].GetSequence() > l.sequence
	return follows && sameHeader(l.header, next.GetConversation())
}

// sameHeader reports whether two headers are the same, except for record_count.
func sameHeader(a, b *parleyv1.Conversation) bool {
	if a.GetRecordCount() != b.GetRecordCount() {
		b = proto.CloneOf(b)
		b.RecordCount = a.GetRecordCount()
	}
	return proto.Equal(a, b)
}

// importFrom imports the conversations of in and prints the result.
func (a *app) importFrom(ctx context.Context, c *client.Client, in io.Reader, f importFlags) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.ImportConversations(ctx)
	if err != nil {
		return err
	}
	i := &importer{
		stream: stream, overwrite: f.overwrite, sentLines: map[string]int{}, bar: &progress{err: a.err},
		result: importResult{Failures: []importFailure{}},
	}
	if a.errTerminal && !f.quiet {
		i.countsBytes = i.bar.showReading("importing", in)
	}

	var reply *parleyv1.ImportConversationsResponse
	if err = i.sendAll(ctx, in); err == nil {
		reply, err = stream.CloseAndRecv()
	}
	if err != nil {
		i.bar.note("%d conversations were sent; those that the server imported remain", len(i.sentLines))
		return err
	}
	i.addReply(reply)
	i.bar.clear()
	err = a.printImported(i.result)
	switch r := i.result; {
	case err != nil:
	case r.Failed > 0:
		err = fmt.Errorf("%s not imported", count(int(r.Failed), "line"))
	case r.NoCapacity > 0:
		err = fmt.Errorf("the server has no capacity for %s; see its --max-conversations",
			count(int(r.NoCapacity), "conversation"))
	}
	return errors.Join(i.readErr, err)
}

// sendAll sends the conversations of in as far as in can be read. It returns errors of the call; an error of
// in is stored in readErr.
func (i *importer) sendAll(ctx context.Context, in io.Reader) error {
	input := startReading(ctx, in, parseConversation)
	for {
		select {
		case line, open := <-input.lines:
			if !open {
				i.readErr = input.err
				return nil
			}
			if err := i.send(line); err != nil {
				return err
			}
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// send sends the conversation of a line, or counts the line as failed.
func (i *importer) send(line inputLine[*parleyv1.ExportConversationsResponse]) error {
	if i.countsBytes {
		defer i.bar.add(line.size)
	} else {
		defer i.bar.add(1)
	}
	if line.err != nil {
		i.last = lastLine{}
		i.fail(line.number, "", line.err.Error())
		return nil
	}
	first, parts, err := i.requests(line)
	i.last = lastLine{header: line.value.GetConversation(), failed: err != nil}
	if messages := line.value.GetMessages(); len(messages) > 0 {
		i.last.sequence = messages[len(messages)-1].GetSequence()
	}
	if records := line.value.GetRecords(); len(records) > 0 {
		i.last.key = records[len(records)-1].GetKey()
	}
	id := line.value.GetConversation().GetId()
	if err != nil {
		i.fail(line.number, id, err.Error())
		return nil
	}
	for _, part := range parts {
		if err := i.stream.Send(part); err != nil {
			return i.endError(err)
		}
	}
	i.sentLines[id] = first
	return nil
}

// requests returns the requests of a line, and the number of the line with which its conversation begins.
func (i *importer) requests(
	line inputLine[*parleyv1.ExportConversationsResponse],
) (first int, parts []*parleyv1.ImportConversationsRequest, err error) {
	first, sent := i.sentLines[line.value.GetConversation().GetId()]
	switch continued := i.last.continuedBy(line.value); {
	case continued && i.last.failed:
		return 0, nil, errors.New("the line continues a conversation whose earlier line was not imported")
	case sent && !continued:
		return 0, nil, fmt.Errorf("line %d already contains this conversation", first)
	case !sent:
		first = line.number
	}
	parts, err = requests(line.value, i.overwrite)
	return first, parts, err
}

// endError returns the status of a call whose Send returned err, which may only be io.EOF. It does not use
// CloseAndRecv, because the server might then accept a partly sent conversation as complete.
func (i *importer) endError(err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	if err := i.stream.RecvMsg(&parleyv1.ImportConversationsResponse{}); err != nil {
		return err
	}
	return errors.New("the server ended the import early")
}

// addReply adds the reply of the server to the result.
func (i *importer) addReply(reply *parleyv1.ImportConversationsResponse) {
	i.result.Imported, i.result.Skipped = reply.GetImportedCount(), reply.GetSkippedCount()
	i.result.NoCapacity = reply.GetNoRoomCount()
	failures := slices.SortedFunc(slices.Values(reply.GetFailures()), func(a, b *parleyv1.ImportFailure) int {
		return cmp.Compare(i.sentLines[a.GetConversationId()], i.sentLines[b.GetConversationId()])
	})
	for _, failure := range failures {
		i.fail(i.sentLines[failure.GetConversationId()], failure.GetConversationId(), failure.GetReason())
	}
	listed := int64(len(reply.GetFailures()))
	if more := int64(len(i.sentLines)) - i.result.Imported - i.result.Skipped - listed; more > 0 {
		i.result.Failed += more
		i.bar.note("the server refused %d more", more)
	}
}

// fail counts a line as failed and prints the reason.
func (i *importer) fail(line int, id, reason string) {
	i.result.Failed++
	if len(i.result.Failures) < 2*maxFailures {
		i.result.Failures = append(i.result.Failures, importFailure{Line: line, ConversationID: id, Reason: reason})
	}
	if id != "" {
		id = " (" + id + ")"
	}
	i.bar.note("line %d%s: %s", line, id, reason)
}

// printImported prints the result as JSON or as one line of text.
func (a *app) printImported(result importResult) error {
	if a.output == "json" {
		document, err := json.MarshalIndent(result, "", "  ")
		if err != nil {
			return err
		}
		_, err = a.out.Write(append(document, '\n'))
		return err
	}
	reasons := ""
	if result.Skipped > 0 {
		reasons = fmt.Sprintf(" (%d already present or expired, %d beyond the server's capacity)",
			result.Skipped-result.NoCapacity, result.NoCapacity)
	}
	_, err := fmt.Fprintf(a.out, "imported %d, skipped %d%s, failed %d\n", result.Imported, result.Skipped, reasons,
		result.Failed)
	return err
}
