package main

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// watchHandler is a handler of WatchConversations.
type watchHandler = func(*parleyv1.WatchConversationsRequest,
	grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse]) error

// watchFake is a server with WatchConversations only.
type watchFake struct {
	parleyv1.UnimplementedConversationServiceServer

	watch watchHandler
}

func (f watchFake) WatchConversations(request *parleyv1.WatchConversationsRequest,
	stream grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse],
) error {
	return f.watch(request, stream)
}

// sendChanges returns a handler that sends changes and ends with end. If end is nil, it waits until the client cancels.
func sendChanges(end error, changes ...*parleyv1.ConversationChange) watchHandler {
	return func(_ *parleyv1.WatchConversationsRequest,
		stream grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse],
	) error {
		for _, change := range changes {
			if err := stream.Send(&parleyv1.WatchConversationsResponse{Change: change}); err != nil {
				return err
			}
		}
		if end != nil {
			return end
		}
		<-stream.Context().Done()
		return stream.Context().Err()
	}
}

// serveWatch serves watch until the test ends, and returns the address.
func serveWatch(t *testing.T, watch watchHandler) string {
	t.Helper()
	return serveService(t, watchFake{watch: watch})
}

// serveService serves service until the test ends, and returns the address.
func serveService(t *testing.T, service parleyv1.ConversationServiceServer) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	parleyv1.RegisterConversationServiceServer(s, service)
	var running sync.WaitGroup
	running.Go(func() { _ = s.Serve(listener) })
	t.Cleanup(func() { s.Stop(); running.Wait() })
	return listener.Addr().String()
}

func TestWatchFlags(t *testing.T) {
	ephemeral := &parleyv1.WatchConversationsRequest{
		ConversationIds: []string{"a", "b"}, DeleteAfterDisconnect: durationpb.New(48 * time.Hour),
	}
	tests := []struct {
		args []string
		want *parleyv1.WatchConversationsRequest
		note string
	}{
		{nil, &parleyv1.WatchConversationsRequest{}, "watching all conversations; press Ctrl-C to stop\n"},
		{
			[]string{"a", "--from", "c1", "--turns"},
			&parleyv1.WatchConversationsRequest{ConversationIds: []string{"a"}, Cursor: "c1", IncludeTurnEvents: true},
			"watching 1 conversation; press Ctrl-C to stop\n",
		},
		{
			[]string{"a", "b", "--delete-after-disconnect", "2d"},
			ephemeral,
			"watching 2 conversations, deleted 48h0m0s after this ends; press Ctrl-C to stop\n",
		},
	}
	for _, test := range tests {
		var got *parleyv1.WatchConversationsRequest
		show := sendChanges(status.Error(codes.DeadlineExceeded, "the time is up"), gap(), heartbeat(), heartbeat())
		address := serveWatch(t, func(request *parleyv1.WatchConversationsRequest,
			stream grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse],
		) error {
			got = request
			return show(request, stream)
		})
		for _, terminal := range []bool{true, false} {
			var out, errs strings.Builder
			code := run(t.Context(), append([]string{"--address", address, "watch"}, test.args...), console{
				program: "parley", out: &out, err: &errs, errTerminal: terminal, getenv: func(string) string {
					return ""
				}, now: noon,
			})
			note := ""
			if terminal {
				note = test.note
			}
			if errs.String() != note || strings.Count(out.String(), "\n") != 1 || code != 0 {
				t.Errorf("%v: standard output %q, standard error %q, exit code %d; want the gap, %q, 0", test.args, out.String(),
					errs.String(), code, note)
			}
			if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("%v: request (-want +got):\n%s", test.args, diff)
			}
		}
	}
}

