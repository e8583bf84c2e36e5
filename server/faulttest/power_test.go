package faulttest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestPowerCut checks that a power cut loses no acknowledged write.
func TestPowerCut(t *testing.T) {
	for name, journal := range map[string]string{"without a journal": noJournal, "with a journal": smallJournal} {
		t.Run(name, func(t *testing.T) { cutOften(t, journal) })
	}
}

func cutOften(t *testing.T, journal string) {
	t.Helper()
	d := newDisk(t)
	clients, random := newClients(64, 2), rand.New(rand.NewPCG(2, 2))
	flags := []string{journal, "--journal-age=1s"}
	s := start(t, d.dataDir(), flags...)
	for round := range rounds(12, 200) {
		awaited, moment := random.IntN(200), time.Duration(random.IntN(int(5*time.Millisecond)))
		if err := cutUnderLoad(t, d, s, clients, awaited, moment); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if round%4 == 3 {
			killWhileStarting(t, d.dataDir(), time.Duration(random.IntN(int(startTime))), flags)
			if err := errors.Join(d.cut(), d.restore(t)); err != nil {
				t.Fatal(err)
			}
			counts.add(t, "power cuts after a kill", 1)
		}
		s = start(t, d.dataDir(), flags...)
		if err := verifyAll(t, s, clients); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		counts.add(t, "power cuts", 1)
	}
	s.stop(t)
}

// TestPowerCutWithLyingSync is the control: if syncs do nothing, power cuts lose data, and the check
// detects it.
func TestPowerCutWithLyingSync(t *testing.T) {
	requireProgram(t, "strace", "strace")
	d := newDisk(t)
	const total = 3
	lost := 0
	for round := range total {
		dataDir := filepath.Join(d.dir, fmt.Sprint("round", round))
		start(t, dataDir).stop(t) // It creates the store.
		s := launch(t, dataDir, []string{
			"strace", "-f", "-o", os.DevNull, "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:retval=0",
		})
		if err := s.awaitServing(); err != nil {
			t.Fatal(err)
		}
		clients := newClients(8, uint64(round))
		if err := cutUnderLoad(t, d, s, clients, 100, 0); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		s = launch(t, dataDir, nil)
		err := s.awaitServing()
		if err == nil {
			err = verifyAll(t, s, clients)
		}
		s.kill()
		if err != nil {
			lost++
			first, _, _ := strings.Cut(err.Error(), "\n")
			t.Logf("round %d, detected as expected: %s", round, first)
		}
	}
	counts.add(t, "control: power cuts", total)
	counts.add(t, "control: power cuts that lost data", lost)
	if lost == 0 {
		t.Error("no loss was detected with syncs that do nothing; the test of power cuts proves nothing")
	}
}

// cutUnderLoad cuts the power while clients make steps, at the time moment after a number of
// acknowledgements, and restores it.
func cutUnderLoad(t *testing.T, d *disk, s *server, clients []*client, awaited int, moment time.Duration) error {
	t.Helper()
	work := startLoad(t, s, clients)
	if err := work.await(awaited, moment); err != nil {
		return err
	}
	if err := d.cut(); err != nil {
		return err
	}
	s.kill()
	counts.add(t, "steps acknowledged", awaited+work.end())
	return d.restore(t)
}

// disk is an ext4 file system in a file, with a simulated power supply.
type disk struct{ image, dir string }

// newDisk creates a disk and mounts it until the end of the test.
func newDisk(t *testing.T) *disk {
	t.Helper()
	requireRoot(t)
	requireProgram(t, "mkfs.ext4", "e2fsprogs")
	requireProgram(t, "mount", "mount")
	const size = 256 << 20
	d := &disk{image: filepath.Join(t.TempDir(), "disk"), dir: t.TempDir()}
	if err := errors.Join(os.WriteFile(d.image, nil, 0o600), os.Truncate(d.image, size)); err != nil {
		t.Fatal(err)
	}
	if err := command(t, "mkfs.ext4", "-q", "-F", d.image); err != nil {
		t.Fatal(err)
	}
	if err := d.mount(t); err != nil {
		skipTest(t, "machine has no loop device: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(d.dir, 0); err != nil && !errors.Is(err, unix.EINVAL) { // It is not mounted.
			t.Error("unmount:", err)
		}
	})
	return d
}

// dataDir returns the data directory of a server on the disk.
func (d *disk) dataDir() string { return filepath.Join(d.dir, "data") }

func (d *disk) mount(t *testing.T) error {
	t.Helper()
	return command(t, "mount", "-t", "ext4", "-o", "loop", d.image, d.dir)
}

// cut shuts the file system down at once: nothing unsynced is written after it.
func (d *disk) cut() error {
	const (
		shutdown   = 0x8004587d // EXT4_IOC_SHUTDOWN
		noLogFlush = 2          // EXT4_GOING_FLAGS_NOLOGFLUSH
	)
	dir, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.IoctlSetPointerInt(int(dir.Fd()), shutdown, noLogFlush), dir.Close())
}

// restore mounts the file system again, as after a power cut. No process may use it during the call.
func (d *disk) restore(t *testing.T) error {
	t.Helper()
	if err := unix.Unmount(d.dir, 0); err != nil {
		return fmt.Errorf("unmount: %w", err)
	}
	return d.mount(t)
}

// command runs a program. The error contains its output.
func command(t *testing.T, name string, args ...string) error {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w:\n%s", name, err, quote(string(out)))
	}
	return nil
}
