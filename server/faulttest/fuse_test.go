package faulttest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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

// Settings of the journal. With the smallest budget, the load of a test folds the journal many times.
const (
	noJournal    = "--journal-budget=0"
	smallJournal = "--journal-budget=64KiB"
	smallBudget  = 64 << 10
)

// checkEvery is the number of positions of which one is checked before and after recovery, the others only after it.
const checkEvery = 5

// life is a server from its start until it is killed, and the number of steps that are acknowledged in it.
type life struct {
	journal string // setting
	steps   int
}

// recording is everything that servers wrote under load, with the progress of their clients.
type recording struct {
	fs      *crashfs.FS
	dir     string
	wrapper []string
	from    int // position at which the first server served
	working []*client
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

// newRecording mounts a file system until the end of the test. The wrapper may replace the server's program.
func newRecording(t *testing.T, wrapper []string, clients []*client, mount func(dir string) (*crashfs.FS, error),
) *recording {
	t.Helper()
	requireRoot(t)
	if _, err := os.Stat("/dev/fuse"); err != nil {
		skipTest(t, "machine has no FUSE: %v", err)
	}
	dir := t.TempDir()
	f, err := mount(dir)
	if err != nil {
		skipTest(t, "machine does not allow FUSE: %v", err)
	}
	t.Cleanup(func() {
		if err := f.Unmount(); err != nil {
			t.Error(err)
		}
	})
	r := &recording{
		fs: f, dir: dir, wrapper: wrapper, working: clients, random: rand.New(rand.NewPCG(4, 4)), images: memoryDir(t),
	}
	for _, c := range clients {
		known := &clientHistory{id: c.id, progress: []progressAt{{progress: c.state}}}
		c.onProgress = func(p progress) {
			known.progress = append(known.progress, progressAt{f.Position(), p})
		}
		r.clients = append(r.clients, known)
	}
	return r
}

// memoryDir returns a directory in memory, if the machine has one, for files that need not survive anything.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "faulttest") //nolint:usetesting // In memory.
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// run runs servers one after the other and kills each under load. It returns an error if a server finds lost or
// wrong data after the kill. If lie is true, syncs do nothing.
func (r *recording) run(t *testing.T, lie bool, lives ...life) error {
	t.Helper()
	for i, l := range lives {
		s := launch(t, r.dir, r.wrapper, "--interaction-log=false", l.journal, "--journal-age=1s")
		if err := s.awaitServing(); err != nil {
			return err
		}
		if i == 0 && r.from == 0 {
			r.from = r.fs.Position()
		}
		if lie {
			r.fs.Lie()
		}
		if err := verifyAll(t, s, r.working); err != nil {
			return err
		}
		work := startLoad(t, s, r.working)
		if err := work.await(l.steps, 0); err != nil {
			return err
		}
		s.kill()
		counts.add(t, "steps acknowledged", l.steps+work.end())
		countAppends(t, r.working)
	}
	return nil
}

// record is newRecording and run for eight clients of an empty store. The test fails if a server finds lost data.
func record(t *testing.T, wrapper []string, lie bool, lives ...life) *recording {
	t.Helper()
	r := newRecording(t, wrapper, newClients(8, 4), crashfs.Mount)
	if err := r.run(t, lie, lives...); err != nil {
		t.Fatal(err)
	}
	return r
}

// afterPowerCut returns a recording that begins with an image of a crash.
func (r *recording) afterPowerCut(t *testing.T, c *crashfs.Crash, loss crashfs.Loss) *recording {
	t.Helper()
	next := newRecording(t, r.wrapper, r.clientsAt(c.Position), crashfs.Mount)
	if err := c.WriteImage(next.dir, loss, r.random); err != nil {
		t.Fatal(err)
	}
	next.fs.SyncAll()
	return next
}

// afterKill returns a recording that begins after the server was killed where it might have crashed.
func (r *recording) afterKill(t *testing.T, c *crashfs.Crash) *recording {
	t.Helper()
	return newRecording(t, r.wrapper, r.clientsAt(c.Position), func(dir string) (*crashfs.FS, error) {
		return c.Mount(t.Context(), dir)
	})
}

// clientsAt returns new clients in the states of those of the recording at a position.
func (r *recording) clientsAt(position int) []*client {
	const earlierSteps = 1_000_000 // Clients do not use a request id twice.
	clients := newClients(len(r.clients), uint64(position))
	for i, known := range r.clients {
		clients[i].state, clients[i].steps = known.at(position), earlierSteps
	}
	return clients
}

// sample yields n crash points: first those at which a file grows or a name changes, at most half of them, then random
// ones, preferably those with many unsynced writes.
func (r *recording) sample(n int) iter.Seq[*crashfs.Crash] {
	return r.sampleOf(n, func(c *crashfs.Crash) (rare bool, weight int) {
		return c.Resized() || c.Renamed(), c.Unsynced()
	})
}

// sampleOf yields n crash points: first rare ones, at most half of them, then random ones by their weight.
func (r *recording) sampleOf(n int, rate func(*crashfs.Crash) (rare bool, weight int)) iter.Seq[*crashfs.Crash] {
	var rare, others []int
	for c := range r.fs.Crashes(r.from) {
		isRare, weight := rate(c)
		if isRare {
			rare = append(rare, c.Position)
		}
		others = append(others, slices.Repeat([]int{c.Position}, min(weight, 50))...)
	}
	for _, all := range [][]int{rare, others} {
		r.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	}
	chosen := map[int]bool{}
	for _, position := range append(rare[:min(len(rare), (n+1)/2)], others...) {
		if len(chosen) < n {
			chosen[position] = true
		}
	}
	return func(yield func(*crashfs.Crash) bool) {
		for c := range r.fs.Crashes(r.from) {
			if chosen[c.Position] && !yield(c) {
				return
			}
		}
	}
}

// image writes an image of a crash to a directory, which the caller removes. It returns the path of the store.
func (r *recording) image(t *testing.T, c *crashfs.Crash, loss crashfs.Loss) (dir, path string) {
	t.Helper()
	dir = filepath.Join(r.images, "image")
	if err := errors.Join(os.Mkdir(dir, 0o700), c.WriteImage(dir, loss, r.random)); err != nil {
		t.Fatal(err)
	}
	return dir, filepath.Join(dir, fileName)
}

// check opens an image of a crash with that budget of the journal. It returns an error if the image has lost or wrong
// data. If pages is true, it also checks the pages in a process of its own; without this, a cycle of pages would
// end the test.
func (r *recording) check(t *testing.T, c *crashfs.Crash, loss crashfs.Loss, budget int64, pages bool) error {
	t.Helper()
	dir, path := r.image(t, c, loss)
	defer os.RemoveAll(dir)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		counts.add(t, "images without a store", 1) // Open creates it.
	} else if pages || c.Position%checkEvery == 0 {
		if err := r.checkFile(t, path, pages); err != nil {
			return fmt.Errorf("image: %w", err)
		}
	}
	s, err := boltstore.Open(path, boltstore.Options{JournalBudget: budget})
	if err != nil {
		return err
	}
	err = r.compare(t, s, c.Position)
	if err := errors.Join(err, s.Close()); err != nil {
		return err
	}
	if err := r.checkFile(t, path, pages); err != nil {
		return fmt.Errorf("recovered store: %w", err)
	}
	return nil
}

