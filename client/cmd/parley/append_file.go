package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"os"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// maxPending limits the lines that have been sent and have no result yet. The appender has the same limit.
const maxPending = 1024

// fileAppender appends the lines of one input.
type fileAppender struct {
	app         *app
	appender    *client.Appender
	progress    *appendProgress
	resumeAfter int // The last line that the run before has done.
	bar         *progress
	countsBytes bool // The bar counts bytes instead of lines.

	last    int    // The number of the last line that was read.
	sum     uint64 // The checksum of the lines up to that one.
	pending []pendingLine
	sent    map[string]int // The number of pending lines of each conversation.
	unsaved map[string]int // The number of lines of each conversation that are done but not saved.
	done    pendingLine    // The last line that is done.
	result  appendFileResult
}

// appendFileResult is the result of append --from. --output json prints it. The numbers count lines.
type appendFileResult struct {
	Appended int64           `json:"appended"`
	Skipped  int64           `json:"skipped"` // Done by the run that this one continues.
	Failed   int64           `json:"failed"`
	Failures []importFailure `json:"failures"` // The first failures.
}

// pendingLine is a line whose request was sent.
type pendingLine struct {
	number       int
	size         int64
	sum          uint64
	conversation string
	answer       *client.AppendResult
}

// appendLine is the request of a line.
type appendLine struct {
	request *parleyv1.AppendMessagesRequest
	sum     uint64 // A checksum of the lines up to this one.
}

// newAppendParser returns a function that parses the lines of an input in order.
func newAppendParser() func([]byte) (appendLine, error) {
	table, sum := crc64.MakeTable(crc64.ECMA), uint64(0)
	return func(text []byte) (appendLine, error) {
		sum = crc64.Update(sum, table, bytes.TrimSpace(text))
		request, err := parseAppend(text)
		return appendLine{request: request, sum: sum}, err
	}
}

// parseAppend returns the request of a line: an AppendMessagesRequest, or one Message with the id of its conversation.
func parseAppend(line []byte) (*parleyv1.AppendMessagesRequest, error) {
	var fields map[string]json.RawMessage
	request := &parleyv1.AppendMessagesRequest{}
	if err := json.Unmarshal(line, &fields); err != nil {
		// The error of protojson has the column. The fields of a message are unknown in a request, and not the fault.
		return nil, cmp.Or(unmarshalWith(protojson.UnmarshalOptions{DiscardUnknown: true}, line, request), err)
	}
	if fields["messages"] != nil {
		return request, unmarshal(line, request)
	}
	for _, name := range []string{"conversation_id", "conversationId"} {
		if id, found := fields[name]; found {
			if err := json.Unmarshal(id, &request.ConversationId); err != nil {
				return nil, fmt.Errorf("%s: want a text", name)
			}
			delete(fields, name)
		}
	}
	rest, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	request.Messages = []*parleyv1.Message{{}}
	return request, unmarshal(rest, request.Messages[0])
}

// appendFrom appends the lines of the file name, or of standard input if it is "-", and prints the result.
func (a *app) appendFrom(ctx context.Context, name string) error {
	if !a.timeoutSet {
		a.timeout = 0 // The duration depends on the size of the input.
	}
	in := a.in
	if name == "-" {
		name = ""
	} else {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		in = file
	}
	saved, err := openAppendProgress(name)
	if err != nil {
		return err
	}
	complete := false
	err = a.call(ctx, func(ctx context.Context, c *client.Client) (err error) {
		complete, err = a.appendLines(ctx, c, in, saved)
		return err
	})
	return errors.Join(err, saved.close(complete))
}

// appendLines appends the lines of in that are not in saved, and prints the result. complete means that all lines are
// done.
func (a *app) appendLines(
	ctx context.Context, c *client.Client, in io.Reader, saved *appendProgress,
) (complete bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f := &fileAppender{
		app: a, appender: c.NewAppender(ctx), progress: saved, resumeAfter: saved.Lines, bar: &progress{err: a.err},
		sent: map[string]int{}, unsaved: map[string]int{}, done: pendingLine{number: saved.Lines, sum: saved.Sum},
		result: appendFileResult{Failures: []importFailure{}},
	}
	if a.errTerminal {
		f.countsBytes = f.bar.showReading("appending", in)
	}
	readErr, err := f.appendAll(ctx, in)
	if err != nil {
		cancel() // Do not wait for replies.
	}
	_ = f.appender.Close() // Its error is err or that of cancel.
	if err != nil {
		return false, errors.Join(err, f.stop())
	}
	f.bar.clear()
	err = f.print()
	if err == nil && f.result.Failed > 0 {
		err = f.refused(readErr == nil)
	}
	return readErr == nil, errors.Join(readErr, err)
}

// appendAll appends the lines of in. readErr is the error that ended reading in early. err is an error after which the
// run cannot continue.
func (f *fileAppender) appendAll(ctx context.Context, in io.Reader) (readErr, err error) {
	input := startReading(ctx, in, newAppendParser())
	for {
		var first <-chan struct{}
		if len(f.pending) > 0 {
			first = f.pending[0].answer.Done()
		}
		select {
		case line, open := <-input.lines:
			switch {
			case open:
				err = f.append(ctx, line)
			case input.err == nil && f.last < f.resumeAfter:
				return nil, f.changed()
			default:
				return input.err, f.settle(ctx, 0)
			}
		case <-first:
			err = f.settle(ctx, len(f.pending)-1)
		case <-ctx.Done():
			err = status.FromContextError(ctx.Err()).Err()
		}
		if err != nil {
			return nil, err
		}
	}
}

