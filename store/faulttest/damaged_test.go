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

// Whatever is wrong with the file, the start says so in one line and ends; or what is damaged
// is told to be, and all else is served as it was.
func TestDamagedFile(t *testing.T) {
	needRoot(t) // For others the mode of a file and its owner come into it.
	clients, whole := makeStore(t, nil)
	for name, damage := range damages() {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(6, uint64(len(name))))
			for seed := range rounds(4, 40) {
				dataDir := t.TempDir()
				if err := damage(t, filepath.Join(dataDir, fileName), bytes.Clone(whole), random); err != nil {
					t.Fatal(err)
				}
				end, err := serveDamaged(t, nil, dataDir, clients)
				if err != nil {
					t.Errorf("file %d: %s: %v", seed, end, err)
				}
				counts.add(t, string(end), 1)
			}
		})
	}
}

// The control: a server that does not look at checksums serves what nobody has said.
func TestDamagedFileWithoutChecksums(t *testing.T) {
	blind := buildWith(t, "store/internal/record/codec.go", "	return sum\n", "	return sum &^ sum\n")
	clients, whole := makeStore(t, blind)
	random, wrong := rand.New(rand.NewPCG(6, 6)), 0
	const total = 10
	for range total {
		dataDir := t.TempDir()
		if err := damageWords(t, filepath.Join(dataDir, fileName), bytes.Clone(whole), random); err != nil {
			t.Fatal(err)
		}
		if _, err := serveDamaged(t, blind, dataDir, clients); err != nil {
			wrong++
			if wrong == 1 {
				t.Logf("as it must be: %.400v", err)
			}
		}
	}
	counts.add(t, "control: damaged files", total)
	counts.add(t, "control: damaged files that were served wrong", wrong)
	if wrong == 0 {
		t.Error("without checksums nothing wrong is served: the test of damaged files proves nothing")
	}
}

