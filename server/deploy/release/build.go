package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// toolsFile pins the tools of this program.
const toolsFile = "-modfile=server/deploy/release/tools.mod"

// name returns the name of a file of the release without its suffix.
func (r *release) name(parts ...string) string {
	return strings.Join(append([]string{"parley", strings.TrimPrefix(r.version, "v")}, parts...), "_")
}

// built returns the path of a program that is built for a target.
func (r *release) built(t target, p program) string {
	name := p.name
	if t.goos == "windows" {
		name += ".exe"
	}
	return filepath.Join(r.work, t.goos, t.goarch, name)
}

// command runs a command in the top directory of the repository. env are further variables. Its output is only in the
// error.
func (r *release) command(ctx context.Context, name string, args ...string) error {
	_, err := r.output(ctx, nil, name, args...)
	return err
}

// output runs a command as the method command does, and returns its standard output.
func (r *release) output(ctx context.Context, env []string, name string, args ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, name, args...) //nolint:gosec // The commands are in this package.
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "SOURCE_DATE_EPOCH="+strconv.FormatInt(r.date.Unix(), 10))
	command.Env = append(command.Env, env...)
	var stderr strings.Builder
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(command.Args, " "), err, stderr.String())
	}
	return out, nil
}

// build builds a program for a target.
func (r *release) build(ctx context.Context, t target, p program) error {
	args := append([]string{"build"}, r.buildFlags...)
	args = append(args, "-o", r.built(t, p), p.path)
	// The levels of the architectures are set, since they may differ in the environment.
	_, err := r.output(ctx, []string{"GOOS=" + t.goos, "GOARCH=" + t.goarch, "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS="},
		"go", args...)
	return err
}

// writeDocs collects the files that are the same on all systems: license, pages, completion scripts.
func (r *release) writeDocs(ctx context.Context) error {
	host := target{runtime.GOOS, runtime.GOARCH}
	for _, name := range []string{"LICENSE", "README.md"} {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		r.docs = append(r.docs, file{name, 0o644, data})
	}
	for _, p := range programs() {
		if err := r.build(ctx, host, p); err != nil {
			return err
		}
		for _, c := range [][2]string{
			{"bash", p.name + ".bash"}, {"zsh", "_" + p.name}, {"fish", p.name + ".fish"}, {"powershell", p.name + ".ps1"},
		} {
			script, err := r.output(ctx, nil, r.built(host, p), "completion", c[0])
			if err != nil {
				return err
			}
			r.completions = append(r.completions, file{"completions/" + c[1], 0o644, script})
		}
		if err := r.readPages(ctx, p); err != nil {
			return err
		}
	}
	r.docs = append(append(r.docs, r.completions...), r.pages...)
	return nil
}

// readPages collects the manual pages of a program.
func (r *release) readPages(ctx context.Context, p program) error {
	dir := filepath.Join(r.work, "man", p.name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := r.command(ctx, "go", "run", "-tags", "manpages", p.path, dir); err != nil {
		return err
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*."+p.section))
	if err != nil {
		return err
	}
	for _, page := range pages {
		data, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		r.pages = append(r.pages, file{"man/man" + p.section + "/" + filepath.Base(page), 0o644, data})
	}
	return nil
}

// writeSBOM writes the bill of materials of a program: the modules in it, in the format CycloneDX.
func (r *release) writeSBOM(ctx context.Context, t target, p program) error {
	name := strings.Join([]string{p.name, strings.TrimPrefix(r.version, "v"), t.goos, t.goarch}, "_") + ".cdx.json"
	serial := uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://github.com/parleyhq/parley/"+r.commit+"/"+name))
	out, err := r.output(ctx, nil, "go", "tool", toolsFile, "cyclonedx-gomod", "bin", "-json", "-std", "-notimestamp",
		"-serial", serial.String(), "-version", r.version, r.built(t, p))
	if err != nil {
		return err
	}
	if out, err = reproducible(out); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return os.WriteFile(filepath.Join(r.dist, name), out, 0o644) //nolint:gosec // Releases are public.
}

// reproducible removes the checksums of the tool from a bill of materials. They depend on the directory in which the
// tool was built. If the tool names itself in another place than this, reproducible returns an error.
func reproducible(sbom []byte) ([]byte, error) {
	var document map[string]any
	if err := json.Unmarshal(sbom, &document); err != nil {
		return nil, err
	}
	metadata, _ := document["metadata"].(map[string]any)
	tools, _ := metadata["tools"].([]any)
	if len(tools) == 0 {
		return nil, errors.New("the bill of materials does not name its tool")
	}
	for _, t := range tools {
		if tool, ok := t.(map[string]any); ok {
			delete(tool, "hashes")
		}
	}
	out, err := json.MarshalIndent(document, "", "  ")
	return append(out, '\n'), err
}
