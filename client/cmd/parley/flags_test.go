package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestChatFlags(t *testing.T) {
	var got *parleyv1.ChatRequest
	address := serve(t, func(request *parleyv1.ChatRequest, stream *turnStream) error {
		got = request
		return echoChat(request, stream)
	})
	tests := []struct {
		args []string
		want *parleyv1.ChatRequest
	}{
		{[]string{"hello"}, &parleyv1.ChatRequest{
			Content: "hello", OnBusy: parleyv1.OnBusy_ON_BUSY_REJECT, OnDisconnect: parleyv1.OnDisconnect_ON_DISCONNECT_CONTINUE,
		}},
		{[]string{"--on-busy", "queue", "--on-disconnect", "cancel", "hello"}, &parleyv1.ChatRequest{
			Content: "hello", OnBusy: parleyv1.OnBusy_ON_BUSY_QUEUE, OnDisconnect: parleyv1.OnDisconnect_ON_DISCONNECT_CANCEL,
		}},
		{[]string{"--on-busy", "interrupt", "-c", "shop"}, &parleyv1.ChatRequest{
			ConversationId: "shop", Content: "from standard input", OnBusy: parleyv1.OnBusy_ON_BUSY_INTERRUPT,
			OnDisconnect: parleyv1.OnDisconnect_ON_DISCONNECT_CONTINUE,
		}},
		{[]string{"-c", "shop", "--again"}, &parleyv1.ChatRequest{
			ConversationId: "shop", AnswerPending: true, OnBusy: parleyv1.OnBusy_ON_BUSY_REJECT,
			OnDisconnect: parleyv1.OnDisconnect_ON_DISCONNECT_CONTINUE,
		}},
	}
	for _, test := range tests {
		_, stderr, code := runOnce(t.Context(), "from standard input",
			append([]string{"--address", address, "chat"}, test.args...)...)
		if code != 0 {
			t.Errorf("%v: exit code %d, %s", test.args, code, stderr)
		}
		got.RequestId = "" // The client generates it.
		if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%v: request (-want +got):\n%s", test.args, diff)
		}
	}
}

func TestChatUsage(t *testing.T) {
	tests := map[string][]string{
		`--on-busy "": use reject, queue or interrupt`:                {"--on-busy", "", "hello"},
		`--on-busy "unspecified": use reject, queue or interrupt`:     {"--on-busy", "unspecified", "hello"},
		`--on-busy "wait": use reject, queue or interrupt`:            {"--on-busy", "wait"},
		`--on-disconnect "leave": use continue or cancel`:             {"--on-disconnect", "leave", "hello"},
		`--again needs --conversation, the conversation to answer`:    {"--again"},
		`--again repeats the last message: leave out TEXT`:            {"--again", "-c", "shop", "hello"},
		`no message: write TEXT, or pass a message on standard input`: {"-c", "shop"},
	}
	for want, args := range tests {
		stdout, stderr, code := runOnce(t.Context(), "", append([]string{"chat"}, args...)...)
		if want := "parley: " + want + "; see 'parley chat --help'\n"; stderr != want || stdout != "" || code != 64 {
			t.Errorf("%v: standard error %q, exit code %d; want %q, 64", args, stderr, code, want)
		}
	}
}
