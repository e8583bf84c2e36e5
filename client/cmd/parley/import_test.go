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

// importing is a server that takes all in and then answers reply. taken is what it took: the
// id of each request, how many messages it had, and whether it overwrites.
func importing(reply *parleyv1.ImportConversationsResponse) (f fake, taken *[]string) {
	taken = new([]string)
	return fake{intake: func(stream importStream) error {
		for {
			request, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return stream.SendAndClose(reply)
			}
			if err != nil {
				return err
			}
			*taken = append(*taken, fmt.Sprintf("%s %d %t", request.GetConversation().GetId(), len(request.GetMessages()), request.GetOverwrite()))
		}
	}}, taken
}

func conversationLine(id string) string { return fmt.Sprintf(`{"conversation":{"id":%q}}`+"\n", id) }

func TestImportTellsOfEachLine(t *testing.T) {
	f, taken := importing(&parleyv1.ImportConversationsResponse{
		ImportedCount: 2, SkippedCount: 1,
		Failures: []*parleyv1.ImportFailure{
			{ConversationId: "c", Reason: "its version is\n0"},
		},
	})
	address := f.serve(t)
	large := `{"conversation":{"id":"d"},"messages":[{"content":"` + strings.Repeat("x", 1<<20) + `"},{"content":"x"}]}` + "\n"
	tooLarge := `{"conversation":{"id":"e"},"messages":[{"content":"x"},{"content":"` + strings.Repeat("x", 4<<20) + `"}]}` + "\n"
	input := conversationLine("a") + "\nnonsense\n" + conversationLine("b") + conversationLine("c") + conversationLine("b") + tooLarge + large
	stdout, stderr, code := once(t.Context(), input, "--address", address, "import", "--overwrite")
	want := `line 3: syntax error (column 1): invalid value nonsense
line 6 (b): line 4 was this conversation already
line 7 (e): a message, or all else, has 4.0 MiB: no request takes that much
line 5 (c): its version is 0
parley: 4 lines not taken in
`
	if diff := cmp.Diff(want, stderr); diff != "" {
		t.Errorf("standard error (-want +got):\n%s", diff)
	}
	if want := "imported 2, skipped 1 (1 there already or expired, 0 without room), failed 4\n"; stdout != want || code != 1 {
		t.Errorf("standard output %q, exit code %d, want %q, 1", stdout, code, want)
	}
	if diff := cmp.Diff([]string{"a 0 true", "b 0 true", "c 0 true", "d 1 true", "d 1 true"}, *taken); diff != "" {
		t.Errorf("taken in (-want +got):\n%s", diff)
	}

	stdout, _, _ = once(t.Context(), "nonsense\n"+conversationLine("c"), "--address", address, "--output", "json", "import", "--quiet")
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

func TestALackOfRoomIsAFailure(t *testing.T) {
	f, _ := importing(&parleyv1.ImportConversationsResponse{ImportedCount: 1, SkippedCount: 2, NoRoomCount: 1})
	lines := byteOrderMark + conversationLine("a") + conversationLine("b") + conversationLine("c")
	stdout, stderr, code := once(t.Context(), lines, "--address", f.serve(t), "import")
	const want = "imported 1, skipped 2 (1 there already or expired, 1 without room), failed 0\n"
	if wantErr := "parley: no room for 1 conversation: see --max-conversations of the server\n"; stdout != want || stderr != wantErr || code != 1 {
		t.Errorf("standard output %q, standard error %q, exit code %d", stdout, stderr, code)
	}
}

func TestToSkipIsNoFailure(t *testing.T) {
	f, taken := importing(&parleyv1.ImportConversationsResponse{SkippedCount: 1})
	stdout, stderr, code := once(t.Context(), conversationLine("a"), "--address", f.serve(t), "import", "-")
	if want := "imported 0, skipped 1 (1 there already or expired, 0 without room), failed 0\n"; stdout != want || stderr != "" || code != 0 {
		t.Errorf("standard output %q, standard error %q, exit code %d, want %q and 0", stdout, stderr, code, want)
	}
	if diff := cmp.Diff([]string{"a 0 false"}, *taken); diff != "" {
		t.Errorf("taken in (-want +got):\n%s", diff)
	}
}

func TestImportSaysHowManyMoreFailed(t *testing.T) {
	reply := &parleyv1.ImportConversationsResponse{ImportedCount: 2, SkippedCount: 1}
	var input strings.Builder
	for n := range 150 {
		id := fmt.Sprint(n)
		input.WriteString(conversationLine(id))
		if n < 100 {
			reply.Failures = append(reply.Failures, &parleyv1.ImportFailure{ConversationId: id, Reason: "bad"})
		}
	}
	f, _ := importing(reply)
	stdout, stderr, code := once(t.Context(), input.String(), "--address", f.serve(t), "import")
	if want := "line 100 (99): bad\nthe server refused 47 more\nparley: 147 lines not taken in\n"; !strings.HasSuffix(stderr, want) || code != 1 {
		t.Errorf("standard error %q, exit code %d, want %q, 1", stderr, code, want)
	}
	if want := "imported 2, skipped 1 (1 there already or expired, 0 without room), failed 147\n"; stdout != want {
		t.Errorf("standard output %q, want %q", stdout, want)
	}
}

// conversations are lines without end.
type conversations struct{ n int }

func (c *conversations) Read(p []byte) (int, error) {
	c.n++
	return copy(p, conversationLine(fmt.Sprint(c.n))), nil
}

func TestImportThatTheServerEnds(t *testing.T) {
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
			"as if it were whole", func(s importStream) error { return s.SendAndClose(&parleyv1.ImportConversationsResponse{}) },
			"parley: the server ended the import before its time\n",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := fake{intake: func(stream importStream) error {
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
			if !strings.HasSuffix(note, " conversations had been sent; those that the server has taken in stay") || failure != test.want || code != 1 || stdout.String() != "" {
				t.Errorf("standard output %q, standard error %q, exit code %d, want %q, 1", stdout.String(), stderr.String(), code, test.want)
			}
		})
	}
}

