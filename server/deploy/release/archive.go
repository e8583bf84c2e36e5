package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"
)

// checksumsName is the name of the file with the checksums.
const checksumsName = "SHA256SUMS"

// file is a file of an archive.
type file struct {
	name string // with slashes
	mode fs.FileMode
	data []byte
}

// writeArchive writes files, sorted by name, below the directory top of an archive.
func writeArchive(
	name string, write func(w io.Writer, files []file, date time.Time) error, top string, files []file, date time.Time,
) error {
	sorted := make([]file, len(files))
	for i, f := range files {
		sorted[i] = file{path.Join(top, f.name), f.mode, f.data}
	}
	slices.SortFunc(sorted, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	var archive bytes.Buffer
	if err := write(&archive, sorted, date); err != nil {
		return err
	}
	return os.WriteFile(name, archive.Bytes(), 0o644) //nolint:gosec // Releases are public.
}

// writeTar writes a compressed tar archive. Owner, mode and time depend on nothing but the arguments.
func writeTar(w io.Writer, files []file, date time.Time) error {
	compressed, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(compressed)
	for _, f := range files {
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: f.name, Mode: int64(f.mode), Size: int64(len(f.data)), ModTime: date,
			Uname: "root", Gname: "root", Format: tar.FormatUSTAR,
		}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(f.data); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), compressed.Close())
}

// writeZip writes a zip archive. Mode and time depend on nothing but the arguments.
func writeZip(w io.Writer, files []file, date time.Time) error {
	archive := zip.NewWriter(w)
	for _, f := range files {
		header := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: date.UTC()}
		header.SetMode(f.mode)
		out, err := archive.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := out.Write(f.data); err != nil {
			return err
		}
	}
	return archive.Close()
}

// compress returns data as gzip -9n writes it: without a name and a time.
func compress(data []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	_, err = w.Write(data)
	err = errors.Join(err, w.Close()) // Close writes the rest.
	return out.Bytes(), err
}

// writeChecksums writes the checksums of all files of a directory, as sha256sum does.
func writeChecksums(dir string) error {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		return err
	}
	var sums bytes.Buffer
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(data), entry.Name())
	}
	return os.WriteFile(filepath.Join(dir, checksumsName), sums.Bytes(), 0o644) //nolint:gosec // Releases are public.
}
