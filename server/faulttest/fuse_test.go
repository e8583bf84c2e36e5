package faulttest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/faulttest/crashfs"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore"
)

const (
	// tenant is the tenant of callers that are not authenticated.
	tenant   = "default"
	fileName = "parley.db"
)

// TestTornWrites checks that a crash loses no acknowledged write, whatever part of the unsynced writes
// is on the disk: all, some, reordered or torn.
func TestTornWrites(t *testing.T) {
	r := record(t, rounds(400, 4000), false)
	points, images := rounds(5, 200), rounds(10, 30)
	for c := range r.sample(points) {
		for i := range images {
			loss := lossOf(i)
			if err := r.check(t, c, loss); err != nil {
				t.Fatalf("crash at %d, loss of unsynced writes %q: %v", c.Position, loss, err)
			}
			counts.add(t, "images, loss of unsynced writes: "+string(loss), 1)
		}
		counts.add(t, "crash points", 1)
		counts.add(t, "unsynced writes at them", c.Unsynced())
		if c.Resized() {
			counts.add(t, "crash points at which the file grew", 1)
		}
	}
}

// TestTornWritesWithLyingSync is the control: if syncs do nothing, crashes lose data, and the check
// detects it.
func TestTornWritesWithLyingSync(t *testing.T) {
	r := record(t, 100, true)
	const points, images = 5, 10
	lost := 0
	for c := range r.sample(points) {
		for i := range images {
			if r.check(t, c, lossOf(i)) != nil {
				lost++
			}
		}
	}
	counts.add(t, "control: images", points*images)
	counts.add(t, "control: images that had lost data", lost)
	if lost == 0 {
		t.Error("no loss was detected with syncs that do nothing; the test of torn writes proves nothing")
	}
}

// lossOf returns the kind of loss of an image. The two kinds without randomness come first, once each.
func lossOf(image int) crashfs.Loss {
	fixed := []crashfs.Loss{crashfs.All, crashfs.None}
	if image < len(fixed) {
		return fixed[image]
	}
	random := []crashfs.Loss{crashfs.Newest, crashfs.Some, crashfs.Reordered, crashfs.Torn}
	return random[image%len(random)]
}

// recording is everything that a server wrote under load, with the progress of its clients.
type recording struct {
	fs      *crashfs.FS
	from    int // position at which the clients started
	clients []*clientHistory
	random  *rand.Rand
	images  string // directory of the images, one at a time
}

// clientHistory is the progress of a client over time.
type clientHistory struct {
	id       string
	progress []progressAt
}

type progressAt struct {
	position int
	progress
}

// record lets clients make steps on a server whose data is on a crashfs. If lie is true, syncs do
// nothing.
func record(t *testing.T, steps int, lie bool) *recording {
	t.Helper()
	requireRoot(t)
	if _, err := os.Stat("/dev/fuse"); err != nil {
		skipTest(t, "machine has no FUSE: %v", err)
	}
	dir := t.TempDir()
	f, err := crashfs.Mount(dir)
	if err != nil {
		skipTest(t, "machine does not allow FUSE: %v", err)
	}
	t.Cleanup(func() {
		if err := f.Unmount(); err != nil {
			t.Error(err)
		}
	})
	s := start(t, dir, "--interaction-log=false")
	if lie {
		f.Lie()
	}
	r := &recording{fs: f, from: f.Position(), random: rand.New(rand.NewPCG(4, 4)), images: t.TempDir()}
	clients := newClients(8, 4)
	for _, c := range clients {
		known := &clientHistory{id: c.id, progress: []progressAt{{}}}
		c.onProgress = func(p progress) {
			known.progress = append(known.progress, progressAt{f.Position(), p})
		}
		r.clients = append(r.clients, known)
	}
	work := startLoad(t, s, clients)
	if err := work.await(steps, 0); err != nil {
		t.Fatal(err)
	}
	s.kill()
	counts.add(t, "steps acknowledged", steps+work.end())
	return r
}

