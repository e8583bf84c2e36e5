// Package command is an agent that runs a program: one process for each turn, with the conversation
// on standard input and the answer on standard output.
//
// # Input
//
// The program reads blocks that are separated by blank lines, oldest first. The message to answer is
// last, followed by a line feed and the end of the file:
//
//	[SYSTEM]: You keep a shopping list.
//
//	[USER]: Add a product
//
//	[ASSISTANT]: Which one, and for how much?
//
//	[USER]: Sugar for 50 cents
//
// The system prompt is first, if there is one. A message's own block is followed by the blocks of its
// other content:
//
//	[STRUCTURED_DATA type]: the value as compact JSON
//	[ATTACHMENT media_type]: the uri; without a media type [ATTACHMENT]: the uri
//	[TOOL_CALL name id]: the arguments as the model wrote them
//
// A tool's result is [TOOL_RESULT name id]: and its content, with "error: " before it if the call
// failed. The text of a message that was cut off ends with " [cut off]"; such a
// message without any content is left out. Nothing is escaped. Only line
// feeds at the end of a block are omitted; the context window determines how much history the program
// receives. A program that must distinguish a block from a text that looks like one should be a remote
// agent.
//
// # Output
//
// In the format "text", each read of standard output becomes a piece at once, so a program streams by
// flushing its output. In the format "stream-json", the program writes the lines of
// `claude --output-format stream-json`, the last of which is the result; see stream.go. Standard error is
// not part of the answer. If the program fails, the error contains the end of standard error, without the
// values of the variables in [Config].
//
// # Process
//
// The program is started from an argument list, without a shell, in its own process group, with only the
// environment variables of [Config]. It need not read its input. The answer is complete if the program
// ends with exit code 0 and, in stream-json, has written its result. Any other end is a failure, and the
// answer so far is incomplete. Processes that the program leaves running in its group are then killed. If
// the turn ends first, the group receives SIGTERM at once and SIGKILL 4 s later, so that the program ends
// within the 5 s that [agent.Agent] allows.
//
// [Config] limits the number of concurrent processes of an agent. A further turn waits and sends Progress
// pieces. A process counts until it has ended, even if its turn no longer waits for it.
//
// A program may leave orphaned processes. In a container they become children of process 1. A server that
// is process 1 calls [Processes.Reap].
//
// Start at [New].
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
	// FormatText means that standard output is the text of the answer. It is the default.
	FormatText = "text"
	// FormatStreamJSON means that standard output consists of lines of the claude command.
	FormatStreamJSON = "stream-json"

	// defaultConcurrent is the default limit of concurrent processes of an agent.
	defaultConcurrent = 256

	// killAfter is the maximum time between SIGTERM and SIGKILL.
	killAfter = 4 * time.Second
)

// Config describes the program.
type Config struct {
	// Command is the program and its arguments. A program without a slash is searched in PATH.
	// Required.
	Command []string
	// Format is the format of standard output: FormatText or FormatStreamJSON. If empty, it is
	// FormatText.
	Format string
	// Dir is the working directory of the program. If empty, it is the server's.
	Dir string
	// Env contains names of environment variables of the server that are passed to the program, in
	// addition to PATH, HOME, USER, LANG, LC_*, TZ and TMPDIR. Unset variables are ignored. The
	// values of variables in Env are secrets, which errors do not contain.
	Env []string
	// MaxConcurrent is the maximum number of concurrent processes. If 0, it is 256.
	MaxConcurrent int
	// Processes records the program's processes together with those of other agents. If nil, the
	// agent has its own record.
	Processes *Processes
}

// decoder converts standard output to pieces. Text of the program in its errors is passed to redact
// before it is truncated.
type decoder func(output io.Reader, redact func(string) string) iter.Seq2[*parleyv1.RespondResponse, error]

// Agent runs a program for each turn.
type Agent struct {
	config    Config
	processes *Processes
	decode    decoder
	slots     *agent.Slots
	killAfter time.Duration
}

// New returns an agent for the program. It neither searches for the program nor starts it. The
// error lists all faults of the configuration.
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
		faults = append(faults, errors.New("command: neither command nor dir may contain a NUL"))
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
		faults = append(faults, fmt.Errorf("max_concurrent: %d is negative; use 0 for the default of %d",
			config.MaxConcurrent, defaultConcurrent))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return a, nil
}

// Close does nothing: each process ends with the Respond call that started it.
func (a *Agent) Close() error { return nil }

// Respond runs the program once and passes on its output. It returns when the program has ended, or
// when ctx has ended and the program takes too long to end.
func (a *Agent) Respond(
	ctx context.Context, request *parleyv1.RespondRequest,
) iter.Seq2[*parleyv1.RespondResponse, error] {
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
			// The program may have been stopped or may have ended by itself at the same time. An incomplete
			// answer must not be treated as complete.
			yield(nil, context.Cause(ctx))
		case err != nil:
			yield(nil, err)
		}
	}
}

// run starts the program in the slot that the caller has acquired, passes each piece to emit until
// emit returns false, and waits for the program to end.
func (a *Agent) run(ctx context.Context, input string, emit func(*parleyv1.RespondResponse) bool) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	p, err := a.start(ctx, input, a.slots.Release)
	if err != nil {
		return err
	}
	allRead, noResult := false, false
	defer func() {
		if !allRead { // Stopped early, possibly by a panic in emit.
			stop()
		}
		switch end := p.wait(ctx); {
		case err != nil:
		case end != nil:
			err = end
		case noResult:
			err = p.failure("ended with exit code 0, but without a result line: the answer may be incomplete")
		}
	}()
	for piece, err := range a.decode(p.stdout, p.redact) {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			noResult = true // The exit code may explain why.
			break
		}
		if err != nil {
			return err
		}
		if !emit(piece) {
			return nil
		}
	}
	allRead = true
	return nil
}
