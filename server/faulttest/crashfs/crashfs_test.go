package crashfs

import (
	"bytes"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// images draws many images of a file in a crash. It returns each different one once, as letters, sorted.
func images(t *testing.T, c *content, loss Loss) []string {
	t.Helper()
	random, path := rand.New(rand.NewPCG(1, 1)), filepath.Join(t.TempDir(), "image")
	var all []string
	for range 500 {
		if err := c.writeImage(path, loss, random); err != nil {
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
		c := &content{synced: letters("abc"), used: 3 * sector, unsynced: test.unsynced}
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

// tree returns the names in the only image of a crash with a loss, and the contents of files as letters.
func tree(t *testing.T, c *Crash, loss Loss) string {
	t.Helper()
	dir := t.TempDir()
	if err := c.WriteImage(dir, loss, nil); err != nil {
		t.Fatal(err)
	}
	var names []string
	if err := fs.WalkDir(os.DirFS(dir), ".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil || path == ".":
			return err
		case e.IsDir():
			names = append(names, path)
			return nil
		}
		data, err := os.ReadFile(filepath.Join(dir, path))
		var text []byte
		for part := range slices.Chunk(data, sector) {
			text = append(text, max(part[0], '.'))
		}
		names = append(names, path+"="+string(text))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, " ")
}

func TestMount(t *testing.T) {
	dir := t.TempDir()
	mounted, err := Mount(dir)
	if err != nil {
		t.Skipf("SKIPPED: machine does not allow FUSE: %v", err)
	}
	defer func() {
		if err := mounted.Unmount(); err != nil {
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
	syncDir := func(path string) {
		t.Helper()
		d, err := os.Open(path)
		do(err)
		do(d.Sync())
		do(d.Close())
	}
	syncDir(dir)
	from := mounted.Position() + 1
	do(os.Rename(path+".new", path))
	syncDir(dir)
	put(1, "x")
	put(4, "y")
	do(f.Sync())
	do(f.Truncate(2 * sector))
	do(os.Mkdir(filepath.Join(dir, "dir"), 0o700))
	syncDir(dir)
	empty, err := os.Create(filepath.Join(dir, "dir", "a"))
	do(err)
	do(empty.Close())
	do(os.Rename(filepath.Join(dir, "dir", "a"), filepath.Join(dir, "dir", "b")))
	mounted.Lie()
	do(f.Sync())
	do(os.RemoveAll(filepath.Join(dir, "dir")))

	var got []string
	for c := range mounted.Crashes(from) {
		got = append(got, tree(t, c, All)+"|"+tree(t, c, None))
	}
	if want := []string{
		"file.new=abc|file=abc", "file=abc|file=axc", "file=abc|file=axc.y", "file=axc.y|file=ax",
		"file=axc.y|dir file=ax", "dir file=axc.y|dir file=ax", "dir file=axc.y|dir dir/a= file=ax",
		"dir file=axc.y|dir dir/b= file=ax", "dir file=axc.y|dir file=ax",
		"dir file=axc.y|file=ax",
	}; !slices.Equal(got, want) {
		t.Errorf("images of all crashes = %q, want %q", got, want)
	}
	if data, err := os.ReadFile(path); err != nil || !bytes.Equal(data, letters("ax")) {
		t.Errorf("ReadFile = %d bytes, %v; want %d bytes", len(data), err, 2*sector)
	}
	do(f.Close())
}