func TestImportOfWhatCannotBeRead(t *testing.T) {
	f, taken := importing(&parleyv1.ImportConversationsResponse{ImportedCount: 1})
	address := f.serve(t)
	var stdout, stderr strings.Builder
	code := run(t.Context(), []string{"--address", address, "import"}, console{
		in:  io.MultiReader(strings.NewReader(conversationLine("a")+`{"conv`), iotest.ErrReader(errors.New("broken"))),
		out: &stdout, err: &stderr, getenv: func(string) string { return "" }, now: time.Now,
	})
	if stdout.String() != "imported 1, skipped 0, failed 0\n" || stderr.String() != "parley: line 2: broken\n" || code != 1 {
		t.Errorf("standard output %q, standard error %q, exit code %d", stdout.String(), stderr.String(), code)
	}
	if diff := cmp.Diff([]string{"a 0 false"}, *taken); diff != "" {
		t.Errorf("taken in (-want +got):\n%s", diff)
	}

	if _, stderr, code := once(t.Context(), "", "import", filepath.Join(t.TempDir(), "none")); !strings.Contains(stderr, "none") || code != 1 {
		t.Errorf("of no file: standard error %q, exit code %d", stderr, code)
	}
	s := open(t.Context(), t, "import")
	s.expect("parley: nothing to import: name a FILE, or give one on standard input; see 'parley import --help'\n")
	s.expectEnd(64)
}

func TestImportThatCannotBeWritten(t *testing.T) {
	f, _ := importing(&parleyv1.ImportConversationsResponse{ImportedCount: 1})
	address := f.serve(t)
	for _, output := range []string{"table", "json"} {
		var stderr strings.Builder
		code := run(t.Context(), []string{"--address", address, "--output", output, "import"}, console{
			in: strings.NewReader(conversationLine("a")), out: fullDisk{}, err: &stderr, getenv: func(string) string { return "" }, now: time.Now,
		})
		if want := "parley: no space left on device\n"; stderr.String() != want || code != 1 {
			t.Errorf("--output %s: standard error %q, exit code %d, want %q, 1", output, stderr.String(), code, want)
		}
	}
}

// holding is a server that tells of each request, and once the client has left, of how it did.
func holding(t *testing.T) (address string, taken chan string) {
	t.Helper()
	taken = make(chan string, 10)
	return fake{intake: func(stream importStream) error {
		for {
			request, err := stream.Recv()
			if err != nil {
				taken <- status.Code(err).String()
				return err
			}
			if _, limited := stream.Context().Deadline(); limited {
				t.Error("the call has a deadline")
			}
			taken <- request.GetConversation().GetId()
		}
	}}.serve(t), taken
}

func TestImportIsInterrupted(t *testing.T) {
	address, taken := holding(t)
	s := open(t.Context(), t, "--address", address, "import", "-")
	s.enter(conversationLine("a"))
	if got := <-taken; got != "a" {
		t.Fatalf("taken %s, want a", got)
	}
	s.interrupt()
	s.expect("1 conversations had been sent; those that the server has taken in stay\nparley: interrupted\n")
	s.expectEnd(1)
	if got := <-taken; got != codes.Canceled.String() {
		t.Errorf("the call ended with %s, want Canceled", got)
	}
}

// What is on the way is larger than what the connection takes in advance.
func TestImportIsInterruptedWithinAConversation(t *testing.T) {
	begun := make(chan struct{})
	f := fake{intake: func(stream importStream) error {
		_, err := stream.Recv()
		close(begun)
		<-stream.Context().Done()
		return err
	}}
	s := open(t.Context(), t, "--address", f.serve(t), "import", "-")
	message := `{"content":"` + strings.Repeat("x", 1<<20) + `"}`
	s.enter(`{"conversation":{"id":"a"},"messages":[` + strings.Repeat(message+",", 20) + message + `]}`)
	<-begun
	s.interrupt()
	s.expect("0 conversations had been sent; those that the server has taken in stay\nparley: interrupted\n")
	s.expectEnd(1)
}

func TestImportShowsHowFarItIs(t *testing.T) {
	f, _ := importing(&parleyv1.ImportConversationsResponse{ImportedCount: 2})
	address := f.serve(t)
	name := filepath.Join(t.TempDir(), "all.jsonl")
	if err := os.WriteFile(name, []byte(conversationLine("a")+"nonsense\n"+conversationLine("b")), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty.jsonl")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const end = "line 2: syntax error (column 1): invalid value nonsense\nimported 2, skipped 0, failed 1\nparley: 1 line not taken in\n"
	tests := []struct {
		name string
		args []string
		left string
		bar  string // Of how much; empty: none.
	}{
		{"of a file", []string{name}, end, "( 0/65 B"},
		{"of what others write", nil, "imported 2, skipped 0, failed 0\n", "importing (0"},
		{"of an empty file", []string{empty}, "imported 2, skipped 0, failed 0\n", ""},
		{"quietly", []string{name, "--quiet"}, end, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			left, written := seen(t, nil, append([]string{"--address", address, "import"}, test.args...)...)
			if diff := cmp.Diff(test.left, left); diff != "" {
				t.Errorf("left on the screen (-want +got):\n%s", diff)
			}
			if bar := strings.Contains(written, "importing"); bar != (test.bar != "") || !strings.Contains(written, test.bar) {
				t.Errorf("written %q, want a bar with %q", written, test.bar)
			}
		})
	}
}
