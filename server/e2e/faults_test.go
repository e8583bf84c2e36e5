package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestCorruptionIsFound(t *testing.T) {
	t.Parallel()
	t.Run("a byte of a conversation", oneByte)
	t.Run("a page", onePage)
	t.Run("the file", wholeFile)
}

func oneByte(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	s := startServer(t, dataDir)
	for _, id := range []string{"before", "damaged", "after"} {
		// The damaged text is too late in the message to be in the header's preview.
		add(t, s, id, &parleyv1.Message{Content: strings.Repeat("Many words. ", 20) + "At the end the text of " + id + "."})
	}
	s.terminate()
	s.wantStop(t)
	damageText(t, filepath.Join(dataDir, storeName), "the text of damaged")
	s = startServer(t, dataDir)
	get := func(id string) error {
		_, err := s.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: id})
		return err
	}
	losses := func() int64 {
		stats, err := s.GetStats(t.Context(), &parleyv1.GetStatsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return stats.GetDataLossTotal()
	}
	before := losses()
	wantError(t, get("damaged"), codes.DataLoss, "RECORD_CORRUPT")
	_, err := s.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
		ConversationId: "damaged", Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: "hello"}},
	})
	wantError(t, err, codes.DataLoss, "RECORD_CORRUPT")
	if err := errors.Join(get("before"), get("after")); err != nil {
		t.Errorf("LoadConversation of the other conversations = %v, want no error", err)
	}
	batch, err := s.BatchGetRoutingSummaries(t.Context(), &parleyv1.BatchGetRoutingSummariesRequest{
		ConversationIds: []string{"before", "damaged", "after"},
	})
	if err != nil || len(batch.GetSummaries()) != 2 || !slices.Equal(batch.GetMissingIds(), []string{"damaged"}) {
		t.Errorf("BatchGetRoutingSummaries = %v, %v; want 2 summaries and \"damaged\" missing", batch, err)
	}
	if got := losses() - before; got != 3 {
		t.Errorf("data_loss_total grew by %d, want 3", got)
	}
	list, err := s.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{})
	listed := make(map[string]bool)
	for _, entry := range list.GetConversations() {
		listed[entry.GetConversation().GetId()] = true
	}
	if err != nil || !listed["before"] || !listed["after"] {
		t.Errorf("ListConversations = %v, %v; want the two undamaged ones", listed, err)
	}
	if _, err := s.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: "damaged"}); err != nil {
		t.Errorf("DeleteConversation(damaged) = %v, want no error", err)
	}
	if reply := add(t, s, "damaged", &parleyv1.Message{Content: "hello"}); reply.GetAppended()[0].GetSequence() != 1 ||
		!reply.GetCreated() {
		t.Errorf("AppendMessages with the id of the deleted conversation = %v, want a new one", reply)
	}
}

// damageText changes one bit in each copy of a text in a file.
func damageText(t *testing.T, path, text string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(data, []byte(text)) { // Free pages may contain more copies.
		t.Fatalf("%s does not contain %q", path, text)
	}
	damaged := []byte(text)
	damaged[len(damaged)/2] ^= 0x20
	if err := os.WriteFile(path, bytes.ReplaceAll(data, []byte(text), damaged), 0o600); err != nil {
		t.Fatal(err)
	}
}

// onePage damages a page of the file while the server runs, as if the check at the start had not
// reached the page.
func onePage(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	s := startServer(t, dataDir)
	ids := make([]string, 12)
	for i := range ids {
		ids[i] = fmt.Sprint("c", 10+i)
		add(t, s, ids[i], &parleyv1.Message{Content: "mark of " + ids[i] + strings.Repeat(" word", 500)})
	}
	flipPages(t, filepath.Join(dataDir, "parley.db"), "mark of "+ids[5])

	appendTo := func(id string) error {
		_, err := s.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
			ConversationId: id, Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: "hello"}},
		})
		return err
	}
	for range 2 { // A retry does not close the store.
		wantError(t, appendTo(ids[5]), codes.DataLoss, "RECORD_CORRUPT")
	}
	for _, id := range []string{ids[0], ids[11], "new"} {
		if err := appendTo(id); err != nil {
			t.Errorf("AppendMessages(%s) = %v, want no error: it is on another page", id, err)
		}
	}
}

