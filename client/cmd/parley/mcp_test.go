package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
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

// TestMCPSignsIn checks that the calls of the command have the token, and that the error of a refused one says where
// to set it.
func TestMCPSignsIn(t *testing.T) {
	address := serve(t, func(request *parleyv1.ChatRequest, stream *turnStream) error {
		md, _ := metadata.FromIncomingContext(stream.Context())
		if token := md.Get("authorization"); !slices.Equal(token, []string{"Bearer good"}) {
			s, err := status.New(codes.Unauthenticated, "the call has no valid credential").
				WithDetails(&errdetails.ErrorInfo{Reason: "UNAUTHENTICATED", Domain: "parley"})
			return errors.Join(err, s.Err())
		}
		return echoChat(request, stream)
	})
	const question = `{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": ` +
		`{"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "me", "version": "1"}}}` + "\n" +
		`{"jsonrpc": "2.0", "method": "notifications/initialized"}` + "\n" +
		`{"jsonrpc": "2.0", "id": 2, "method": "tools/call", ` +
		`"params": {"name": "ask_question", "arguments": {"question": "hello"}}}` + "\n"
	tests := map[string]string{
		"good": `"state":"COMPLETED"`,
		"5ecret": "the call has no valid credential; parley mcp takes a token from --token-file, PARLEY_TOKEN_FILE or " +
			"PARLEY_TOKEN (UNAUTHENTICATED)",
	}
	for token, want := range tests {
		in, input := io.Pipe()
		output, out := io.Pipe()
		var errs strings.Builder
		var running sync.WaitGroup
		running.Go(func() {
			defer out.Close()
			run(t.Context(), []string{"--address", address, "mcp"}, console{
				program: "parley", in: in, out: out, err: &errs, now: time.Now,
				getenv: func(name string) string { return map[string]string{"PARLEY_TOKEN": token}[name] },
			})
		})
		running.Go(func() { _, _ = io.WriteString(input, question) })
		replies := bufio.NewScanner(output)
		var last string
		for !strings.Contains(last, `"id":2`) && replies.Scan() {
			last = replies.Text()
		}
		input.Close()
		running.Wait()
		if !strings.Contains(last, want) || strings.Contains(last+errs.String(), "5ecret") {
			t.Errorf("token %q: reply %q, standard error %q; want %q, and no token", token, last, &errs, want)
		}
	}
}
