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
		return parrot(request, stream)
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
			ConversationId: "shop", Content: "from standard input", OnBusy: parleyv1.OnBusy_ON_BUSY_INTERRUPT, OnDisconnect: parleyv1.OnDisconnect_ON_DISCONNECT_CONTINUE,
		}},
		{[]string{"-c", "shop", "--again"}, &parleyv1.ChatRequest{
			ConversationId: "shop", AnswerPending: true, OnBusy: parleyv1.OnBusy_ON_BUSY_REJECT, OnDisconnect: parleyv1.OnDisconnect_ON_DISCONNECT_CONTINUE,
		}},
	}
	for _, test := range tests {
		_, stderr, code := once(t.Context(), "from standard input", append([]string{"--address", address, "chat"}, test.args...)...)
		if code != 0 {
			t.Errorf("%v: exit code %d, %s", test.args, code, stderr)
		}
		got.RequestId = "" // Made by the client.
		if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%v asks for (-want +got):\n%s", test.args, diff)
		}
	}
}

func TestChatUsage(t *testing.T) {
	tests := map[string][]string{
		`--on-busy "": only reject, queue and interrupt are known`:            {"--on-busy", "", "hello"},
		`--on-busy "unspecified": only reject, queue and interrupt are known`: {"--on-busy", "unspecified", "hello"},
		`--on-busy "wait": only reject, queue and interrupt are known`:        {"--on-busy", "wait"},
		`--on-disconnect "leave": only continue and cancel are known`:         {"--on-disconnect", "leave", "hello"},
		`--again needs --conversation: which one's history to answer`:         {"--again"},
		`--again asks what was asked before: no TEXT`:                         {"--again", "-c", "shop", "hello"},
		`nothing to say: give words, or a message on standard input`:          {"-c", "shop"},
	}
	for want, args := range tests {
		stdout, stderr, code := once(t.Context(), "", append([]string{"chat"}, args...)...)
		if want := "parley: " + want + "; see 'parley chat --help'\n"; stderr != want || stdout != "" || code != 64 {
			t.Errorf("%v: standard error %q, exit code %d; want %q, 64", args, stderr, code, want)
		}
	}
}
