package faulttest

import (
	"fmt"
	"testing"

	"github.com/parleyhq/parley/server/faulttest/crashfs"
)

// TestTornWrites checks that a crash loses no acknowledged write, whatever part of the unsynced writes
// is on the disk: all, some, reordered or torn.
func TestTornWrites(t *testing.T) {
	for name, journal := range map[string]string{"without a journal": noJournal, "with a journal": smallJournal} {
		t.Run(name, func(t *testing.T) {
			r := record(t, nil, false, life{journal, rounds(400, 4000)})
			points, images := rounds(5, 200), rounds(10, 30)
			for c := range r.sample(points) {
				for i := range images {
					if err := r.check(t, c, lossOf(i), 0, i < images/2 || journal == noJournal); err != nil {
						t.Fatalf("crash at %d, loss of unsynced writes %q: %v", c.Position, lossOf(i), err)
					}
					counts.add(t, "images, loss of unsynced writes: "+string(lossOf(i)), 1)
				}
				counts.add(t, "crash points", 1)
				counts.add(t, "unsynced writes at them", c.Unsynced())
				if c.Resized() {
					counts.add(t, "crash points at which a file grew", 1)
				}
			}
		})
	}
}

// TestTornWritesWithLyingSync is the control: if syncs do nothing, crashes lose data, and the check
// detects it.
func TestTornWritesWithLyingSync(t *testing.T) {
	r := record(t, nil, true, life{noJournal, 100})
	const points, images = 5, 10
	lost := 0
	for c := range r.sample(points) {
		for i := range images {
			if r.check(t, c, lossOf(i), 0, true) != nil {
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

// TestCrashEverywhere checks a crash after every write and every change of a directory: of the journal, its
// segments and the file, while servers with a journal work, are killed, recover and fold.
func TestCrashEverywhere(t *testing.T) {
	for name, lives := range map[string][]life{
		"journal":               {{smallJournal, rounds(80, 400)}, {smallJournal, rounds(60, 400)}},
		"journal, then without": {{smallJournal, rounds(50, 400)}, {noJournal, 5}, {smallJournal, 20}},
	} {
		t.Run(name, func(t *testing.T) {
			r := record(t, program(smallParleyd), false, lives...)
			r.from = 0 // Also while the store was created.
			if err := r.checkEverywhere(t); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestCrashOfMany is TestCrashEverywhere with a load of 64 clients, whose steps share batches of the journal.
func TestCrashOfMany(t *testing.T) {
	r := newRecording(t, program(smallParleyd), newClients(64, 5), crashfs.Mount)
	if err := r.run(t, false, life{smallJournal, rounds(600, 4000)}); err != nil {
		t.Fatal(err)
	}
	if err := r.checkEverywhere(t); err != nil {
		t.Fatal(err)
	}
}

// TestCrashAfterCrash checks crashes everywhere in and after a recovery: from a power cut, and from a kill, after which
// nothing is lost until the power is cut, too.
func TestCrashAfterCrash(t *testing.T) {
	r := record(t, program(smallParleyd), false, life{smallJournal, rounds(80, 400)})
	for c := range r.sample(rounds(2, 30)) {
		loss := lossOf(c.Position % 6)
		if err := r.afterPowerCut(t, c, loss).recover(t); err != nil {
			t.Fatalf("after a power cut at %d with loss %q: %v", c.Position, loss, err)
		}
	}
	// The only unsynced write is a batch of the journal or the end of a transaction.
	unsyncedEnd := func(c *crashfs.Crash) (rare bool, weight int) {
		if c.Unsynced() == 1 {
			weight = 1
		}
		return c.Renamed(), weight
	}
	for c := range r.sampleOf(rounds(8, 80), unsyncedEnd) {
		if err := r.afterKill(t, c).recover(t); err != nil {
			t.Fatalf("after a kill at %d: %v", c.Position, err)
		}
	}
}

// recover starts a server, lets the clients make a few steps and checks crashes everywhere.
func (r *recording) recover(t *testing.T) error {
	t.Helper()
	r.from = r.fs.Position() + 1
	if err := r.run(t, false, life{smallJournal, 5}); err != nil {
		return err
	}
	counts.add(t, "recoveries with crashes everywhere", 1)
	return r.checkEverywhere(t)
}

// checkEverywhere checks an image of each possible crash. The kinds of loss take turns.
func (r *recording) checkEverywhere(t *testing.T) error {
	t.Helper()
	for c := range r.fs.Crashes(r.from) {
		loss, budget := lossOf(c.Position%6), int64(c.Position/6%2*smallBudget)
		if err := r.check(t, c, loss, budget, false); err != nil {
			return fmt.Errorf("crash at %d, loss of unsynced writes %q: %w", c.Position, loss, err)
		}
		counts.add(t, "images", 1)
		if c.Renamed() {
			counts.add(t, "images after a change of a directory", 1)
		}
	}
	return nil
}