// makeStore has a server, which the wrapper may replace, keep something and end, and returns
// what the clients know and the file.
func makeStore(t *testing.T, wrapper []string) ([]*client, []byte) {
	t.Helper()
	clients, dataDir := newClients(24, 6), t.TempDir()
	s := launch(t, dataDir, wrapper, "--interaction-log=false")
	if err := s.serves(t); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	for range 20 {
		for _, c := range clients {
			if err := c.do(ctx, s, c.next()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range clients {
		if c.state.has.version == 0 { // It was deleted at the end.
			if err := c.do(ctx, s, &step{kind: appends, request: c.id + "-last", words: []string{c.words()}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.stop(t)
	whole, err := os.ReadFile(filepath.Join(dataDir, fileName))
	if err != nil {
		t.Fatal(err)
	}
	return clients, whole
}

// ending is what became of a damaged file.
type ending string

const (
	refusedAtStart ending = "refused at the start, 65"
	servedAll      ending = "served, nothing lost"
	servedRest     ending = "served, what is damaged told to be"
	missing        ending = "served, but for what only parleyd check tells of"
	refusedAfter   ending = "ended at a write, 74, and refused at the next start, 65"
	endsAgain      ending = "ended at a write, 74, as parleyd check would have told"
	wentWrong      ending = "went wrong"
)

// serveDamaged starts a server, which the wrapper may replace, on a damaged file, and says
// what is wrong with what it makes of it.
func serveDamaged(t *testing.T, wrapper []string, dataDir string, clients []*client) (ending, error) {
	t.Helper()
	path := filepath.Join(dataDir, fileName)
	sound, err := checkDamaged(t, path)
	if err != nil {
		return wentWrong, err
	}
	flags := []string{"--interaction-log=false", fmt.Sprintf("--max-conversations=%d", len(clients))}
	s := launch(t, dataDir, wrapper, flags...)
	defer s.kill()
	if s.serves(t) != nil {
		return refusedAtStart, refusesDamaged(t, s, path)
	}
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	lost, err := readDamaged(ctx, s, clients)
	if err == nil {
		err = writeDamaged(ctx, s, clients, lost)
	}
	end := lost.ending()
	switch {
	case status.Code(err) == codes.Unavailable:
		if end, err = endsDamaged(t, s, path); end == refusedAtStart {
			end = refusedAfter
		}
	case err == nil:
		s.stop(t)
	}
	if sound && wrapper == nil && end != servedAll {
		err = errors.Join(err, errors.New("parleyd check had found nothing"))
	}
	if err != nil {
		return wentWrong, fmt.Errorf("%s: %w", end, err)
	}
	return end, nil
}

// endsDamaged waits for the end of a server that has failed, and starts another.
func endsDamaged(t *testing.T, s *server, path string) (ending, error) {
	t.Helper()
	if _, err := s.endsWith(t, exitIO); err != nil {
		return wentWrong, err
	}
	again := launch(t, filepath.Dir(path), nil)
	defer again.kill()
	if again.serves(t) == nil {
		return endsAgain, nil
	}
	return refusedAtStart, refusesDamaged(t, again, path)
}

// checkDamaged has parleyd check look at a file, and reports whether that finds it sound.
func checkDamaged(t *testing.T, path string) (sound bool, err error) {
	t.Helper()
	switch code, out := check(t, path); {
	case code == 0:
		return true, nil
	case code != exitDamaged || strings.Contains(out, "goroutine "):
		return false, fmt.Errorf("parleyd check ended with %d:\n%s", code, quote(out))
	}
	return false, nil
}

// refusesDamaged says what is wrong with how a server ends on a damaged file.
func refusesDamaged(t *testing.T, s *server, path string) error {
	t.Helper()
	word, err := s.endsWith(t, exitDamaged)
	for _, told := range []string{"store " + path + ": ", "damaged: "} {
		if strings.Count(word, told) != 1 {
			err = errors.Join(err, fmt.Errorf("it does not say %q once: %s", told, word))
		}
	}
	if !strings.Contains(word, "restore a backup") && !strings.Contains(word, "use another file") {
		err = errors.Join(err, fmt.Errorf("it does not say what to do: %s", word))
	}
	return err
}

// losses are the conversations that are not served as they were, and what is said of them.
type losses map[string]codes.Code

func (l losses) ending() ending {
	end := servedAll
	for _, code := range l {
		if code == codes.NotFound {
			return missing // Its name is damaged: nothing leads to it.
		}
		end = servedRest
	}
	return end
}

// readDamaged reads everything.
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
		case !same(got, c.state.has):
			return lost, fmt.Errorf("%s: %s", c.id, difference(got, c.state.has))
		}
	}
	list, err := s.ListConversations(ctx, &parleyv1.ListConversationsRequest{PageSize: 1000})
	if status.Code(err) == codes.DataLoss && len(lost) > 0 {
		return lost, nil // Its pages make no sense.
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
			return lost, fmt.Errorf("%s is sound and not listed", c.id)
		}
	}
	if len(listed) > len(clients) {
		return lost, fmt.Errorf("%d are listed, there are %d", len(listed), len(clients))
	}
	_, err = s.GetStats(ctx, &parleyv1.GetStatsRequest{})
	return lost, err
}

// writeDamaged writes to what is sound, deletes what is not, and makes a conversation, for
// which another must go.
func writeDamaged(ctx context.Context, s *server, clients []*client, lost losses) error {
	for _, c := range clients {
		if lost[c.id] != codes.OK {
			continue
		}
		words := "after the damage"
		if _, err := s.AppendMessages(ctx, &parleyv1.AppendMessagesRequest{
			ConversationId: c.id, Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: words}},
		}); err != nil {
			return fmt.Errorf("append to %s: %w", c.id, err)
		}
		want := c.state.has.with(user(words))
		got, err := observe(ctx, s, c.id)
		if err != nil {
			return fmt.Errorf("read %s after an append: %w", c.id, err)
		}
		if !same(got, want) {
			return fmt.Errorf("%s after an append: %s", c.id, difference(got, want))
		}
	}
	_, err := s.CreateConversation(ctx, &parleyv1.CreateConversationRequest{Conversation: &parleyv1.Conversation{Id: "new"}})
	// The oldest conversation is evicted for it, and may be in a damaged page.
	if err != nil && (status.Code(err) != codes.DataLoss || len(lost) == 0) {
		return fmt.Errorf("create: %w", err)
	}
	for id := range lost {
		_, err := s.DeleteConversation(ctx, &parleyv1.DeleteConversationRequest{ConversationId: id})
		// Where its id leads nowhere any more it stays.
		if code := status.Code(err); err != nil && code != codes.DataLoss && code != codes.NotFound {
			return fmt.Errorf("delete %s: %w", id, err)
		}
	}
	return nil
}
