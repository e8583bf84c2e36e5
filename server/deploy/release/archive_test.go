package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestArchives: an archive contains the files in order, with fixed owner, mode and time, and is the same bytes
// whatever the order of the files, the time zone and the directory.
func TestArchives(t *testing.T) {
	date := time.Date(2026, 11, 23, 5, 0, 0, 0, time.UTC)
	files := []file{{"b", 0o755, []byte("program")}, {"a/c", 0o644, []byte("text")}}
	want := []string{"top/a/c 0644 2026-11-23 05:00 text", "top/b 0755 2026-11-23 05:00 program"}
	for name, kind := range map[string]struct {
		write func(io.Writer, []file, time.Time) error
		read  func([]byte) ([]string, error)
	}{
		"tar": {writeTar, readTar}, "zip": {writeZip, readZip},
	} {
		var archives [2][]byte
		for i := range archives {
			path := filepath.Join(t.TempDir(), "archive")
			zone := time.FixedZone("", i*3600)
			if err := writeArchive(path, kind.write, "top", files, date.In(zone)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			archives[i] = data
			slices.Reverse(files)
		}
		if !bytes.Equal(archives[0], archives[1]) {
			t.Errorf("%s: two archives of the same files differ", name)
		}
		got, err := kind.read(archives[0])
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v, files (-want +got):\n%s", name, err, diff)
		}
	}
}

func describe(name string, mode fs.FileMode, date time.Time, r io.Reader) string {
	data, err := io.ReadAll(r)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s %#o %s %s", name, mode.Perm(), date.UTC().Format("2006-01-02 15:04"), data)
}

func readTar(data []byte) (files []string, err error) {
	compressed, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	archive := tar.NewReader(compressed)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		} else if err != nil {
			return nil, err
		}
		if header.Uid != 0 || header.Gid != 0 || header.Uname != "root" || header.Gname != "root" {
			return nil, fmt.Errorf("%s belongs to %s:%s, want root", header.Name, header.Uname, header.Gname)
		}
		files = append(files, describe(header.Name, header.FileInfo().Mode(), header.ModTime, archive))
	}
}

func readZip(data []byte) (files []string, err error) {
	archive, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, err
	}
	for _, f := range archive.File {
		r, err := f.Open()
		if err != nil {
			return nil, err
		}
		files = append(files, describe(f.Name, f.Mode(), f.Modified, r))
	}
	return files, nil
}

// TestChecksums compares with what sha256sum prints.
func TestChecksums(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"b": "text\n", "a": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeChecksums(dir); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, checksumsName))
	const want = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  a\n" +
		"b9e68e1bea3e5b19ca6b2f98b73a54b73daafaa250484902e09982e07a12e733  b\n"
	if diff := cmp.Diff(want, string(got)); err != nil || diff != "" {
		t.Errorf("%v, checksums (-want +got):\n%s", err, diff)
	}
}

// TestCompress: the result is complete, and has neither a name nor a time.
func TestCompress(t *testing.T) {
	compressed, err := compress([]byte("page"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || string(got) != "page" || r.Name != "" || !r.ModTime.IsZero() {
		t.Errorf("compress() contains %q, %v, name %q, time %v, want only the text", got, err, r.Name, r.ModTime)
	}
}

func TestPackageVersion(t *testing.T) {
	const commit = "1a537e4f00"
	date := time.Date(2026, 11, 23, 5, 0, 0, 0, time.UTC)
	for version, want := range map[string]string{
		"v1.2.3":                  "1.2.3",
		"1.2.3":                   "1.2.3",
		"v1.2.3-dirty":            "1.2.3+dirty",
		"v1.2.3-rc.1":             "1.2.3~rc.1",
		"v1.2.3-4-g1a537e4":       "1.2.3+4.g1a537e4",
		"v1.2.3-rc.1-4-g1a537e4":  "1.2.3~rc.1+4.g1a537e4",
		"v1.2.3-4-g1a537e4-dirty": "1.2.3+4.g1a537e4+dirty",
		"1a537e4":                 "0~20261123.050000.1a537e4",
		"1a537e4-dirty":           "0~20261123.050000.1a537e4.dirty",
		"devel":                   "0~20261123.050000.1a537e4.devel",
	} {
		if got := packageVersion(version, commit, date); got != want {
			t.Errorf("packageVersion(%q) = %q, want %q", version, got, want)
		}
	}
}

// TestParse: a release needs a version, a commit and a date, and writes nothing without them.
func TestParse(t *testing.T) {
	const version, commit, date = "-version=v1.2.3", "-commit=1a537e4", "-date=2026-11-23T05:00:00Z"
	r, err := parse([]string{version, commit, "-date=2026-11-23T06:00:00+01:00", "--", "-trimpath"})
	if err != nil || !r.date.Equal(time.Date(2026, 11, 23, 5, 0, 0, 0, time.UTC)) || r.dist != "dist" ||
		!slices.Equal(r.buildFlags, []string{"-trimpath"}) {
		t.Errorf("parse() = %+v, %v, want the values of the flags", r, err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{commit, date}, `-version "": use letters, digits, dots, plus and minus signs, as in v1.2.3`},
		{[]string{"-version=../x", commit, date}, `-version "../x": use letters, digits, dots, plus and minus signs, as in v1.2.3`},
		{[]string{version, date}, `-commit "": use the hash of a commit; build a release in a clone of the repository`},
		{[]string{version, commit, "-date=today"}, `-date "today": use a time such as 2026-11-23T05:00:00Z`},
		{[]string{version, commit, "-date=1970-01-01T00:00:00Z"}, `-date "1970-01-01T00:00:00Z": use a time after 1980`},
	} {
		if _, err := parse(c.args); err == nil || err.Error() != c.want {
			t.Errorf("parse(%q) = %v, want %s", c.args, err, c.want)
		}
	}
}

// TestReproducible: a bill of materials keeps the modules with their checksums, but not those of the tool.
func TestReproducible(t *testing.T) {
	got, err := reproducible([]byte(`{"metadata": {"tools": [{"name": "tool", "hashes": [1]}]},` +
		` "components": [{"name": "m", "hashes": [2]}]}`))
	const want = `{
  "components": [
    {
      "hashes": [
        2
      ],
      "name": "m"
    }
  ],
  "metadata": {
    "tools": [
      {
        "name": "tool"
      }
    ]
  }
}
`
	if diff := cmp.Diff(want, string(got)); err != nil || diff != "" {
		t.Errorf("reproducible() = %v (-want +got):\n%s", err, diff)
	}
	// Another version of the tool could name itself in another place.
	for _, other := range []string{`{}`, `{"metadata": {"tools": {"components": [{"name": "tool", "hashes": [1]}]}}}`} {
		if got, err := reproducible([]byte(other)); err == nil {
			t.Errorf("reproducible(%s) = %s, want an error", other, got)
		}
	}
}