// checkFile checks a store that is not open, with its journal.
func (r *recording) checkFile(t *testing.T, path string, pages bool) error {
	t.Helper()
	if pages {
		if err := soundPages(t, path); err != nil {
			return err
		}
	}
	var faults []error
	_, err := boltstore.Check(path, func(fault string) { faults = append(faults, errors.New(fault)) })
	return errors.Join(append(faults, err)...)
}

// compare compares a store with the progress of the clients at a position, and appends to it.
func (r *recording) compare(t *testing.T, s *boltstore.Store, position int) error {
	t.Helper()
	ctx := t.Context()
	var faults []error
	want, running := map[string]bool{"new": true}, 0
	ofTenant, newest := map[string]int64{}, int64(0)
	for _, c := range r.clients {
		got, turn, err := read(ctx, s, c.id)
		if err == nil && c.at(position).allows(got, false) != nil { // A server that has started since ends turns.
			err = c.at(position).allows(got, true)
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
		if got.tenantRecord.value != "" {
			ofTenant[c.id] = got.tenantRecord.revision
		}
		newest = max(newest, got.tenantRecord.revision, c.at(position).acknowledged.tenantRecord.revision)
		counts.add(t, "records verified after a fault", got.count())
	}
	faults = append(faults, compareTenant(ctx, s, ofTenant, newest))
	turns, _, err := s.Abandoned(ctx, "")
	if faults = append(faults, err); len(turns) != running {
		faults = append(faults, fmt.Errorf("Abandoned = %d turns, want %d", len(turns), running))
	}
	for i := range 2 { // The first append creates the conversation.
		_, err := s.Append(ctx, &store.Append{
			Tenant: tenant, ConversationID: "new",
			Messages: []*parleyv1.Message{{Id: fmt.Sprint("m", i), Role: parleyv1.Role_ROLE_USER}},
		})
		faults = append(faults, err)
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
	return errors.Join(faults...)
}

// at returns the progress of the client at a position.
func (r *clientHistory) at(position int) progress {
	i, _ := slices.BinarySearchFunc(r.progress, position+1, func(n progressAt, p int) int { return n.position - p })
	return r.progress[i-1].progress
}

// maxBytes is the maximum size of the records that a call reads from a store.
const maxBytes = 1 << 20

// compareTenant compares the tenant's records with those that were read one by one, and writes another one. newest is
// the highest revision that was acknowledged or read.
func compareTenant(ctx context.Context, s *boltstore.Store, want map[string]int64, newest int64) error {
	written, err := s.WriteRecords(ctx, &store.WriteRecords{
		Tenant: tenant, Writes: []*parleyv1.RecordWrite{{Key: faultKey, Value: []byte("1")}},
	})
	if err != nil {
		return err
	}
	if written.TenantRevision <= newest {
		return fmt.Errorf("tenant_revision after a fault = %d, want more than %d", written.TenantRevision, newest)
	}
	list, _, err := s.ListRecords(ctx, &store.ListRecords{Tenant: tenant, KeysOnly: true, Limit: 1000, MaxBytes: maxBytes})
	return errors.Join(err, checkList(list, want))
}

// read reads a conversation and its records from a store, and reports whether a turn runs on it.
func read(ctx context.Context, s *boltstore.Store, id string) (c conversation, running bool, err error) {
	ofTenant, err := getRecords(ctx, s, &store.GetRecords{Tenant: tenant, Keys: []string{id}, MaxBytes: maxBytes})
	if err != nil {
		return conversation{}, false, err
	}
	snapshot, err := s.Read(ctx, &store.Read{Tenant: tenant, ConversationID: id, Newest: -1})
	if errors.Is(err, store.ErrNotFound) {
		return conversation{tenantRecord: recordOf(ofTenant)}, false, nil
	}
	if err != nil {
		return conversation{}, false, err
	}
	messages, err := snapshot.Messages.Messages()
	if err != nil {
		return conversation{}, false, err
	}
	own, err := getRecords(ctx, s, &store.GetRecords{
		Tenant: tenant, ConversationID: id, Keys: []string{recordKey}, MaxBytes: maxBytes,
	})
	c = conversationOf(snapshot.Conversation, messages)
	c.record, c.tenantRecord = recordOf(own), recordOf(ofTenant)
	return c, snapshot.Conversation.GetActiveTurnId() != "", err
}

// getRecords returns the decoded records of [store.Store.GetRecords].
func getRecords(ctx context.Context, s store.Store, g *store.GetRecords) ([]*parleyv1.Record, error) {
	found, _, err := s.GetRecords(ctx, g)
	if err != nil {
		return nil, err
	}
	return found.Records()
}
