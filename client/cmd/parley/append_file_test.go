package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

type appendStream = grpc.BidiStreamingServer[parleyv1.AppendStreamRequest, parleyv1.AppendStreamResponse]

// memory is a server that stores the first n requests, and remembers for each conversation its newest request ids, as
// many as a real server. Then it calls end.
type memory struct {
	n   int
	end func(appendStream) error

	mu       sync.Mutex
	received []string            // The contents of all requests.
	stored   map[string][]string // The contents of each conversation.
	ids      map[string][]string
}

func (m *memory) serve(stream appendStream) error {
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !m.store(r.GetAppend()) {
			return m.end(stream)
		}
		if err := stream.Send(&parleyv1.AppendStreamResponse{
			Result: &parleyv1.AppendStreamResponse_Response{Response: &parleyv1.AppendMessagesResponse{}},
		}); err != nil {
			return err
		}
	}
}

// store stores a request. It returns false after n requests.
func (m *memory) store(r *parleyv1.AppendMessagesRequest) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.received = append(m.received, r.GetMessages()[0].GetContent())
	if len(m.received) > m.n {
		return false
	}
	id := r.GetConversationId()
	if !slices.Contains(m.ids[id], r.GetRequestId()) {
		m.stored[id] = append(m.stored[id], r.GetMessages()[0].GetContent())
		m.ids[id] = append(m.ids[id], r.GetRequestId())
		m.ids[id] = m.ids[id][max(0, len(m.ids[id])-32):]
	}
	return true
}

// writeLines writes a file with n lines for each of some conversations, in turn, and returns its name.
func writeLines(t *testing.T, conversations, n int) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "lines.jsonl")
	var text strings.Builder
	for i := range n {
		for c := range conversations {
			fmt.Fprintf(&text, `{"conversation_id": "c%d", "role": "ROLE_USER", "content": "%d"}`+"\n", c, i)
		}
	}
	if err := os.WriteFile(name, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// numbers returns the contents of n lines.
func numbers(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(i))
	}
	return all
}

// TestAppendContinues breaks runs off and repeats them until all lines are appended. Each line must be stored once,
// in order. The runs are broken off as by a kill: the progress file is what it was after the last line that was stored.
func TestAppendContinues(t *testing.T) {
	for _, conversations := range []int{1, 3, 16} {
		t.Run(fmt.Sprint(conversations), func(t *testing.T) {
			m := &memory{stored: map[string][]string{}, ids: map[string][]string{}}
			const lines = 100
			name := writeLines(t, conversations, lines)
			address := fake{appends: m.serve}.serve(t)
			m.end = func(appendStream) error {
				saved, err := os.ReadFile(name + ".progress")
				if err == nil {
					err = os.WriteFile(name+".killed", saved, 0o600)
				}
				if err != nil {
					return err
				}
				return status.Error(codes.PermissionDenied, "revoked")
			}
			code := 1
			for run := 0; code == 1 && run < 50; run++ {
				m.mu.Lock()
				m.n = len(m.received) + 30*conversations + run
				if run == 0 {
					m.n = 3 // No line is saved.
				}
				m.mu.Unlock()
				var stderr string
				if _, stderr, code = runOnce(t.Context(), "", "--address", address, "append", "--from", name); code == 1 {
					if run > 0 && !strings.Contains(stderr, "the same command continues") || !strings.HasSuffix(stderr, "parley: revoked (PermissionDenied)\n") {
						t.Fatalf("run %d: standard error %q, want how to continue", run, stderr)
					}
					if err := os.Rename(name+".killed", name+".progress"); err != nil {
						t.Fatal(err)
					}
				}
			}
			if code != 0 {
				t.Fatalf("exit code of the last run %d, want 0", code)
			}
			for c := range conversations {
				if diff := cmp.Diff(numbers(lines), m.stored[fmt.Sprint("c", c)]); diff != "" {
					t.Errorf("messages of c%d (-want +got):\n%s", c, diff)
				}
			}
			if _, err := os.Stat(name + ".progress"); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the progress file after the last run: %v, want none", err)
			}
		})
	}
}

