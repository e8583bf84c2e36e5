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
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore"
	"github.com/parleyhq/parley/store/faulttest/crashfs"
)

const (
	// tenant is whom the clients' conversations belong to, where nobody signs in.
	tenant   = "default"
	fileName = "parley.db"
)

// Whatever the disk holds of the writes that were not synced when the machine goes down, all
// of them, some, in whatever order, torn: nothing that was acknowledged is lost.
func TestTornWrites(t *testing.T) {
	r := record(t, rounds(400, 4000), false)
	points, images := rounds(5, 200), rounds(10, 30)
	for c := range r.sample(points) {
		for i := range images {
			loss := lossOf(i)
			if err := r.check(t, c, loss); err != nil {
				t.Fatalf("crash at %d, of the unsynced writes is lost: %s: %v", c.Position, loss, err)
			}
			counts.add(t, "images: of the unsynced writes is lost: "+string(loss), 1)
		}
		counts.add(t, "crash points", 1)
		counts.add(t, "unsynced writes at them", c.Unsynced())
		if c.Resized() {
			counts.add(t, "crash points at which the file grew", 1)
		}
	}
}

// The control: where syncs do nothing but say that they did, crashes lose data, and it shows.
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
		t.Error("syncs that do nothing lose nothing: the test of torn writes proves nothing")
	}
}

// lossOf gives each kind of loss its turn. Two of them are not random and need but one.
func lossOf(image int) crashfs.Loss {
	once := []crashfs.Loss{crashfs.All, crashfs.None}
	if image < len(once) {
		return once[image]
	}
	often := []crashfs.Loss{crashfs.Newest, crashfs.Some, crashfs.Reordered, crashfs.Torn}
	return often[image%len(often)]
}

// recording is all that a server wrote under load, and how far its clients were meanwhile.
type recording struct {
	fs      *crashfs.FS
	from    int // the position at which the clients began
	clients []*recorded
	random  *rand.Rand
	images  string // where the images are made, one at a time
}

// recorded is what a client knew, and when.
type recorded struct {
	id    string
	notes []note
}

type note struct {
	position int
	progress
}

// record has clients take so many steps on a server whose data lies on a crashfs.
func record(t *testing.T, steps int, lie bool) *recording {
	t.Helper()
	needRoot(t)
	if _, err := os.Stat("/dev/fuse"); err != nil {
		lacks(t, "this machine has no FUSE: %v", err)
	}
	dir := t.TempDir()
	f, err := crashfs.Mount(dir)
	if err != nil {
		lacks(t, "this machine gives no FUSE: %v", err)
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
		known := &recorded{id: c.id, notes: []note{{}}}
		c.noted = func(p progress) {
			known.notes = append(known.notes, note{f.Position(), p})
		}
		r.clients = append(r.clients, known)
	}
	work := begin(t, s, clients)
	if err := work.await(steps, 0); err != nil {
		t.Fatal(err)
	}
	s.kill()
	counts.add(t, "steps acknowledged", steps+work.end())
	return r
}

// sample yields so many moments at which the machine may go down: those at which the file
// grows, which are few, and any others, rather those that have much to lose.
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

// check opens what a crash may leave, and says what is wrong with it.
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

// compare compares a store with what the clients knew when so much was written.
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
			faults = append(faults, fmt.Errorf("%s is listed", entry.GetConversation().GetId()))
		}
	}
	if len(page.Entries) != len(want) || page.Damaged > 0 {
		faults = append(faults, fmt.Errorf("%d are listed and %d damaged, want %d", len(page.Entries), page.Damaged, len(want)))
	}
	turns, _, err := s.Abandoned(ctx, "")
	if faults = append(faults, err); len(turns) != running {
		faults = append(faults, fmt.Errorf("%d turns are abandoned, want %d", len(turns), running))
	}
	_, err = s.Append(ctx, &store.Append{Tenant: tenant, ConversationID: "new", Messages: []*parleyv1.Message{{Id: "m", Role: parleyv1.Role_ROLE_USER}}})
	return errors.Join(append(faults, err)...)
}

// at returns how far the client was when so much was written.
func (r *recorded) at(position int) progress {
	i, _ := slices.BinarySearchFunc(r.notes, position+1, func(n note, p int) int { return n.position - p })
	return r.notes[i-1].progress
}

// read reads a conversation from a store, and whether a turn runs on it.
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
	return seen(snapshot.Conversation, messages), snapshot.Conversation.GetActiveTurnId() != "", nil
}
