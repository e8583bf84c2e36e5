package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/parleyhq/parley/client"
)

// maxInput is the limit of standard input. No larger text fits into a request.
const maxInput = client.MaxGRPCBytes

// text returns the words of the command line joined by spaces. If there are no words or only "-", it
// returns standard input without line feeds at the end.
func (a *app) text(ctx context.Context, words []string) (string, error) {
	content := strings.Join(words, " ")
	if content == "-" || len(words) == 0 && !a.inTerminal {
		input, err := a.readAll(ctx)
		if err != nil {
			return "", err
		}
		content = strings.TrimRight(string(input), "\r\n")
	}
	if content == "" {
		return "", usageError("no message: write TEXT, or pass a message on standard input")
	}
	return content, nil
}

// readAll returns all of standard input. At Ctrl-C or the end of ctx it returns an error at once, and the
// goroutine that reads continues.
func (a *app) readAll(ctx context.Context) ([]byte, error) {
	type result struct {
		input []byte
		err   error
	}
	results := make(chan result, 1)
	go func() {
		input, err := io.ReadAll(io.LimitReader(a.in, maxInput+1))
		results <- result{input, err}
	}()
	select {
	case r := <-results:
		switch {
		case r.err != nil:
			return nil, fmt.Errorf("read standard input: %w", r.err)
		case len(r.input) > maxInput:
			return nil, fmt.Errorf("read standard input: more than %d MiB", maxInput>>20)
		}
		return r.input, nil
	case <-a.interrupts:
		return nil, errInterrupted
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// readInput returns the content of the file name, or of standard input if name is "-".
func (a *app) readInput(ctx context.Context, name string) ([]byte, error) {
	if name == "-" {
		return a.readAll(ctx)
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	input, err := io.ReadAll(io.LimitReader(file, maxInput+1))
	if err == nil && len(input) > maxInput {
		err = fmt.Errorf("%s has more than %d MiB, which is the limit of a request", name, maxInput>>20)
	}
	return input, err
}

// lines returns a channel of the lines of standard input without line endings. It closes the channel
// when the input or ctx ends.
func (a *app) lines(ctx context.Context) <-chan string {
	lines := make(chan string)
	go func() {
		defer close(lines)
		input := bufio.NewReader(a.in)
		for {
			line, err := input.ReadString('\n')
			if line != "" {
				select {
				case lines <- strings.TrimRight(line, "\r\n"):
				case <-ctx.Done():
					return
				}
			}
			if err != nil {
				if !errors.Is(err, io.EOF) {
					fmt.Fprintf(a.err, "parley: read standard input: %v\n", err)
				}
				return
			}
		}
	}()
	return lines
}
