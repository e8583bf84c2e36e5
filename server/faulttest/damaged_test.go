package faulttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestDamagedFile checks the server on damaged files. It must either refuse the file with one line and
// end, or report the damaged conversations and serve all others.
func TestDamagedFile(t *testing.T) {
	requireRoot(t) // Root is not subject to the mode and owner of the file.
	clients, undamaged := makeStore(t, nil)
	for name, damage := range damages() {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(6, uint64(len(name))))
			for seed := range rounds(4, 40) {
				dataDir := t.TempDir()
				if err := damage(t, filepath.Join(dataDir, fileName), bytes.Clone(undamaged), random); err != nil {
					t.Fatal(err)
				}
				got, err := serveDamaged(t, nil, dataDir, clients)
				if err != nil {
					t.Errorf("file %d: outcome %q: %v", seed, got, err)
				}
				counts.add(t, string(got), 1)
			}
		})
	}
}

// TestDamagedFileWithoutChecksums is the control: a server that ignores checksums returns damaged
// data, and the check detects it.
func TestDamagedFileWithoutChecksums(t *testing.T) {
	unchecked := buildWith(t, "store/internal/checksum/checksum.go", "	return sum\n", "	return sum &^ sum\n")
	clients, undamaged := makeStore(t, unchecked)
	random, wrong := rand.New(rand.NewPCG(6, 6)), 0
	const total = 10
	for range total {
		dataDir := t.TempDir()
		if err := damageMessage(t, filepath.Join(dataDir, fileName), bytes.Clone(undamaged), random); err != nil {
			t.Fatal(err)
		}
		if _, err := serveDamaged(t, unchecked, dataDir, clients); err != nil {
			wrong++
			if wrong == 1 {
				t.Logf("detected as expected: %.400v", err)
			}
		}
	}
	counts.add(t, "control: damaged files", total)
	counts.add(t, "control: damaged files with wrong data served", wrong)
	if wrong == 0 {
		t.Error("no wrong data was detected without checksums; the test of damaged files proves nothing")
	}
}

