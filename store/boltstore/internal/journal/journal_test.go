package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// small makes segments small, so that few operations fill them.
var small = Options{ID: ID{1, 2, 3}, MinSegment: 1 << 10, MaxSegment: 4 << 10}

// open opens a journal and returns what it replays, each operation as "index:bytes".
func open(t *testing.T, dir string, o Options) (*Journal, []string) {
	t.Helper()
	j, replayed, err := tryOpen(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j, replayed
}

func tryOpen(dir string, o Options) (*Journal, []string, error) {
	var replayed []string
	j, err := Open(dir, o, func(op Operation) error {
		replayed = append(replayed, fmt.Sprintf("%d:%s", op.Index, op.Bytes))
		return nil
	})
	return j, replayed, err
}

// write appends batches of operations. It returns them as open does.
func write(t *testing.T, j *Journal, batches ...[]string) (written []string) {
	t.Helper()
	for _, b := range batches {
		first, operations := j.Next(), make([][]byte, len(b))
		for i, o := range b {
			operations[i] = []byte(o)
			written = append(written, fmt.Sprintf("%d:%s", first+uint64(i), o))
		}
		places, err := j.Append(first, operations)
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range places {
			if got, err := j.Read(p, nil); err != nil || string(got) != b[i] || p.Length() != len(b[i]) {
				t.Fatalf("read %q, %v, want %q", got, err, b[i])
			}
		}
	}
	return written
}

func checkReplayed(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("replayed %d operations, want %d\ngot  %.200q\nwant %.200q", len(got), len(want), got, want)
	}
}

// filler returns n batches of two operations.
func filler(n int) (batches [][]string) {
	for i := range n {
		batches = append(batches, []string{fmt.Sprintf("first of %d", i), string(bytes.Repeat([]byte{byte(i)}, 100))})
	}
	return batches
}

// TestReplay checks that a restart returns every operation after the given index, over several segments, and that the
// journal continues there.
func TestReplay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, replayed := open(t, dir, small)
	checkReplayed(t, replayed, nil)
	written := write(t, j, filler(40)...)
	for range 3 {
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		j, replayed = open(t, dir, small)
		checkReplayed(t, replayed, written)
		written = append(written, write(t, j, filler(3)...)...)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	for _, after := range []uint64{1, 7, 50, uint64(len(written))} {
		o := small
		o.After = after
		j, replayed = open(t, dir, o)
		checkReplayed(t, replayed, written[after:])
		if j.Next() != uint64(len(written))+1 {
			t.Fatalf("Next = %d, want %d", j.Next(), len(written)+1)
		}
	}
	if j.Anchor() == 0 || j.Anchor() > uint64(len(written)) {
		t.Fatalf("anchor %d", j.Anchor())
	}
}

// TestRelease checks that released segments are written again, that nothing else is overwritten, and that the journal
// then needs no more space.
func TestRelease(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, _ := open(t, dir, small)
	var written []string
	var size int64
	for round := range 50 {
		written = append(written, write(t, j, filler(20)...)...)
		through := j.Next() - 1 - uint64(rand.N(30))
		j.Release(through)
		if round == 20 {
			size = j.Bytes()
		}
		if round > 20 && j.Bytes() > 2*size {
			t.Fatalf("the journal grew from %d to %d bytes", size, j.Bytes())
		}
		if round%10 == 0 {
			if err := j.Close(); err != nil { // Waits for the segment in creation.
				t.Fatal(err)
			}
			if got, want := j.Bytes(), sizeOfFiles(t, dir); got != want {
				t.Errorf("Bytes = %d, want the size of the files, %d", got, want)
			}
			o := small
			o.After = through
			var replayed []string
			j, replayed = open(t, dir, o)
			checkReplayed(t, replayed, written[through:])
		}
	}
}

// sizeOfFiles returns the sum of the sizes of the files in a directory.
func sizeOfFiles(t *testing.T, dir string) (sum int64) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		sum += info.Size()
	}
	return sum
}