func TestEndsOfAWatch(t *testing.T) {
	late := status.Error(codes.DeadlineExceeded, "the time is up")
	tests := []struct {
		name    string
		end     error
		changes []*parleyv1.ConversationChange
		stderr  string
		code    int
	}{
		{"the timeout", late, []*parleyv1.ConversationChange{heartbeat()}, "", 0},
		{
			"the timeout before the first heartbeat", late,
			[]*parleyv1.ConversationChange{gap()},
			"no reply from ADDRESS within 0s: --timeout sets how long to wait", 1,
		},
		{
			"an error of the server", status.Error(codes.Unauthenticated, "who are you"),
			[]*parleyv1.ConversationChange{heartbeat()},
			"who are you (Unauthenticated)", 1,
		},
	}
	for _, test := range tests {
		address := serveWatch(t, sendChanges(test.end, append(test.changes, turnChange("a", "t1", delta("half an ans")))...))
		stdout, stderr, code := runOnce(t.Context(), "", "--address", address, "watch", "--turns")
		if !strings.HasSuffix(stdout, "half an ans\n") {
			t.Errorf("%s: standard output %q, want a line feed at the end", test.name, stdout)
		}
		want := ""
		if test.stderr != "" {
			want = "parley: " + strings.ReplaceAll(test.stderr, "ADDRESS", address) + "\n"
		}
		if stderr != want || code != test.code {
			t.Errorf("%s: standard error %q, exit code %d; want %q, %d", test.name, stderr, code, want, test.code)
		}
	}
}

// TestSignalsEndAWatch checks that Ctrl-C and SIGTERM end a watch with exit code 0.
func TestSignalsEndAWatch(t *testing.T) {
	address := serveWatch(t, sendChanges(nil, heartbeat(), messageChange(&parleyv1.Message{Sequence: 1, Content: "hi"})))
	for _, output := range []string{"table", "json"} {
		for _, signal := range []string{"SIGINT", "SIGTERM"} {
			t.Run(signal+" "+output, func(t *testing.T) {
				ctx, terminate := context.WithCancel(t.Context())
				s := openTerminal(ctx, t, "--address", address, "--output", output, "watch")
				s.expect("hi")
				if signal == "SIGINT" {
					s.interrupt()
				} else {
					terminate()
				}
				s.expectEnd(0)
				terminate()
			})
		}
	}
}

func TestWatchAsJSON(t *testing.T) {
	address := serveWatch(t, sendChanges(status.Error(codes.DeadlineExceeded, "the time is up"),
		gap(), heartbeat(), messageChange(&parleyv1.Message{Sequence: 1, Content: "h\x1bi"}), heartbeat()))
	stdout, stderr, code := runOnce(t.Context(), "", "--address", address, "--output", "json", "watch")
	lines := strings.Split(stdout, "\n")
	if len(lines) != 5 || stderr != "" || code != 0 {
		t.Fatalf("standard output %q, standard error %q, exit code %d; want 4 lines, 0", stdout, stderr, code)
	}
	for i, want := range []string{"CHANGE_KIND_GAP", "CHANGE_KIND_HEARTBEAT", `h\u001bi`, "CHANGE_KIND_HEARTBEAT"} {
		if !strings.HasPrefix(lines[i], `{"cursor":"c","kind":"`) || !strings.Contains(lines[i], want) {
			t.Errorf("line %d = %s, want it to contain %s", i, lines[i], want)
		}
	}
}

func TestWatchWithFullOutput(t *testing.T) {
	for _, output := range []string{"table", "json"} {
		address := serveWatch(t, sendChanges(nil, heartbeat(), turnChange("a", "t1", delta("one")), gap()))
		var errs strings.Builder
		code := run(t.Context(), []string{"--address", address, "--output", output, "watch"}, console{
			program: "parley", out: fullDisk{}, err: &errs, getenv: func(string) string { return "" }, now: noon,
		})
		if errs.String() != "parley: no space left on device\n" || code != 1 {
			t.Errorf("--output %s: standard error %q, exit code %d; want 1", output, errs.String(), code)
		}
	}
}

func TestWatchHasNoDefaultTimeout(t *testing.T) {
	address := serveWatch(t, func(_ *parleyv1.WatchConversationsRequest,
		stream grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse],
	) error {
		if _, limited := stream.Context().Deadline(); limited {
			return status.Error(codes.Unauthenticated, "limited")
		}
		return status.Error(codes.Unauthenticated, "no deadline")
	})
	for want, args := range map[string][]string{"no deadline": {"watch"}, "limited": {"watch", "--timeout", "1h"}} {
		if _, stderr, _ := runOnce(t.Context(), "", append([]string{"--address", address}, args...)...); !strings.Contains(stderr, want) {
			t.Errorf("%v: standard error %q, want it to contain %q", args, stderr, want)
		}
	}
}
