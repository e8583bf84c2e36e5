package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

type exportStream = grpc.ServerStreamingServer[parleyv1.ExportConversationsResponse]

// exportFake returns a server that exports parts and then ends with err.
func exportFake(err error, parts ...*parleyv1.ExportConversationsResponse) fake {
	return fake{export: func(_ *parleyv1.ExportConversationsRequest, stream exportStream) error {
		for _, part := range parts {
			if err := stream.Send(part); err != nil {
				return err
			}
		}
		return err
	}}
}

// part returns a part of a conversation of count messages: the messages with these contents.
func part(id string, count int32, contents ...string) *parleyv1.ExportConversationsResponse {
	p := &parleyv1.ExportConversationsResponse{Conversation: &parleyv1.Conversation{Id: id, MessageCount: count}}
	for _, content := range contents {
		p.Messages = append(p.Messages, &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: content})
	}
	return p
}

func TestExportJoinsParts(t *testing.T) {
	f := exportFake(nil, part("a", 3, "one", "two"), part("a", 3, "three"), part("b", 0), part("c", 1, "<&\u2028>"))
	stdout, stderr, code := runOnce(t.Context(), "", "--address", f.serve(t), "--output", "json", "export")
	want := `{"conversation":{"id":"a","messageCount":3},"messages":[{"role":"ROLE_USER","content":"one"},{"role":"ROLE_USER","content":"two"},{"role":"ROLE_USER","content":"three"}]}
{"conversation":{"id":"b"}}
{"conversation":{"id":"c","messageCount":1},"messages":[{"role":"ROLE_USER","content":"<&` + "\u2028" + `>"}]}
`
	if diff := cmp.Diff(want, stdout); diff != "" {
		t.Errorf("standard output (-want +got):\n%s", diff)
	}
	if stderr != "exported 3 conversations\n" || code != 0 {
		t.Errorf("standard error %q, exit code %d; want 3 conversations, 0", stderr, code)
	}
}

func TestExportSendsTheIDsWithoutDeadline(t *testing.T) {
	f := fake{export: func(request *parleyv1.ExportConversationsRequest, stream exportStream) error {
		if diff := cmp.Diff([]string{"b", "a"}, request.GetConversationIds()); diff != "" {
			t.Errorf("ids (-want +got):\n%s", diff)
		}
		if _, limited := stream.Context().Deadline(); limited {
			t.Error("the call has a deadline")
		}
		return nil
	}}
	stdout, stderr, code := runOnce(t.Context(), "", "--address", f.serve(t), "export", "--quiet", "b", "a")
	if stdout != "" || stderr != "" || code != 0 {
		t.Errorf("standard output %q, standard error %q, exit code %d; want no output, 0", stdout, stderr, code)
	}
}

func TestExportDetectsMissingMessages(t *testing.T) {
	tests := map[string]fake{
		"at the end":            exportFake(nil, part("a", 0), part("b", 2, "one")),
		"between conversations": exportFake(nil, part("a", 0), part("b", 2, "one"), part("c", 0)),
	}
	for name, f := range tests {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := runOnce(t.Context(), "", "--address", f.serve(t), "export")
			const want = "1 conversation written\nparley: conversation \"b\": only 1 of 2 messages received\n"
			if stdout != `{"conversation":{"id":"a"}}`+"\n" || stderr != want || code != 1 {
				t.Errorf("standard output %q, standard error %q, exit code %d, want %q, 1", stdout, stderr, code, want)
			}
		})
	}
}

func TestExportThatFails(t *testing.T) {
	address := exportFake(status.Error(codes.DataLoss, "out of order"), part("a", 0), part("b", 0), part("c", 1)).serve(t)
	stdout, stderr, code := runOnce(t.Context(), "", "--address", address, "export")
	if want := `{"conversation":{"id":"a"}}` + "\n" + `{"conversation":{"id":"b"}}` + "\n"; stdout != want {
		t.Errorf("standard output %q, want %q", stdout, want)
	}
	if want := "2 conversations written\nparley: out of order (DataLoss)\n"; stderr != want || code != 1 {
		t.Errorf("standard error %q, exit code %d, want %q, 1", stderr, code, want)
	}

	dir := t.TempDir()
	to := filepath.Join(dir, "all.jsonl")
	if err := os.WriteFile(to, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, stderr, code = runOnce(t.Context(), "", "--address", address, "export", "--to", to)
	if want := "received 2 conversations; " + to + " is unchanged\nparley: out of order (DataLoss)\n"; stderr != want ||
		code != 1 {
		t.Errorf("standard error %q, exit code %d, want %q, 1", stderr, code, want)
	}
	if diff := cmp.Diff(map[string]string{"all.jsonl": "-rw------- before"}, files(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestExportToAFile(t *testing.T) {
	address := exportFake(nil, part("a", 0)).serve(t)
	const line = `{"conversation":{"id":"a"}}` + "\n"
	dir := t.TempDir()
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "old"), []byte("before"), 0o644),
		os.WriteFile(filepath.Join(dir, "linked"), []byte("before"), 0o644),
		os.Symlink("linked", filepath.Join(dir, "link")),
	); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"new", "old", "link"} {
		stdout, stderr, code := runOnce(t.Context(), "", "--address", address, "export", "--to", filepath.Join(dir, name))
		if stdout != "" || stderr != "exported 1 conversation\n" || code != 0 {
			t.Errorf("--to %s: standard output %q, standard error %q, exit code %d; want 1 conversation in the file, 0", name,
				stdout, stderr, code)
		}
	}
	want := map[string]string{
		"new": "-rw------- " + line, "old": "-rw------- " + line, "linked": "-rw------- " + line,
		"link": "Lrwxrwxrwx " + line,
	}
	if diff := cmp.Diff(want, files(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}

	_, stderr, code := runOnce(t.Context(), "", "export", "--to", dir)
	if want := "--to \"" + dir + "\": not a regular file; leave out --to to write to standard output"; !strings.Contains(stderr, want) || code != 64 {
		t.Errorf("standard error %q, exit code %d, want %q, 64", stderr, code, want)
	}
}

// files returns the mode and content of each file in dir.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		info, infoErr := entry.Info()
		if err := errors.Join(err, infoErr); err != nil {
			t.Fatal(err)
		}
		found[entry.Name()] = info.Mode().String() + " " + string(content)
	}
	return found
}

