package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

type importStream = grpc.ClientStreamingServer[parleyv1.ImportConversationsRequest, parleyv1.ImportConversationsResponse]

// importFake returns a server that accepts every request and then returns reply. received describes each request:
// the id, the number of messages, and whether it overwrites.
func importFake(reply *parleyv1.ImportConversationsResponse) (f fake, received *[]string) {
	received = new([]string)
	return fake{imports: func(stream importStream) error {
		for {
			request, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return stream.SendAndClose(reply)
			}
			if err != nil {
				return err
			}
			*received = append(*received,
				fmt.Sprintf("%s %d %t", request.GetConversation().GetId(), len(request.GetMessages()), request.GetOverwrite()))
		}
	}}, received
}

// conversationLine returns an export line of an empty conversation.
func conversationLine(id string) string { return fmt.Sprintf(`{"conversation":{"id":%q}}`+"\n", id) }

func TestImportReportsEachLine(t *testing.T) {
	f, received := importFake(&parleyv1.ImportConversationsResponse{
		ImportedCount: 2, SkippedCount: 1,
		Failures: []*parleyv1.ImportFailure{
			{ConversationId: "c", Reason: "its version is\n0"},
		},
	})
	address := f.serve(t)
	large := `{"conversation":{"id":"d"},"messages":[{"content":"` + strings.Repeat("x", 1<<20) + `"},{"content":"x"}]}` + "\n"
	tooLarge := `{"conversation":{"id":"e"},"messages":[{"content":"x"},{"content":"` + strings.Repeat("x", 4<<20) + `"}]}` + "\n"
	input := conversationLine("a") + "\nnonsense\n" + conversationLine("b") + conversationLine("c") + conversationLine("b") + tooLarge + large
	stdout, stderr, code := runOnce(t.Context(), input, "--address", address, "import", "--overwrite")
	want := `line 3: syntax error (column 1): invalid value nonsense
line 6 (b): line 4 already contains this conversation
line 7 (e): a message, a record or the header has 4.0 MiB; the limit of a request is 4.0 MiB
line 5 (c): its version is 0
parley: 4 lines not imported
`
	if diff := cmp.Diff(want, stderr); diff != "" {
		t.Errorf("standard error (-want +got):\n%s", diff)
	}
	if want := "imported 2, skipped 1 (1 already present or expired, 0 beyond the server's capacity), failed 4\n"; stdout != want || code != 1 {
		t.Errorf("standard output %q, exit code %d, want %q, 1", stdout, code, want)
	}
	if diff := cmp.Diff([]string{"a 0 true", "b 0 true", "c 0 true", "d 1 true", "d 1 true"}, *received); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}

	stdout, _, _ = runOnce(t.Context(), "nonsense\n"+conversationLine("c"), "--address", address, "--output", "json",
		"import", "--quiet")
	wantDocument := `{
  "imported": 2,
  "skipped": 1,
  "noRoom": 0,
  "failed": 2,
  "failures": [
    {
      "line": 1,
      "conversationId": "",
      "reason": "syntax error (column 1): invalid value nonsense"
    },
    {
      "line": 2,
      "conversationId": "c",
      "reason": "its version is\n0"
    }
  ]
}
`
	if diff := cmp.Diff(wantDocument, stdout); diff != "" {
		t.Errorf("standard output (-want +got):\n%s", diff)
	}
}

func TestImportBeyondTheCapacityFails(t *testing.T) {
	f, _ := importFake(&parleyv1.ImportConversationsResponse{ImportedCount: 1, SkippedCount: 2, NoRoomCount: 1})
	lines := byteOrderMark + conversationLine("a") + conversationLine("b") + conversationLine("c")
	stdout, stderr, code := runOnce(t.Context(), lines, "--address", f.serve(t), "import")
	const want = "imported 1, skipped 2 (1 already present or expired, 1 beyond the server's capacity), failed 0\n"
	if wantErr := "parley: the server has no capacity for 1 conversation; see its --max-conversations\n"; stdout != want || stderr != wantErr || code != 1 {
		t.Errorf("standard output %q, standard error %q, exit code %d, want %q, %q, 1", stdout, stderr, code, want, wantErr)
	}
}