// makeStore fills a store through a server and stops it. It returns the clients with their states, and
// the content of the file. The wrapper may replace the server's program.
func makeStore(t *testing.T, wrapper []string) ([]*client, []byte) {
	t.Helper()
	clients, dataDir := newClients(24, 6), t.TempDir()
	s := launch(t, dataDir, wrapper, "--interaction-log=false")
	if err := s.awaitServing(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), testTimeout)
	defer stop()
	for range 20 {
		for _, c := range clients {
			if err := c.do(ctx, s, c.next()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range clients {
		if c.state.acknowledged.version == 0 { // The last step deleted it.
			if err := c.do(ctx, s, &step{kind: appendStep, request: c.id + "-last", contents: []string{c.newContent()}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.stop(t)
	file, err := os.ReadFile(filepath.Join(dataDir, fileName))
	if err != nil {
		t.Fatal(err)
	}
	return clients, file
}

// result is what a server does with a damaged file.
type result string

const (
	refusedAtStart  result = "refused at the start, 65"
	servedAll       result = "served, nothing lost"
	servedRest      result = "served, damaged conversations reported"
	missing         result = "served, some conversations not found, as parleyd check reports"
	refusedAfter    result = "ended at a write, 74, and refused at the next start, 65"
	servedAfterStop result = "ended at a write, 74, as parleyd check predicts, and served again"
	violated        result = "violation"
)

// serveDamaged starts a server on a damaged file. It returns the result, and an error if the server
// does anything wrong. The wrapper may replace the server's program.
func serveDamaged(t *testing.T, wrapper []string, dataDir string, clients []*client) (result, error) {
	t.Helper()
	path := filepath.Join(dataDir, fileName)
	sound, err := checkFile(t, path)
	if err != nil {
		return violated, err
	}
	flags := []string{"--interaction-log=false", fmt.Sprintf("--max-conversations=%d", len(clients))}
	s := launch(t, dataDir, wrapper, flags...)
	defer s.kill()
	if s.awaitServing() != nil {
		return refusedAtStart, wantRefusedFile(t, s, path)
	}
	ctx, stop := context.WithTimeout(t.Context(), testTimeout)
	defer stop()
	lost, err := readDamaged(ctx, s, clients)
	if err == nil {
		err = writeDamaged(ctx, s, clients, lost)
	}
	end := lost.result()
	switch {
	case status.Code(err) == codes.Unavailable:
		if end, err = restartDamaged(t, s, path); end == refusedAtStart {
			end = refusedAfter
		}
	case err == nil:
		s.stop(t)
	}
	if sound && wrapper == nil && end != servedAll {
		err = errors.Join(err, errors.New("parleyd check found no fault in the file"))
	}
	if err != nil {
		return violated, fmt.Errorf("%s: %w", end, err)
	}
	return end, nil
}

// restartDamaged waits for the end of a server that has failed, and starts another one.
func restartDamaged(t *testing.T, s *server, path string) (result, error) {
	t.Helper()
	if _, err := s.awaitFailure(t, exitIO); err != nil {
		return violated, err
	}
	again := launch(t, filepath.Dir(path), nil)
	defer again.kill()
	if again.awaitServing() == nil {
		return servedAfterStop, nil
	}
	return refusedAtStart, wantRefusedFile(t, again, path)
}

// checkFile runs parleyd check on a file, and reports whether it finds no fault.
func checkFile(t *testing.T, path string) (sound bool, err error) {
	t.Helper()
	switch code, out := check(t, path); {
	case code == 0:
		return true, nil
	case code != exitDamaged || strings.Contains(out, "goroutine "):
		return false, fmt.Errorf("parleyd check ended with %d:\n%s", code, quote(out))
	}
	return false, nil
}

// wantRefusedFile returns an error unless a server ends on a damaged file as it must: with exit code
// 65 and one line with the file, the fault and what to do.
func wantRefusedFile(t *testing.T, s *server, path string) error {
	t.Helper()
	line, err := s.awaitFailure(t, exitDamaged)
	for _, want := range []string{"store " + path + ": ", "damaged: "} {
		if strings.Count(line, want) != 1 {
			err = errors.Join(err, fmt.Errorf("last line = %q, want %q in it once", line, want))
		}
	}
	if !strings.Contains(line, "restore a backup") && !strings.Contains(line, "use another file") {
		err = errors.Join(err, fmt.Errorf("last line = %q, want it to say what to do", line))
	}
	return err
}

// losses are the conversations that the server does not return, with the code of the error.
type losses map[string]codes.Code

func (l losses) result() result {
	end := servedAll
	for _, code := range l {
		if code == codes.NotFound {
			return missing // Its index entry is damaged.
		}
		end = servedRest
	}
	return end
}

// readDamaged reads all conversations. It returns an error if the server returns wrong data.
func readDamaged(ctx context.Context, s *server, clients []*client) (losses, error) {
	lost := losses{}
	for _, c := range clients {
		got, err := observe(ctx, s, c.id)
		switch {
		case status.Code(err) == codes.DataLoss:
			lost[c.id] = codes.DataLoss
		case err != nil:
			return lost, fmt.Errorf("read %s: %w", c.id, err)
		case got.version == 0:
			lost[c.id] = codes.NotFound
		case !equal(got, c.state.acknowledged):
			return lost, fmt.Errorf("%s: %s", c.id, diff(got, c.state.acknowledged))
		}
	}
	list, err := s.ListConversations(ctx, &parleyv1.ListConversationsRequest{PageSize: 1000})
	if status.Code(err) == codes.DataLoss && len(lost) > 0 {
		return lost, nil // Damaged pages make the list fail.
	}
	if err != nil {
		return lost, fmt.Errorf("list: %w", err)
	}
	listed := map[string]bool{}
	for _, entry := range list.GetConversations() {
		listed[entry.GetConversation().GetId()] = true
	}
	for _, c := range clients {
		if !listed[c.id] && lost[c.id] == codes.OK {
			return lost, fmt.Errorf("ListConversations lacks %s, which is not damaged", c.id)
		}
	}
	if len(listed) > len(clients) {
		return lost, fmt.Errorf("ListConversations = %d conversations, want %d at most", len(listed), len(clients))
	}
	_, err = s.GetStats(ctx, &parleyv1.GetStatsRequest{})
	return lost, err
}

// writeDamaged appends to the sound conversations, deletes the damaged ones, and creates one, for
// which another is evicted.
func writeDamaged(ctx context.Context, s *server, clients []*client, lost losses) error {
	for _, c := range clients {
		if lost[c.id] != codes.OK {
			continue
		}
		content := "after the damage"
		if _, err := s.AppendMessages(ctx, &parleyv1.AppendMessagesRequest{
			ConversationId: c.id, Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: content}},
		}); err != nil {
			return fmt.Errorf("append to %s: %w", c.id, err)
		}
		want := c.state.acknowledged.with(userMessage(content))
		got, err := observe(ctx, s, c.id)
		if err != nil {
			return fmt.Errorf("read %s after an append: %w", c.id, err)
		}
		if !equal(got, want) {
			return fmt.Errorf("%s after an append: %s", c.id, diff(got, want))
		}
	}
	_, err := s.CreateConversation(ctx, &parleyv1.CreateConversationRequest{
		Conversation: &parleyv1.Conversation{Id: "new"},
	})
	// The create evicts the oldest conversation, which may be in a damaged page.
	if err != nil && (status.Code(err) != codes.DataLoss || len(lost) == 0) {
		return fmt.Errorf("create: %w", err)
	}
	for id := range lost {
		_, err := s.DeleteConversation(ctx, &parleyv1.DeleteConversationRequest{ConversationId: id})
		// A conversation without an index entry cannot be deleted.
		if code := status.Code(err); err != nil && code != codes.DataLoss && code != codes.NotFound {
			return fmt.Errorf("delete %s: %w", id, err)
		}
	}
	return nil
}