func TestExportWithFullOutput(t *testing.T) {
	f := fake{export: func(_ *parleyv1.ExportConversationsRequest, stream exportStream) error {
		if err := errors.Join(stream.Send(part("a", 0)), stream.Send(part("b", 0))); err != nil {
			return err
		}
		<-stream.Context().Done() // The client must cancel the call.
		return stream.Context().Err()
	}}
	var stderr strings.Builder
	code := run(t.Context(), []string{"--address", f.serve(t), "export"}, console{
		out: fullDisk{}, err: &stderr, getenv: func(string) string { return "" }, now: time.Now,
	})
	if want := "0 conversations written\nparley: no space left on device\n"; stderr.String() != want || code != 1 {
		t.Errorf("standard error %q, exit code %d, want %q, 1", stderr.String(), code, want)
	}
}

func TestExportIsInterrupted(t *testing.T) {
	f := fake{export: func(_ *parleyv1.ExportConversationsRequest, stream exportStream) error {
		if err := errors.Join(stream.Send(part("a", 0)), stream.Send(part("b", 0))); err != nil {
			return err
		}
		<-stream.Context().Done()
		return stream.Context().Err()
	}}
	s := openTerminal(t.Context(), t, "--address", f.serve(t), "export")
	s.expect(`{"conversation":{"id":"b"}}` + "\n")
	s.interrupt()
	s.expect("2 conversations written\nparley: interrupted\n")
	s.expectEnd(1)
}

// runOnTerminal runs the program with standard error on a terminal. If out is nil, standard output is also on the
// terminal. It returns the final screen (left) and everything written to it.
func runOnTerminal(t *testing.T, out io.Writer, args ...string) (left, written string) {
	t.Helper()
	var screen strings.Builder
	c := console{
		in: strings.NewReader(""), out: out, err: &screen, outTerminal: out == nil, errTerminal: true,
		getenv: func(string) string { return "" }, now: time.Now,
	}
	if out == nil {
		c.out = &screen
	}
	run(t.Context(), args, c)
	var lines []string
	for line := range strings.SplitSeq(screen.String(), "\n") {
		var visible []rune
		for overwritten := range strings.SplitSeq(line, "\r") {
			for i, r := range []rune(overwritten) {
				visible = append(visible[:min(i, len(visible))], append([]rune{r}, visible[min(i+1, len(visible)):]...)...)
			}
		}
		lines = append(lines, strings.TrimRight(string(visible), " "))
	}
	return strings.Join(lines, "\n"), screen.String()
}

func TestExportShowsProgress(t *testing.T) {
	address := exportFake(status.Error(codes.DataLoss, "out of order"), part("a", 0), part("b", 0), part("c", 1)).serve(t)
	const lines = `{"conversation":{"id":"a"}}` + "\n" + `{"conversation":{"id":"b"}}` + "\n"
	to := filepath.Join(t.TempDir(), "all.jsonl")
	end := "2 conversations written\nparley: out of order (DataLoss)\n"
	endOfFile := "received 2 conversations; " + to + " is unchanged\nparley: out of order (DataLoss)\n"
	tests := []struct {
		name string
		out  io.Writer // nil for the terminal.
		args []string
		left string
		bar  string // A part of the progress bar; empty if there is none.
	}{
		{"to a pipe", io.Discard, nil, end, "(0/3"},
		{"some to a pipe", io.Discard, []string{"a", "b"}, end, "(0/2"},
		{"to a file", nil, []string{"--to", to}, endOfFile, "(0/3"},
		{"to the terminal", nil, nil, lines + end, ""},
		{"--quiet", io.Discard, []string{"--quiet"}, end, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			left, written := runOnTerminal(t, test.out, append([]string{"--address", address, "export"}, test.args...)...)
			if diff := cmp.Diff(test.left, left); diff != "" {
				t.Errorf("final screen (-want +got):\n%s", diff)
			}
			if bar := strings.Contains(written, "\rexporting"); bar != (test.bar != "") || !strings.Contains(written, test.bar) {
				t.Errorf("output %q, want a progress bar with %q", written, test.bar)
			}
		})
	}
}