func TestImportSucceedsWithSkippedConversations(t *testing.T) {
	f, received := importFake(&parleyv1.ImportConversationsResponse{SkippedCount: 1})
	stdout, stderr, code := runOnce(t.Context(), conversationLine("a"), "--address", f.serve(t), "import", "-")
	if want := "imported 0, skipped 1 (1 already present or expired, 0 beyond the server's capacity), failed 0\n"; stdout != want || stderr != "" || code != 0 {
		t.Errorf("standard output %q, standard error %q, exit code %d, want %q and 0", stdout, stderr, code, want)
	}
	if diff := cmp.Diff([]string{"a 0 false"}, *received); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestImportCountsUnreportedFailures(t *testing.T) {
	reply := &parleyv1.ImportConversationsResponse{ImportedCount: 2, SkippedCount: 1}
	var input strings.Builder
	for n := range 150 {
		id := fmt.Sprint(n)
		input.WriteString(conversationLine(id))
		if n < 100 {
			reply.Failures = append(reply.Failures, &parleyv1.ImportFailure{ConversationId: id, Reason: "bad"})
		}
	}
	f, _ := importFake(reply)
	stdout, stderr, code := runOnce(t.Context(), input.String(), "--address", f.serve(t), "import")
	if want := "line 100 (99): bad\nthe server refused 47 more\nparley: 147 lines not imported\n"; !strings.HasSuffix(stderr, want) || code != 1 {
		t.Errorf("standard error %q, exit code %d, want %q, 1", stderr, code, want)
	}
	if want := "imported 2, skipped 1 (1 already present or expired, 0 beyond the server's capacity), failed 147\n"; stdout != want {
		t.Errorf("standard output %q, want %q", stdout, want)
	}
}

// conversations is an endless reader of conversation lines.
type conversations struct{ n int }

func (c *conversations) Read(p []byte) (int, error) {
	c.n++
	return copy(p, conversationLine(fmt.Sprint(c.n))), nil
}

func TestImportEndedByTheServer(t *testing.T) {
	tests := []struct {
		name string
		end  func(importStream) error
		want string
	}{
		{
			"with an error", func(importStream) error { return status.Error(codes.DataLoss, "out of order") },
			"parley: out of order (DataLoss)\n",
		},
		{
			"with a reply", func(s importStream) error { return s.SendAndClose(&parleyv1.ImportConversationsResponse{}) },
			"parley: the server ended the import early\n",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := fake{imports: func(stream importStream) error {
				for range 3 {
					if _, err := stream.Recv(); err != nil {
						return err
					}
				}
				return test.end(stream)
			}}
			var stdout, stderr strings.Builder
			code := run(t.Context(), []string{"--address", f.serve(t), "import"}, console{
				in: &conversations{}, out: &stdout, err: &stderr, getenv: func(string) string { return "" }, now: time.Now,
			})
			note, failure, _ := strings.Cut(stderr.String(), "\n")
			if !strings.HasSuffix(note, " conversations were sent; those that the server imported remain") ||
				failure != test.want || code != 1 || stdout.String() != "" {
				t.Errorf("standard output %q, standard error %q, exit code %d, want %q, 1", stdout.String(), stderr.String(), code,
					test.want)
			}
		})
	}
}

func TestImportOfUnreadableInput(t *testing.T) {
	f, received := importFake(&parleyv1.ImportConversationsResponse{ImportedCount: 1})
	address := f.serve(t)
	var stdout, stderr strings.Builder
	code := run(t.Context(), []string{"--address", address, "import"}, console{
		in:  io.MultiReader(strings.NewReader(conversationLine("a")+`{"conv`), iotest.ErrReader(errors.New("broken"))),
		out: &stdout, err: &stderr, getenv: func(string) string { return "" }, now: time.Now,
	})
	if stdout.String() != "imported 1, skipped 0, failed 0\n" || stderr.String() != "parley: line 2: broken\n" ||
		code != 1 {
		t.Errorf("standard output %q, standard error %q, exit code %d; want 1 import and the error, 1", stdout.String(),
			stderr.String(), code)
	}
	if diff := cmp.Diff([]string{"a 0 false"}, *received); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}

	_, missing, code := runOnce(t.Context(), "", "import", filepath.Join(t.TempDir(), "none"))
	if !strings.Contains(missing, "none") || code != 1 {
		t.Errorf("import of a missing file: standard error %q, exit code %d", missing, code)
	}
	s := openTerminal(t.Context(), t, "import")
	s.expect("parley: nothing to import: name a FILE or pass one on standard input; see 'parley import --help'\n")
	s.expectEnd(64)
}