// TestPin checks that a pinned segment is not written again before all its readers are done.
func TestPin(t *testing.T) {
	t.Parallel()
	j, _ := open(t, t.TempDir(), small)
	places, err := j.Append(0, [][]byte{[]byte("first")})
	if err != nil {
		t.Fatal(err)
	}
	unpin := j.Pin()
	for range 20 {
		later := j.Pin()
		write(t, j, filler(20)...)
		j.Release(j.Next() - 1)
		later()
	}
	if got, err := j.Read(places[0], nil); err != nil || string(got) != "first" {
		t.Fatalf("read %q, %v", got, err)
	}
	before := j.Bytes()
	unpin()
	write(t, j, filler(20)...)
	if j.Bytes() > before+small.MaxSegment { // One segment may have been in creation.
		t.Fatalf("the journal grew from %d to %d bytes though segments are unused", before, j.Bytes())
	}
}

// TestTornBatch checks that a last batch of which only a part is on disk is dropped, and that the journal continues in
// its place.
func TestTornBatch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, _ := open(t, dir, Options{ID: small.ID, MinSegment: 64 << 10})
	written := write(t, j, filler(3)...)
	at, path := j.at, filepath.Join(dir, nameOf(j.active.number))
	last := write(t, j, []string{"last", string(bytes.Repeat([]byte("x"), 3000))})
	end := j.at
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range 200 {
		torn := bytes.Clone(whole)
		switch { // A batch is written in any order of its sectors.
		case cut < 100:
			clear(torn[at+rand.N(end-at) : end])
		default:
			sector := at + rand.N((end-at-1)/512+1)*512
			clear(torn[sector:min(sector+512, end)])
			if bytes.Equal(torn, whole) {
				continue
			}
		}
		if err := os.WriteFile(path, torn, 0o600); err != nil {
			t.Fatal(err)
		}
		j, replayed := open(t, dir, small)
		if bytes.Equal(torn[at:end], whole[at:end]) {
			checkReplayed(t, replayed, append(slices.Clone(written), last...)) // Only padding was cut off.
		} else {
			checkReplayed(t, replayed, written)
		}
		again := slices.Concat(replayed, write(t, j, []string{"shorter"}))
		_ = j.Close()
		j, replayed = open(t, dir, small)
		checkReplayed(t, replayed, again)
		_ = j.Close()
	}
}

// damages are ways to damage a journal in a directory.
var damages = map[string]func(t *testing.T, dir string, o *Options){
	"batch before a valid one":    flipIn(3, headerSize+3),
	"header before a valid batch": flipIn(3, 44),
	"batch in the last segment": func(t *testing.T, dir string, _ *Options) {
		t.Helper()
		flip(t, newestSegment(t, dir), headerSize+3)
	},
	"missing segment":       removeFrom(3, 3),
	"missing first segment": removeFrom(1, 1),
	"missing last segment": func(t *testing.T, dir string, o *Options) {
		t.Helper()
		o.Through = 80
		if err := os.Remove(newestSegment(t, dir)); err != nil {
			t.Fatal(err)
		}
	},
	"missing journal": func(t *testing.T, dir string, o *Options) {
		t.Helper()
		o.Through = 1
		removeFrom(1, 100)(t, dir, o)
	},
	"foreign journal": func(t *testing.T, _ string, o *Options) {
		t.Helper()
		o.ID[0]++
	},
	"empty segment": func(t *testing.T, dir string, _ *Options) {
		t.Helper()
		if err := os.Truncate(filepath.Join(dir, nameOf(3)), 0); err != nil {
			t.Fatal(err)
		}
	},
}

