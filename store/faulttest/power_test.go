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

// Whenever the power goes, nothing that was acknowledged is lost.
func TestPowerCut(t *testing.T) {
	d := newDisk(t)
	clients, random := newClients(8, 2), rand.New(rand.NewPCG(2, 2))
	s := start(t, d.dataDir())
	for round := range rounds(12, 200) {
		if err := cutUnderLoad(t, d, s, clients, random.IntN(60), time.Duration(random.IntN(int(5*time.Millisecond)))); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		s = start(t, d.dataDir())
		if err := recoverAll(t, s, clients); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		counts.add(t, "power cuts", 1)
	}
	s.stop(t)
}

// The control: where syncs do nothing but say that they did, power cuts lose data, and it
// shows.
func TestPowerCutWithLyingSync(t *testing.T) {
	need(t, "strace", "strace")
	d := newDisk(t)
	const total = 3
	lost := 0
	for round := range total {
		dataDir := filepath.Join(d.dir, fmt.Sprint("round", round))
		start(t, dataDir).stop(t) // The file is there.
		s := launch(t, dataDir, []string{
			"strace", "-f", "-o", os.DevNull, "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:retval=0",
		})
		if err := s.serves(t); err != nil {
			t.Fatal(err)
		}
		clients := newClients(8, uint64(round))
		if err := cutUnderLoad(t, d, s, clients, 100, 0); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		s = launch(t, dataDir, nil)
		err := s.serves(t)
		if err == nil {
			err = recoverAll(t, s, clients)
		}
		s.kill()
		if err != nil {
			lost++
			first, _, _ := strings.Cut(err.Error(), "\n")
			t.Logf("round %d, as it must be: %s", round, first)
		}
	}
	counts.add(t, "control: power cuts", total)
	counts.add(t, "control: power cuts that lost data", lost)
	if lost == 0 {
		t.Error("syncs that do nothing lose nothing: the test of power cuts proves nothing")
	}
}

// cutUnderLoad cuts the power a moment after so many acknowledgements, while clients are at
// work, and brings it back.
func cutUnderLoad(t *testing.T, d *disk, s *server, clients []*client, awaited int, moment time.Duration) error {
	t.Helper()
	work := begin(t, s, clients)
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

// disk is an ext4 file system in a file, whose power can be cut.
type disk struct{ image, dir string }

// newDisk makes a disk, which lasts until the end of the test.
func newDisk(t *testing.T) *disk {
	t.Helper()
	needRoot(t)
	need(t, "mkfs.ext4", "e2fsprogs")
	need(t, "mount", "mount")
	const size = 256 << 20
	d := &disk{image: filepath.Join(t.TempDir(), "disk"), dir: t.TempDir()}
	if err := errors.Join(os.WriteFile(d.image, nil, 0o600), os.Truncate(d.image, size)); err != nil {
		t.Fatal(err)
	}
	if err := command(t, "mkfs.ext4", "-q", "-F", d.image); err != nil {
		t.Fatal(err)
	}
	if err := d.mount(t); err != nil {
		lacks(t, "this machine gives no loop device: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(d.dir, 0); err != nil && !errors.Is(err, unix.EINVAL) { // It is not mounted.
			t.Error("unmount:", err)
		}
	})
	return d
}

// dataDir is where a server keeps its data on the disk.
func (d *disk) dataDir() string { return filepath.Join(d.dir, "data") }

func (d *disk) mount(t *testing.T) error {
	t.Helper()
	return command(t, "mount", "-t", "ext4", "-o", "loop", d.image, d.dir)
}

// cut stops the file system at once: nothing that was not synced will be written any more.
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

// restore has the file system come up again as after a power cut. Nobody may use it meanwhile.
func (d *disk) restore(t *testing.T) error {
	t.Helper()
	if err := unix.Unmount(d.dir, 0); err != nil {
		return fmt.Errorf("unmount: %w", err)
	}
	return d.mount(t)
}

// command runs a program; the error says what it has written.
func command(t *testing.T, name string, args ...string) error {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w:\n%s", name, err, quote(string(out)))
	}
	return nil
}