func TestImportWithFullOutput(t *testing.T) {
	f, _ := importFake(&parleyv1.ImportConversationsResponse{ImportedCount: 1})
	address := f.serve(t)
	for _, output := range []string{"table", "json"} {
		var stderr strings.Builder
		code := run(t.Context(), []string{"--address", address, "--output", output, "import"}, console{
			in: strings.NewReader(conversationLine("a")), out: fullDisk{}, err: &stderr, getenv: func(string) string {
				return ""
			}, now: time.Now,
		})
		if want := "parley: no space left on device\n"; stderr.String() != want || code != 1 {
			t.Errorf("--output %s: standard error %q, exit code %d, want %q, 1", output, stderr.String(), code, want)
		}
	}
}

// serveBlockedImport serves imports that never end. It sends the id of each request, and at the end the status code
// of the call, to received.
func serveBlockedImport(t *testing.T) (address string, received chan string) {
	t.Helper()
	received = make(chan string, 10)
	return fake{imports: func(stream importStream) error {
		for {
			request, err := stream.Recv()
			if err != nil {
				received <- status.Code(err).String()
				return err
			}
			if _, limited := stream.Context().Deadline(); limited {
				t.Error("the call has a deadline")
			}
			received <- request.GetConversation().GetId()
		}
	}}.serve(t), received
}

func TestImportIsInterrupted(t *testing.T) {
	address, received := serveBlockedImport(t)
	s := openTerminal(t.Context(), t, "--address", address, "import", "-")
	s.enter(conversationLine("a"))
	if got := <-received; got != "a" {
		t.Fatalf("the server received %s, want a", got)
	}
	s.interrupt()
	s.expect("1 conversations were sent; those that the server imported remain\nparley: interrupted\n")
	s.expectEnd(1)
	if got := <-received; got != codes.Canceled.String() {
		t.Errorf("the call ended with %s, want Canceled", got)
	}
}

// TestImportIsInterruptedWithinAConversation interrupts the import of a conversation that is larger than
// the flow control window of the connection.
func TestImportIsInterruptedWithinAConversation(t *testing.T) {
	received := make(chan struct{})
	f := fake{imports: func(stream importStream) error {
		_, err := stream.Recv()
		close(received)
		<-stream.Context().Done()
		return err
	}}
	s := openTerminal(t.Context(), t, "--address", f.serve(t), "import", "-")
	message := `{"content":"` + strings.Repeat("x", 1<<20) + `"}`
	s.enter(`{"conversation":{"id":"a"},"messages":[` + strings.Repeat(message+",", 20) + message + `]}`)
	<-received
	s.interrupt()
	s.expect("0 conversations were sent; those that the server imported remain\nparley: interrupted\n")
	s.expectEnd(1)
}

func TestImportShowsProgress(t *testing.T) {
	f, _ := importFake(&parleyv1.ImportConversationsResponse{ImportedCount: 2})
	address := f.serve(t)
	name := filepath.Join(t.TempDir(), "all.jsonl")
	if err := os.WriteFile(name, []byte(conversationLine("a")+"nonsense\n"+conversationLine("b")), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty.jsonl")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const end = "line 2: syntax error (column 1): invalid value nonsense\nimported 2, skipped 0, failed 1\nparley: 1 " +
		"line not imported\n"
	tests := []struct {
		name string
		args []string
		left string
		bar  string // A part of the progress bar; empty if there is none.
	}{
		{"a file", []string{name}, end, "( 0/65 B"},
		{"standard input", nil, "imported 2, skipped 0, failed 0\n", "importing (0"},
		{"an empty file", []string{empty}, "imported 2, skipped 0, failed 0\n", ""},
		{"--quiet", []string{name, "--quiet"}, end, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			left, written := runOnTerminal(t, nil, append([]string{"--address", address, "import"}, test.args...)...)
			if diff := cmp.Diff(test.left, left); diff != "" {
				t.Errorf("final screen (-want +got):\n%s", diff)
			}
			if bar := strings.Contains(written, "importing"); bar != (test.bar != "") || !strings.Contains(written, test.bar) {
				t.Errorf("output %q, want a progress bar with %q", written, test.bar)
			}
		})
	}
}
