package interactionlog

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
)

// testDisk is a file system that can lose its power.
type testDisk struct {
	t           *testing.T
	image, path string
}

func newDisk(t *testing.T) *testDisk {
	t.Helper()
	dir := t.TempDir()
	d := &testDisk{t: t, image: filepath.Join(dir, "image"), path: filepath.Join(dir, "disk")}
	must(t, os.WriteFile(d.image, nil, 0o600), os.Truncate(d.image, 64<<20), os.Mkdir(d.path, 0o700))
	if out, err := exec.CommandContext(t.Context(), "mkfs.ext4", "-q", d.image).CombinedOutput(); err != nil {
		t.Skipf("cannot create a file system: %v\n%s", err, out)
	}
	if err := d.mount(); err != nil {
		t.Skipf("only root can mount a file system: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(d.path, syscall.MNT_DETACH) })
	return d
}

func (d *testDisk) mount() error {
	return exec.CommandContext(d.t.Context(), "mount", "-o", "loop", d.image, d.path).Run()
}

// cutPower stops all writing at once: data that is not on the disk yet is lost.
func (d *testDisk) cutPower() {
	d.t.Helper()
	const shutdown, withoutFlush = 0x8004587d, 2
	f, err := os.Open(d.path)
	must(d.t, err)
	defer f.Close()
	how := uint32(withoutFlush)
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), shutdown, uintptr(unsafe.Pointer(&how))); errno != 0 {
		d.t.Fatal(errno)
	}
}

// TestPowerCutAfterCompaction checks that an exclusion survives a power cut after its file was replaced, on
// a file system that may write a file after its new name.
func TestPowerCutAfterCompaction(t *testing.T) {
	d := newDisk(t)
	must(t, syscall.Mount("", d.path, "", syscall.MS_REMOUNT, "noauto_da_alloc"))
	s := newTestService(t, filepath.Join(d.path, "interactions"))
	s.add("acme", "c1", "one")
	s.log.erase("c1", 1)
	s.commitImport("a", compactInterval)
	before, err := os.Stat(s.log.writer.checkpointPath())
	must(t, err, s.log.compact(), s.log.sync())
	if after, err := os.Stat(s.log.writer.checkpointPath()); err != nil || os.SameFile(before, after) {
		t.Errorf("checkpoint was not replaced, %v", err)
	}
	d.cutPower()
	s.log.crash()
	must(t, syscall.Unmount(d.path, 0), d.mount())
	s.open()
	must(t, s.catchUp())
	s.wantEntries()
	found, err := s.log.writer.exclusions()
	must(t, err)
	if _, ok := found[exclusion{Tenant: "acme", ID: "c1"}]; !ok {
		t.Error("the exclusion of the erased conversation is missing")
	}
	must(t, s.log.Close())
}

// TestPowerCut cuts the power of a disk on which a process writes, several times. It checks that the log has
// all that the store retains when the next process has caught up.
func TestPowerCut(t *testing.T) {
	d := newDisk(t)
	missing, rounds := 0, 4
	if testing.Short() {
		rounds = 2 // one of each kind
	}
	for round := range rounds {
		var first time.Time // of the child's checkpoint
		acknowledged := killAfter(t, d.path, 100+100*round, func() bool {
			// In every other round, wait until something was made durable.
			path := filepath.Join(d.path, "interactions", checkpointName)
			c, _, err := readCheckpoint(path)
			must(t, err)
			if first.IsZero() {
				first = c.CompleteUntil
			}
			if round%2 == 0 && c.CompleteUntil.Equal(first) {
				return false
			}
			must(t, dayfile.SyncFile(path)) // The checkpoint may be durable before everything else.
			d.cutPower()
			return true
		})
		must(t, syscall.Unmount(d.path, 0), d.mount())
		left := checkLog(t, d.path, round+1)
		for id, n := range checkCatchUp(t, d.path, round+1, acknowledged) {
			missing += n - left[id]
		}
	}
	if missing == 0 {
		t.Error("no power cut lost an entry, so that the test shows nothing")
	}
	t.Logf("%d entries were added", missing)
}
