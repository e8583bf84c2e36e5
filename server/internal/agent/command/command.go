// Package command is the agent that is any program: one process a turn, the
// conversation on its standard input, the answer on its standard output. Begin with
// [New].
//
// # What the program reads
//
// Blocks parted by blank lines, oldest first, the message to be answered last, then a
// line feed and the end of the file:
//
//	[SYSTEM]: You keep a shopping list.
//
//	[USER]: Add a product
//
//	[ASSISTANT]: Which one, and for how much?
//
//	[USER]: Sugar for 50 cents
//
// The system prompt comes first if there is one. After a message's own block follow
// those of what it carries:
//
//	[STRUCTURED_DATA type]: the value as compact JSON
//	[ATTACHMENT media_type]: the uri; without a media type [ATTACHMENT]: the uri
//	[TOOL_CALL name id]: the arguments as the model wrote them
//
// A tool's result is [TOOL_RESULT name id]: and its content, which has "error: " ahead
// of it when the call failed. The text of a message that was cut off ends with
// " [cut off]". Nothing is escaped, and nothing is left out but line feeds at the end of a
// block: the context window alone says how much history there is. A program that must tell a block from a text that
// looks like one should be a remote agent instead.
//
// # What the program writes
//
// In the format "text", whatever one read finds on its standard output becomes a piece
// at once, so a program that wants to stream only has to flush. In the format
// "stream-json" it writes the lines of `claude --output-format stream-json`, the last of
// which is the result; see stream.go for what becomes of them. Its standard error is not
// part of the answer, but the end of it is in the error when the program fails, without the
// values of the variables that [Config] names.
//
// # How the program lives
//
// It is started from an argument list, without a shell, in a process group of its own,
// with the few environment variables that [Config] tells. It need not read its input.
// The answer is whole when the program has ended with exit code 0, and in stream-json has
// told its result; any other end is a failure, and what was said until then is no whole
// answer. Whatever it has left running in its group is then killed. When the turn ends
// first, the group gets SIGTERM at once and SIGKILL 4 s later: early enough that the
// program is gone within the 5 s that the agent contract gives.
//
// So many processes of one agent run at once as [Config] says. A further turn waits, and
// says so in a Progress piece. A process counts until it is really gone, even when its
// turn has given up on it.
//
// A program may leave orphaned processes. In a container they become children of process 1. A
// server that is process 1 calls [Processes.Reap].
package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

const (
	// FormatText takes standard output as the answer's text; it is the default.
	FormatText = "text"
	// FormatStreamJSON takes standard output as the lines of the claude command.
	FormatStreamJSON = "stream-json"

	// defaultConcurrent is how many processes of one agent run at once.
	defaultConcurrent = 256

	// killAfter is how long a program may take to end after SIGTERM.
	killAfter = 4 * time.Second
)

// Config says which program answers, and how.
type Config struct {
	// Command is the program and its arguments. A program without a slash is looked up
	// in PATH. Required.
	Command []string
	// Format of the program's standard output: FormatText, FormatStreamJSON or empty,
	// which is FormatText.
	Format string
	// Dir is the directory that the program runs in; empty is the server's own.
	Dir string
	// Env names environment variables of the server that the program gets besides PATH,
	// HOME, USER, LANG, LC_*, TZ and TMPDIR. Those that are not set are passed over. The
	// values of all others are taken for secrets, which no error shows.
	Env []string
	// MaxConcurrent is how many processes run at once; 0 is 256.
	MaxConcurrent int
	// Processes records the program's processes with those of other agents. If nil, the agent has a record of its own.
	Processes *Processes
}

// decoder makes pieces of a program's standard output. What its errors quote has been through
// redact, and was not cut before.
type decoder func(output io.Reader, redact func(string) string) iter.Seq2[*parleyv1.RespondResponse, error]

// Agent runs a program for every turn.
type Agent struct {
	config    Config
	processes *Processes
	decode    decoder
	slots     *agent.Slots
	killAfter time.Duration
}

// New makes an agent of the program that the configuration names, which it neither
// looks for nor starts yet. Every fault of the configuration is in the one error.
func New(config Config) (*Agent, error) {
	a := &Agent{
		config: config, processes: cmp.Or(config.Processes, new(Processes)),
		slots: agent.NewSlots(cmp.Or(config.MaxConcurrent, defaultConcurrent)), killAfter: killAfter,
	}
	var faults []error
	if len(config.Command) == 0 || config.Command[0] == "" {
		faults = append(faults, errors.New("command: is required"))
	}
	if strings.Contains(strings.Join(config.Command, "")+config.Dir, "\x00") {
		faults = append(faults, errors.New("command: neither it nor dir can hold a NUL"))
	}
	switch config.Format {
	case "", FormatText:
		a.decode = func(output io.Reader, _ func(string) string) iter.Seq2[*parleyv1.RespondResponse, error] {
			return decodeText(output)
		}
	case FormatStreamJSON:
		a.decode = decodeStream
	default:
		faults = append(faults, fmt.Errorf("format: %q is neither %q nor %q", config.Format, FormatText, FormatStreamJSON))
	}
	for _, name := range config.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			faults = append(faults, fmt.Errorf("env: %q is not the name of an environment variable", name))
		}
	}
	if config.MaxConcurrent < 0 {
		faults = append(faults, fmt.Errorf("max_concurrent: %d is negative; 0 is %d", config.MaxConcurrent, defaultConcurrent))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return a, nil
}

// Close does nothing: every process ends with the Respond that started it.
func (a *Agent) Close() error { return nil }

// Respond runs the program once and passes on what it writes. It returns after the
// program has ended, or when that takes longer than ctx's end allows.
func (a *Agent) Respond(ctx context.Context, request *parleyv1.RespondRequest) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		if !a.slots.Acquire(ctx, yield) {
			return
		}
		wanted := true
		err := a.run(ctx, input(request), func(piece *parleyv1.RespondResponse) bool {
			wanted = yield(piece, nil)
			return wanted
		})
		switch {
		case !wanted:
		case ctx.Err() != nil:
			// Whether the program was stopped or ended well in the same instant cannot
			// be told; half an answer must not pass for a whole one.
			yield(nil, context.Cause(ctx))
		case err != nil:
			yield(nil, err)
		}
	}
}

// run starts the program in the slot that the caller has taken, hands every piece to
// emit until that returns false, and waits for the program to end.
func (a *Agent) run(ctx context.Context, input string, emit func(*parleyv1.RespondResponse) bool) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	p, err := a.start(ctx, input, a.slots.Release)
	if err != nil {
		return err
	}
	read, unfinished := false, false // all of the output; its last line is missing
	defer func() {
		if !read { // cut short, by a panic in emit too
			stop()
		}
		switch end := p.wait(ctx); {
		case err != nil:
		case end != nil:
			err = end
		case unfinished:
			err = p.failure("ended with exit code 0, but without a result line: the answer may not be whole")
		}
	}()
	for piece, err := range a.decode(p.stdout, p.redact) {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			unfinished = true // How the program ends may tell why.
			break
		}
		if err != nil {
			return err
		}
		if !emit(piece) {
			return nil
		}
	}
	read = true
	return nil
}