// sample yields n crash points: first those at which the file grows, which are few, then random ones,
// preferably those with many unsynced writes.
func (r *recording) sample(n int) iter.Seq[*crashfs.Crash] {
	var growing, others []int
	for c := range r.fs.Crashes(fileName, r.from) {
		if c.Resized() {
			growing = append(growing, c.Position)
		}
		others = append(others, slices.Repeat([]int{c.Position}, c.Unsynced())...)
	}
	r.random.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	var chosen []int
	for _, position := range append(growing, others...) {
		if len(chosen) < n && !slices.Contains(chosen, position) {
			chosen = append(chosen, position)
		}
	}
	return func(yield func(*crashfs.Crash) bool) {
		for c := range r.fs.Crashes(fileName, r.from) {
			if slices.Contains(chosen, c.Position) && !yield(c) {
				return
			}
		}
	}
}

// check opens an image of a crash and returns an error if it has lost or wrong data.
func (r *recording) check(t *testing.T, c *crashfs.Crash, loss crashfs.Loss) error {
	t.Helper()
	path := filepath.Join(r.images, fileName)
	defer os.Remove(path)
	if err := c.WriteImage(path, loss, r.random); err != nil {
		t.Fatal(err)
	}
	if err := soundPages(t, path); err != nil {
		return err
	}
	s, err := boltstore.Open(path, boltstore.Options{})
	if err != nil {
		return err
	}
	err = r.compare(t.Context(), s, c.Position)
	if err := errors.Join(err, s.Close()); err != nil {
		return err
	}
	return soundPages(t, path)
}

// compare compares a store with the progress of the clients at a position.
func (r *recording) compare(ctx context.Context, s *boltstore.Store, position int) error {
	var faults []error
	want, running := map[string]bool{}, 0
	for _, c := range r.clients {
		got, turn, err := read(ctx, s, c.id)
		if err == nil {
			err = c.at(position).allows(got, false)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", c.id, err))
		}
		if got.version != 0 {
			want[c.id] = true
		}
		if turn {
			running++
		}
	}
	page, err := s.List(ctx, &store.List{Tenant: tenant, PageSize: 1000})
	if err != nil {
		return errors.Join(append(faults, err)...)
	}
	for _, entry := range page.Entries {
		if !want[entry.GetConversation().GetId()] {
			faults = append(faults, fmt.Errorf("%s is listed and does not exist", entry.GetConversation().GetId()))
		}
	}
	if len(page.Entries) != len(want) || page.Damaged > 0 {
		faults = append(faults, fmt.Errorf("List = %d conversations and %d damaged, want %d and 0", len(page.Entries),
			page.Damaged, len(want)))
	}
	turns, _, err := s.Abandoned(ctx, "")
	if faults = append(faults, err); len(turns) != running {
		faults = append(faults, fmt.Errorf("Abandoned = %d turns, want %d", len(turns), running))
	}
	_, err = s.Append(ctx, &store.Append{
		Tenant: tenant, ConversationID: "new", Messages: []*parleyv1.Message{{Id: "m", Role: parleyv1.Role_ROLE_USER}},
	})
	return errors.Join(append(faults, err)...)
}

// at returns the progress of the client at a position.
func (r *clientHistory) at(position int) progress {
	i, _ := slices.BinarySearchFunc(r.progress, position+1, func(n progressAt, p int) int { return n.position - p })
	return r.progress[i-1].progress
}

// read reads a conversation from a store, and reports whether a turn runs on it.
func read(ctx context.Context, s *boltstore.Store, id string) (c conversation, running bool, err error) {
	snapshot, err := s.Read(ctx, &store.Read{Tenant: tenant, ConversationID: id, Newest: -1})
	if errors.Is(err, store.ErrNotFound) {
		return conversation{}, false, nil
	}
	if err != nil {
		return conversation{}, false, err
	}
	messages, err := snapshot.Messages.Messages()
	if err != nil {
		return conversation{}, false, err
	}
	return conversationOf(snapshot.Conversation, messages), snapshot.Conversation.GetActiveTurnId() != "", nil
}
