package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const aboutImport = `Take whole conversations in, as parley export wrote them, from FILE or from standard input.
They keep their ids, sequences, versions and times, but not their uids. Those that have expired
meanwhile are skipped, as are those for which there is no room. One that is there already is
skipped as well, or replaced with --overwrite.

A line that is no conversation, that names one again, or that the server refuses is told of
on standard error with its number and counted; the others are taken in all the same, and the
exit code is 1. To have skipped some is no failure.

Conversations are taken in one by one: when an import breaks off, those before stay, and it
can be done again.`

// maxFailures is how many failures of each kind are listed as JSON, as many as a server tells.
const maxFailures = 100

// importFlags are the flags of import.
type importFlags struct {
	overwrite, quiet bool
}

func (a *app) newImportCommand() *cobra.Command {
	var f importFlags
	command := &cobra.Command{
		Use:   "import [FILE | -]",
		Short: "Take in conversations that were exported",
		Long:  aboutImport,
		Example: `  parley import < conversations.jsonl
  parley import shop.jsonl --overwrite
  parley import conversations.jsonl --output json | jq .skipped`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if !a.timeoutSet {
				a.timeout = 0 // It takes as long as there is something to read.
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
				return usageError("nothing to import: name a FILE, or give one on standard input")
			}
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				return a.importFrom(ctx, c, in, f)
			})
		},
	}
	flags := command.Flags()
	flags.BoolVar(&f.overwrite, "overwrite", false, "replace conversations that exist, instead of skipping them")
	flags.BoolVar(&f.quiet, "quiet", false, "no progress on standard error, only what goes wrong")
	return command
}

// imported is what became of an import, as --output json shows it.
type imported struct {
	Imported int64           `json:"imported"`
	Skipped  int64           `json:"skipped"`
	NoRoom   int64           `json:"noRoom"` // Of the skipped.
	Failed   int64           `json:"failed"`
	Failures []importFailure `json:"failures"` // The first of them.
}

// importFailure is a line that was not taken in.
type importFailure struct {
	Line           int    `json:"line"`
	ConversationID string `json:"conversationId"` // Empty: it names none.
	Reason         string `json:"reason"`
}

// importer is one import that is under way.
type importer struct {
	stream    grpc.ClientStreamingClient[parleyv1.ImportConversationsRequest, parleyv1.ImportConversationsResponse]
	overwrite bool
	lines     map[string]int // Where each conversation was that has been sent.
	bar       *progress
	inBytes   bool // The bar counts bytes, else conversations.
	result    imported
	unread    error // Why the input was not read to its end.
}

// importFrom sends what in holds and shows what became of it.
func (a *app) importFrom(ctx context.Context, c *client.Client, in io.Reader, f importFlags) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.ImportConversations(ctx)
	if err != nil {
		return err
	}
	i := &importer{
		stream: stream, overwrite: f.overwrite, lines: map[string]int{}, bar: &progress{err: a.err},
		result: imported{Failures: []importFailure{}},
	}
	if a.errTerminal && !f.quiet {
		i.showProgress(in)
	}

	var reply *parleyv1.ImportConversationsResponse
	if err = i.sendAll(ctx, in); err == nil {
		reply, err = stream.CloseAndRecv()
	}
	if err != nil {
		i.bar.note("%d conversations had been sent; those that the server has taken in stay", len(i.lines))
		return err
	}
	i.count(reply)
	i.bar.clear()
	err = a.printImported(i.result)
	switch r := i.result; {
	case err != nil:
	case r.Failed > 0:
		err = fmt.Errorf("%s not taken in", count(int(r.Failed), "line"))
	case r.NoRoom > 0:
		err = fmt.Errorf("no room for %s: see --max-conversations of the server", count(int(r.NoRoom), "conversation"))
	}
	return errors.Join(i.unread, err)
}

// showProgress counts bytes where it is known how many there are.
func (i *importer) showProgress(in io.Reader) {
	if file, ok := in.(interface{ Stat() (fs.FileInfo, error) }); ok {
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			i.inBytes = true
			i.bar.show("importing", info.Size(), progressbar.OptionShowBytes(true), progressbar.OptionUseIECUnits(true))
			return
		}
	}
	i.bar.show("importing", -1)
}

// sendAll sends what in holds, as far as it can be read. An error is one of the call.
func (i *importer) sendAll(ctx context.Context, in io.Reader) error {
	ahead := make(chan record) // Nobody can end the wait for in; the end of ctx leaves it.
	go func() {
		defer close(ahead)
		for r, err := range records(in, maxLine) {
			if err != nil {
				i.unread = err
				return
			}
			select {
			case ahead <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case r, open := <-ahead:
			if !open {
				return nil
			}
			if err := i.send(r); err != nil {
				return err
			}
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// send sends one conversation, or counts it as failed.
func (i *importer) send(r record) error {
	if i.inBytes {
		defer i.bar.add(r.size)
	} else {
		defer i.bar.add(1)
	}
	if r.fault != nil {
		i.fail(r.line, "", r.fault.Error())
		return nil
	}
	id := r.whole.GetConversation().GetId()
	if line, seen := i.lines[id]; seen {
		i.fail(r.line, id, fmt.Sprintf("line %d was this conversation already", line))
		return nil
	}
	parts, err := requests(r.whole, i.overwrite)
	if err != nil {
		i.fail(r.line, id, err.Error())
		return nil
	}
	for _, part := range parts {
		if err := i.stream.Send(part); err != nil {
			return i.whyEnded(err)
		}
	}
	i.lines[id] = r.line
	return nil
}

// whyEnded returns why the call ended, of which Send may say no more than io.EOF. CloseAndRecv
// knows as well, but might tell the server first that a conversation sent in part was whole.
func (i *importer) whyEnded(err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	if err := i.stream.RecvMsg(&parleyv1.ImportConversationsResponse{}); err != nil {
		return err
	}
	return errors.New("the server ended the import before its time")
}

// count adds what the server says to the result.
func (i *importer) count(reply *parleyv1.ImportConversationsResponse) {
	i.result.Imported, i.result.Skipped, i.result.NoRoom = reply.GetImportedCount(), reply.GetSkippedCount(), reply.GetNoRoomCount()
	failures := slices.SortedFunc(slices.Values(reply.GetFailures()), func(a, b *parleyv1.ImportFailure) int {
		return cmp.Compare(i.lines[a.GetConversationId()], i.lines[b.GetConversationId()])
	})
	for _, failure := range failures {
		i.fail(i.lines[failure.GetConversationId()], failure.GetConversationId(), failure.GetReason())
	}
	told := int64(len(reply.GetFailures()))
	if more := int64(len(i.lines)) - i.result.Imported - i.result.Skipped - told; more > 0 {
		i.result.Failed += more
		i.bar.note("the server refused %d more", more)
	}
}

// fail counts a line as failed and says why.
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

func (a *app) printImported(result imported) error {
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
		reasons = fmt.Sprintf(" (%d there already or expired, %d without room)", result.Skipped-result.NoRoom, result.NoRoom)
	}
	_, err := fmt.Fprintf(a.out, "imported %d, skipped %d%s, failed %d\n", result.Imported, result.Skipped, reasons, result.Failed)
	return err
}
