package main

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

// TestMCPEnds checks that the command ends with exit code 0 in each case, and prints nothing: standard
// output is for the protocol.
func TestMCPEnds(t *testing.T) {
	tests := map[string]func(context.CancelFunc, chan<- os.Signal, *io.PipeWriter){
		"SIGTERM": func(stop context.CancelFunc, _ chan<- os.Signal, _ *io.PipeWriter) { stop() },
		"SIGINT":  func(_ context.CancelFunc, interrupts chan<- os.Signal, _ *io.PipeWriter) { interrupts <- os.Interrupt },
		"input":   func(_ context.CancelFunc, _ chan<- os.Signal, input *io.PipeWriter) { input.Close() },
	}
	for name, end := range tests {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			interrupts := make(chan os.Signal, 1)
			in, input := io.Pipe()
			defer input.Close()
			var out, errs strings.Builder
			code := make(chan int)
			go func() {
				code <- run(ctx, []string{"--address", serve(t, echoChat), "mcp"}, console{
					program: "parley", in: in, out: &out, err: &errs, interrupts: interrupts,
					getenv: func(string) string { return "" }, now: time.Now,
				})
			}()
			if _, err := io.WriteString(input, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n"); err != nil {
				t.Fatal(err)
			}
			end(stop, interrupts, input)
			if got := <-code; got != 0 || out.Len() > 0 || errs.Len() > 0 {
				t.Errorf("exit code %d, standard output %q, standard error %q; want 0 and no output", got, &out, &errs)
			}
			stop()
		})
	}
}