func TestAppendIsInterrupted(t *testing.T) {
	waiting := make(chan struct{})
	m := &memory{n: 30, stored: map[string][]string{}, ids: map[string][]string{}, end: func(stream appendStream) error {
		close(waiting)
		<-stream.Context().Done()
		return stream.Context().Err()
	}}
	address, name := fake{appends: m.serve}.serve(t), writeLines(t, 1, 40)
	s := openTerminal(t.Context(), t, "--address", address, "append", "--from", name)
	<-waiting // At least 6 lines are saved, because at most 24 are not.
	again := func(text string) (stdout, stderr string, code int) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return runOnce(t.Context(), "", "--address", address, "append", "--from", name)
	}
	before, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	text := string(before)
	_, stderr, code := again(text)
	if !strings.Contains(stderr, "another parley append --from reads the same input") || code != exitUsage {
		t.Errorf("a second run at the same time: standard error %q, exit code %d, want 64", stderr, code)
	}
	s.interrupt()
	s.expect(" is the last one that is done; the same command continues after it\nparley: interrupted\n")
	s.expectEnd(1)
	var done, appended, skipped, failed int
	if _, err := fmt.Sscanf(s.screen.String(), "line %d ", &done); err != nil {
		t.Fatal(err)
	}

	for what, changed := range map[string]string{
		"another line":  strings.Replace(text, `"2"`, `"3"`, 1),
		"fewer lines":   text[:strings.Index(text, "\n")+1],
		"no lines":      "",
		"a line before": text[:strings.Index(text, "\n")+1] + text,
	} {
		if _, stderr, code := again(changed); !strings.Contains(stderr, "the input has changed") || code != 1 {
			t.Errorf("%s: standard error %q, exit code %d, want 1", what, stderr, code)
		}
	}
	m.mu.Lock()
	m.n = 100
	m.mu.Unlock()
	stdout, stderr, code := again(text)
	_, err = fmt.Sscanf(stdout, "appended %d, skipped %d, failed %d\n", &appended, &skipped, &failed)
	if err != nil || appended+skipped != 40 || skipped != done || done < 6 || failed != 0 || stderr != "" || code != 0 {
		t.Errorf("the next run: standard output %q, standard error %q, exit code %d, want all lines after %d, 0", stdout, stderr, code, done)
	}
	if diff := cmp.Diff(numbers(40), m.stored["c0"]); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

func TestAppendShowsProgress(t *testing.T) {
	m := &memory{n: 100, stored: map[string][]string{}, ids: map[string][]string{}}
	address := fake{appends: m.serve}.serve(t)
	left, written := runOnTerminal(t, nil, "--address", address, "append", "--from", writeLines(t, 1, 3))
	if want := "appended 3, skipped 0, failed 0\n"; left != want {
		t.Errorf("final screen %q, want %q", left, want)
	}
	if !strings.Contains(written, "appending") || !strings.Contains(written, "( 0/189 B") {
		t.Errorf("output %q, want a progress bar", written)
	}
}

func TestAppendToAServerWithoutAppendStream(t *testing.T) {
	f := fake{appends: func(appendStream) error { return status.Error(codes.Unimplemented, "unknown method") }}
	_, stderr, code := runOnce(t.Context(), "", "--address", f.serve(t), "append", "--from", writeLines(t, 1, 1))
	if !strings.Contains(stderr, "parley: the server has no AppendStream: update it") || code != 1 {
		t.Errorf("standard error %q, exit code %d, want the advice, 1", stderr, code)
	}
}

// TestAppendReportsBadLines checks that a bad line is reported with its fault, and that the last text prevents a second
// run with all lines.
func TestAppendReportsBadLines(t *testing.T) {
	m := &memory{n: 2, stored: map[string][]string{}, ids: map[string][]string{}}
	address := fake{appends: m.serve}.serve(t)
	input := `{"conversation_id": "a", "role": "ROLE_USER", "content": "1"}
{"conversation_id": "a", "content": broken
{"conversation_id": "a", "content": "cut
{"conversation_id": "a", "contents": "1"}
["a"]
{"conversation_id": "a", "messages": [{"contents": "1"}]}
{"conversation_id": "a", "messages": [{"content": "2"}]}
`
	stdout, stderr, code := runOnce(t.Context(), input, "--address", address, "append", "--from", "-")
	want := `line 2: syntax error (column 37): invalid value broken
line 3: syntax error (column 37): invalid character '\n' in string
line 4: (column 2): unknown field "contents"
line 5: syntax error (column 1): unexpected token [
line 6: (column 40): unknown field "contents"
parley: 5 lines not appended; put them into another file, since the same command appends all lines again
`
	if diff := cmp.Diff(want, stderr); diff != "" {
		t.Errorf("standard error (-want +got):\n%s", diff)
	}
	if want := "appended 2, skipped 0, failed 5\n"; stdout != want || code != 1 {
		t.Errorf("standard output %q, exit code %d, want %q, 1", stdout, code, want)
	}
}