// TestDamage checks that each kind of damage is refused, and that the refusal changes nothing.
func TestDamage(t *testing.T) {
	t.Parallel()
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, o := t.TempDir(), small
			j, _ := open(t, dir, o)
			write(t, j, filler(40)...)
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			damage(t, dir, &o)
			before := contents(t, dir)
			if _, replayed, err := tryOpen(dir, o); !errors.Is(err, boltfile.ErrDamaged) {
				t.Fatalf("replayed %d operations, %v, want %v", len(replayed), err, boltfile.ErrDamaged)
			}
			if after := contents(t, dir); after != before {
				t.Fatal("the files have changed")
			}
		})
	}
}

// flipIn returns a damage that changes a bit of a segment.
func flipIn(number uint32, at int64) func(*testing.T, string, *Options) {
	return func(t *testing.T, dir string, _ *Options) {
		t.Helper()
		flip(t, filepath.Join(dir, nameOf(number)), at)
	}
}

// removeFrom returns a damage that removes the segments from one number to another.
func removeFrom(from, to uint32) func(*testing.T, string, *Options) {
	return func(t *testing.T, dir string, _ *Options) {
		t.Helper()
		for n := from; n <= to; n++ {
			if err := boltfile.RemoveIfExists(filepath.Join(dir, nameOf(n))); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func flip(t *testing.T, path string, at int64) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[at] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// newestSegment returns the path of the segment with the newest batch that has another one after it.
func newestSegment(t *testing.T, dir string) (path string) {
	t.Helper()
	var newest uint64
	names, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if h, ok := decodeHeader(b); ok && h.first > newest {
			newest, path = h.first, name
		}
	}
	return path
}

func contents(t *testing.T, dir string) string {
	t.Helper()
	var all []byte
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(binary.AppendUvarint(append(all, filepath.Base(name)...), uint64(len(b))), b...)
	}
	return string(all)
}

// TestUnfinishedSegment checks that what an ended process has left of a segment is removed.
func TestUnfinishedSegment(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	unfinished := filepath.Join(dir, nameOf(7)+boltfile.UnfinishedSuffix)
	if err := os.WriteFile(unfinished, []byte("rest"), 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, dir, small)
	if _, err := os.Stat(unfinished); !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
}

// TestReadDamaged checks that an operation that has changed on the disk is not returned.
func TestReadDamaged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, _ := open(t, dir, small)
	places, err := j.Append(0, [][]byte{[]byte("an operation")})
	if err != nil {
		t.Fatal(err)
	}
	flip(t, filepath.Join(dir, nameOf(1)), int64(places[0].offset)+2)
	if got, err := j.Read(places[0], nil); !errors.Is(err, boltfile.ErrDamaged) {
		t.Fatalf("read %q, %v", got, err)
	}
}

// TestLargeBatch checks that a batch that is larger than any segment gets one of its own.
func TestLargeBatch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, _ := open(t, dir, small)
	large := string(bytes.Repeat([]byte("large"), 10_000))
	written := write(t, j, []string{"small"}, []string{large, large}, []string{"small"})
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	_, replayed := open(t, dir, small)
	checkReplayed(t, replayed, written)
}

// TestNoSpace checks that a journal that may not grow refuses a batch without an effect, continues in released segments,
// and gives its unused segments back.
func TestNoSpace(t *testing.T) {
	t.Parallel()
	const most = 3 << 10
	dir, o := t.TempDir(), small
	o.MayGrow = func(size, total int64) bool { return total+size <= most }
	j, _ := open(t, dir, o)
	var err error
	for err == nil {
		_, err = j.Append(1, [][]byte{make([]byte, 100)})
	}
	if !errors.Is(err, syscall.ENOSPC) || j.Failed() || j.Bytes() > most {
		t.Fatalf("Append = %v, failed %t, the journal has %d bytes, want %v and at most %d bytes", err, j.Failed(), j.Bytes(),
			syscall.ENOSPC, most)
	}
	through := j.Next() - 1
	j.Release(through)
	j.Trim()
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Fatalf("segments %v, %v, want the active one", files, err)
	}
	written := write(t, j, []string{"again"})
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	o.After = through
	_, replayed := open(t, dir, o)
	checkReplayed(t, replayed, written)
}
