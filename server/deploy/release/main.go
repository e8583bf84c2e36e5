// Command release builds the archives and packages of a release. It runs in the top directory of the repository:
//
//	go run ./server/deploy/release -version v1.2.3 -commit 1a537e4… -date 2026-11-23T05:00:00Z -- BUILDFLAGS
//
// BUILDFLAGS are flags of go build. Two runs on the same commit with the same version of Go write the same bytes, in
// any directory. Start at [release.run].
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	r, err := parse(os.Args[1:])
	if err == nil {
		err = r.run(ctx)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release is one run of the program.
type release struct {
	version    string    // as in v1.2.3
	commit     string    // hash of the commit
	date       time.Time // of the commit; all files have it
	dist       string    // the directory to write
	buildFlags []string  // of go build

	work string // temporary directory
	// docs are the files that all archives contain beside the programs.
	docs []file
	// pages, completions are the manual pages and the completion scripts in docs.
	pages, completions []file
}

// target is an operating system and an architecture that the programs are built for.
type target struct{ goos, goarch string }

func targets() []target {
	var all []target
	for _, goos := range []string{"darwin", "linux", "windows"} {
		for _, goarch := range []string{"amd64", "arm64"} {
			all = append(all, target{goos, goarch})
		}
	}
	return all
}

// programs maps the names of the programs to their packages and to the sections of their manual pages.
func programs() []program {
	return []program{{"parley", "./client/cmd/parley", "1"}, {"parleyd", "./server", "8"}}
}

type program struct{ name, path, section string }

// versionForm matches versions and what git describe prints.
var versionForm = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.+-]*$`)

// parse reads the command line. The error names the flag and what to do.
func parse(args []string) (*release, error) {
	r := &release{}
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.StringVar(&r.version, "version", "", "version of the release, as in v1.2.3")
	flags.StringVar(&r.commit, "commit", "", "hash of the commit")
	flags.StringVar(&r.dist, "dist", "dist", "directory to write; an existing one is removed first")
	date := flags.String("date", "", "time of the commit, as in 2026-11-23T05:00:00Z")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	r.buildFlags = flags.Args()
	if !versionForm.MatchString(r.version) {
		return nil, fmt.Errorf("-version %q: use letters, digits, dots, plus and minus signs, as in v1.2.3", r.version)
	}
	if !regexp.MustCompile(`^[0-9a-f]{7,64}$`).MatchString(r.commit) {
		return nil, fmt.Errorf("-commit %q: use the hash of a commit; build a release in a clone of the repository", r.commit)
	}
	var err error
	if r.date, err = time.Parse(time.RFC3339, *date); err != nil {
		return nil, fmt.Errorf("-date %q: use a time such as 2026-11-23T05:00:00Z", *date)
	}
	if r.date = r.date.UTC().Truncate(time.Second); r.date.Year() < 1980 { // The oldest time in a zip archive.
		return nil, fmt.Errorf("-date %q: use a time after 1980", *date)
	}
	return r, nil
}

// run writes the directory dist. After an error it does not exist.
func (r *release) run(ctx context.Context) (err error) {
	if r.work, err = os.MkdirTemp("", "release"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.work)) }()
	if err := os.RemoveAll(r.dist); err != nil {
		return err
	}
	if err := os.Mkdir(r.dist, 0o755); err != nil { //nolint:gosec // Releases are public.
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(r.dist))
		}
	}()
	if err := r.writeDocs(ctx); err != nil {
		return err
	}
	for _, t := range targets() {
		if err := r.writeTarget(ctx, t); err != nil {
			return fmt.Errorf("%s/%s: %w", t.goos, t.goarch, err)
		}
	}
	descriptors := filepath.Join(r.dist, r.name("descriptors")+".binpb")
	if err := r.command(ctx, "go", "tool", "-modfile=proto/tools.mod", "buf", "build", "--as-file-descriptor-set",
		"--output", descriptors); err != nil {
		return err
	}
	return writeChecksums(r.dist)
}

// writeTarget builds the programs for a target, and writes the archive, the bills of materials and, for Linux, the
// packages.
func (r *release) writeTarget(ctx context.Context, t target) error {
	fmt.Fprintf(os.Stderr, "building for %s/%s\n", t.goos, t.goarch)
	files := r.docs
	for _, p := range programs() {
		built := r.built(t, p)
		if err := r.build(ctx, t, p); err != nil {
			return err
		}
		if err := r.writeSBOM(ctx, t, p); err != nil {
			return err
		}
		data, err := os.ReadFile(built)
		if err != nil {
			return err
		}
		files = append(slices.Clip(files), file{filepath.Base(built), 0o755, data})
	}
	notices, err := r.notices(ctx, t)
	if err != nil {
		return err
	}
	files = append(files, file{noticesName, 0o644, notices})
	name := r.name(t.goos, t.goarch)
	write, suffix := writeTar, ".tar.gz"
	if t.goos == "windows" {
		write, suffix = writeZip, ".zip"
	}
	if err := writeArchive(filepath.Join(r.dist, name+suffix), write, name, files, r.date); err != nil {
		return err
	}
	if t.goos == "linux" {
		return r.writePackages(ctx, t, notices)
	}
	return nil
}
