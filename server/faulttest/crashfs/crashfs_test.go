package crashfs

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// letters returns one sector for each letter, filled with the letter.
func letters(text string) []byte {
	var data []byte
	for _, letter := range []byte(text) {
		data = append(data, bytes.Repeat([]byte{letter}, sector)...)
	}
	return data
}

// write returns a write of such sectors at a sector number.
func write(at int64, text string) operation { return operation{at: at * sector, data: letters(text)} }

// images draws many images of a crash. It returns each different one once, as letters, sorted.
func images(t *testing.T, c *Crash, loss Loss) []string {
	t.Helper()
	random, path := rand.New(rand.NewPCG(1, 1)), filepath.Join(t.TempDir(), "image")
	var all []string
	for range 500 {
		if err := c.WriteImage(path, loss, random); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		os.Remove(path)
		var text []byte
		for part := range slices.Chunk(data, sector) {
			if !bytes.Equal(part, bytes.Repeat(part[:1], sector)) {
				t.Fatalf("loss %s: image has a torn sector", loss)
			}
			text = append(text, max(part[0], '.'))
		}
		all = append(all, string(text))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func TestImages(t *testing.T) {
	overlapping := []operation{write(0, "xy"), write(1, "z")}
	growing := []operation{{resize: true, at: 4 * sector}, write(3, "x")}
	for _, test := range []struct {
		unsynced []operation
		loss     Loss
		want     []string
	}{
		{overlapping, All, []string{"abc"}},
		{overlapping, None, []string{"xzc"}},
		{overlapping, Newest, []string{"abc", "xyc", "xzc"}},
		{overlapping, Some, []string{"abc", "azc", "xyc", "xzc"}},
		{overlapping, Reordered, []string{"abc", "azc", "xyc", "xzc"}},
		{overlapping, Torn, []string{"abc", "ayc", "azc", "xbc", "xyc", "xzc"}},
		{[]operation{write(0, "x"), write(0, "y")}, Newest, []string{"abc", "xbc", "ybc"}},
		{[]operation{write(0, "xy"), write(0, "zz")}, Some, []string{"abc", "xyc", "zzc"}},
		{
			[]operation{write(0, "xy"), write(0, "zz")},
			Torn,
			[]string{"abc", "ayc", "azc", "xbc", "xyc", "xzc", "zbc", "zyc", "zzc"},
		},
		{growing, All, []string{"abc"}},
		{growing, Newest, []string{"abc", "abc.", "abcx"}},
		{[]operation{{resize: true, at: sector}}, Some, []string{"a", "abc"}},
	} {
		c := &Crash{synced: letters("abc"), unsynced: test.unsynced}
		if got := images(t, c, test.loss); !slices.Equal(got, test.want) {
			t.Errorf("images of %d writes with loss %s = %q, want %q", len(test.unsynced), test.loss, got, test.want)
		}
	}
}

// TestSectors checks that a write is split at the sectors of the disk.
func TestSectors(t *testing.T) {
	parts := sectors([]operation{{at: sector - 1, data: make([]byte, sector+2)}})
	var lengths []int
	for _, part := range parts {
		lengths = append(lengths, len(part.data))
	}
	if !slices.Equal(lengths, []int{1, sector, 1}) || parts[2].at != 2*sector {
		t.Errorf("sectors() = parts of %d bytes, the last one at %d; want 1, %d and 1 bytes", lengths, parts[2].at, sector)
	}
}

func TestMount(t *testing.T) {
	dir := t.TempDir()
	fs, err := Mount(dir)
	if err != nil {
		t.Skipf("SKIPPED: machine does not allow FUSE: %v", err)
	}
	defer func() {
		if err := fs.Unmount(); err != nil {
			t.Error(err)
		}
	}()
	path := filepath.Join(dir, "file")
	f, err := os.Create(path + ".new")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	put := func(at int64, text string) {
		t.Helper()
		_, err := f.WriteAt(letters(text), at*sector)
		do(err)
	}
	put(0, "abc")
	do(f.Sync())
	do(os.Rename(path+".new", path))
	from := fs.Position()
	put(1, "x")
	put(4, "y")
	do(f.Sync())
	do(f.Truncate(2 * sector))
	fs.Lie()
	do(f.Sync())

	var got []string
	for c := range fs.Crashes("file", from) {
		got = append(got, images(t, c, All)[0]+" "+images(t, c, None)[0])
	}
	if want := []string{"abc axc", "abc axc.y", "axc.y ax"}; !slices.Equal(got, want) {
		t.Errorf("images of all crashes = %q, want %q", got, want)
	}
	if data, err := os.ReadFile(path); err != nil || !bytes.Equal(data, letters("ax")) {
		t.Errorf("ReadFile = %d bytes, %v; want %d bytes", len(data), err, 2*sector)
	}
	do(f.Close())
}