// append sends the request of a line, unless an earlier run has done so.
func (f *fileAppender) append(ctx context.Context, line inputLine[appendLine]) error {
	f.last = line.number
	if sum := line.value.sum; sum != 0 { // It is 0 for a line that is too long.
		f.sum = sum
	}
	switch {
	case line.number == f.resumeAfter && f.sum != f.progress.Sum:
		return f.changed()
	case line.number <= f.resumeAfter:
		f.result.Skipped++
		f.count(line.size)
		return nil
	case line.err != nil:
		if err := f.settle(ctx, 0); err != nil { // A line is done after all lines before it.
			return err
		}
		f.finish(pendingLine{number: line.number, size: line.size, sum: f.sum}, line.err)
		return nil
	}
	request := line.value.request
	id := request.GetConversationId()
	if err := f.makeSpace(ctx, id); err != nil {
		return err
	}
	if request.GetRequestId() == "" {
		request.RequestId = fmt.Sprintf("%s-%d", f.progress.Run, line.number)
	}
	f.sent[id]++
	f.pending = append(f.pending, pendingLine{
		number: line.number, size: line.size, sum: f.sum, conversation: id, answer: f.appender.Append(ctx, request),
	})
	return f.settle(ctx, maxPending)
}

// makeSpace saves the progress when too many lines of a conversation are not saved.
func (f *fileAppender) makeSpace(ctx context.Context, id string) error {
	for f.progress.file != nil && f.sent[id]+f.unsaved[id] >= maxUnsaved {
		for f.sent[id] > maxUnsaved/2 {
			if err := f.settle(ctx, len(f.pending)-1); err != nil {
				return err
			}
		}
		if err := f.save(); err != nil {
			return err
		}
	}
	return nil
}

// save saves the progress.
func (f *fileAppender) save() error {
	clear(f.unsaved)
	return f.progress.save(f.done.number, f.done.sum)
}

// settle waits for replies until at most n lines are pending. It returns an error if the run cannot continue.
func (f *fileAppender) settle(ctx context.Context, n int) error {
	for len(f.pending) > n {
		line := f.pending[0]
		_, err := line.answer.Wait(ctx)
		if ctx.Err() != nil {
			return status.FromContextError(ctx.Err()).Err()
		}
		if failed := f.appender.Err(); failed != nil {
			return failed
		}
		f.pending = f.pending[1:]
		f.sent[line.conversation]--
		if f.sent[line.conversation] == 0 {
			delete(f.sent, line.conversation)
		}
		f.unsaved[line.conversation]++
		f.finish(line, err)
	}
	return nil
}

// finish counts a line as done. err is the reason why it was not appended, if any.
func (f *fileAppender) finish(line pendingLine, err error) {
	f.done = line
	if err == nil {
		f.result.Appended++
	} else {
		f.fail(line, f.app.explain(err))
	}
	f.count(line.size)
}

// fail counts a line as failed and prints the reason.
func (f *fileAppender) fail(line pendingLine, reason string) {
	f.result.Failed++
	if len(f.result.Failures) < maxFailures {
		f.result.Failures = append(f.result.Failures, importFailure{
			Line: line.number, ConversationID: line.conversation, Reason: reason,
		})
	}
	id := ""
	if line.conversation != "" {
		id = " (" + line.conversation + ")"
	}
	f.bar.note("line %d%s: %s", line.number, id, reason)
}

// count advances the bar by a line of n bytes.
func (f *fileAppender) count(n int64) {
	if f.countsBytes {
		f.bar.add(n)
	} else {
		f.bar.add(1)
	}
}

// refused is the error for lines that were not appended. If all other lines are done, another run begins with the first
// line.
func (f *fileAppender) refused(complete bool) error {
	n, them := int(f.result.Failed), "them"
	if n == 1 {
		them = "it"
	}
	if !complete {
		return fmt.Errorf("%s not appended", count(n, "line"))
	}
	return fmt.Errorf("%s not appended; put %s into another file, since the same command appends all lines again",
		count(n, "line"), them)
}

// changed is the error for an input that is not that of the run before.
func (f *fileAppender) changed() error {
	name := f.progress.file.Name()
	return fmt.Errorf("the input has changed since the run that was broken off; delete %q to append all lines", name)
}

// stop saves the progress of a run that cannot continue, and says how to continue.
func (f *fileAppender) stop() error {
	if f.done.number == f.resumeAfter {
		f.bar.clear()
		return nil
	}
	if f.progress.file == nil {
		f.bar.note("line %d is the last one that is done", f.done.number)
		return nil
	}
	f.bar.note("line %d is the last one that is done; the same command continues after it", f.done.number)
	return f.save()
}

// print prints the result as JSON or as one line of text.
func (f *fileAppender) print() error {
	if f.app.output == "json" {
		document, err := json.MarshalIndent(f.result, "", "  ")
		if err != nil {
			return err
		}
		_, err = f.app.out.Write(append(document, '\n'))
		return err
	}
	_, err := fmt.Fprintf(f.app.out, "appended %d, skipped %d, failed %d\n", f.result.Appended, f.result.Skipped,
		f.result.Failed)
	return err
}