// flipPages changes one bit in the flags of each leaf page that contains the mark.
func flipPages(t *testing.T, path, mark string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, flipped := os.Getpagesize(), 0
	for at := 2 * size; at+size <= len(data); at += size {
		page := data[at:]
		number, flags, more := binary.NativeEndian.Uint64(page), binary.NativeEndian.Uint16(page[8:]),
			binary.NativeEndian.Uint32(page[12:])
		if number != uint64(at/size) || flags != 2 ||
			!bytes.Contains(page[:min(len(page), (1+int(more))*size)], []byte(mark)) {
			continue
		}
		if _, err := f.WriteAt([]byte{page[8] ^ 0x40}, int64(at+8)); err != nil {
			t.Fatal(err)
		}
		flipped++
	}
	if flipped == 0 {
		t.Fatalf("no page contains %q", mark)
	}
}

func wholeFile(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	s := startServer(t, dataDir)
	add(t, s, "c", &parleyv1.Message{Content: "hello"})
	s.terminate()
	s.wantStop(t)
	path := filepath.Join(dataDir, "parley.db")
	intact, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		data []byte
	}{
		{"garbage", bytes.Repeat([]byte("garbage "), 8<<10)},
		{"empty", nil},
		{"a word", []byte("hello")},
		{"half", intact[:len(intact)/2]},
		{"first page", intact[:4096]},
		{"without its beginning", append(make([]byte, 3*4096), intact[3*4096:]...)},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := os.WriteFile(path, test.data, 0o600); err != nil {
				t.Fatal(err)
			}
			code, output := failToStart(t, "--data-dir="+dataDir)
			if code != 65 || !strings.Contains(output, path) || !strings.Contains(output, "restore") ||
				strings.Count(output, "\n") != 1 {
				t.Errorf("exit code %d, want 65, and one line with %s and \"restore\":\n%s", code, path, output)
			}
			if left, err := os.ReadFile(path); err != nil || !bytes.Equal(left, test.data) {
				t.Errorf("the file has %d bytes of %d or other content, %v; want it unchanged", len(left), len(test.data), err)
			}
		})
	}
	if err := os.WriteFile(path, intact, 0o600); err != nil {
		t.Fatal(err)
	}
	history(t, startServer(t, dataDir), "c")
}

func TestStartFailures(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	s := startServer(t, dataDir)
	address := s.conn.Target()
	for _, test := range []struct {
		name  string
		flags []string
		code  int
		texts []string // in the output, beside "parleyd: "
	}{
		{"a store in use", []string{"--data-dir=" + dataDir}, 75, []string{filepath.Join(dataDir, "parley.db"), "in use"}},
		{
			"an address in use",
			[]string{"--data-dir=" + t.TempDir(), "--grpc-address=" + address},
			74,
			[]string{address, "choose another --grpc-address"},
		},
		{
			"another address in use",
			[]string{"--data-dir=" + t.TempDir(), "--http-address=" + address},
			74,
			[]string{address, "choose another --http-address"},
		},
		{"no directory", []string{"--data-dir=/dev/null/data"}, 74, []string{"/dev/null/data/parley.db", "not a directory"}},
		{"an unknown store", []string{"--store=sqlite"}, 64, []string{`--store: "sqlite" is not one of memory, bolt, redis`}},
		{
			"several faults",
			[]string{"--ttl=never", "--max-turns=0", "--colour", agents(t, "agents: {x: {kind: y}}")},
			64,
			[]string{"4 faults", "--ttl: ", "--max-turns: ", "--colour: ", "agents.x.kind"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			code, output := failToStart(t, test.flags...)
			if code != test.code || strings.Count(output, "\n") != 1 && code != 64 {
				t.Errorf("exit code %d, want %d, and one line:\n%s", code, test.code, output)
			}
			for _, text := range append(test.texts, "parleyd: ") {
				if strings.Count(output, text) != 1 {
					t.Errorf("%q is not in the output exactly once:\n%s", text, output)
				}
			}
		})
	}
}

// failToStart runs parleyd, which must end without a signal, and returns its exit code and its output
// without log entries.
func failToStart(t *testing.T, flags ...string) (exitCode int, output string) {
	t.Helper()
	var stderr bytes.Buffer
	cmd := parleyd(t, flags...)
	cmd.Stderr = &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) {
		t.Fatalf("Run() = %v, want an exit code other than 0:\n%s", err, &stderr)
	}
	for line := range strings.Lines(stderr.String()) {
		if !strings.HasPrefix(line, "{") {
			output += line
		}
	}
	return exit.ExitCode(), output
}
