package check

import (
	"bytes"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

const (
	repository = "../../.."
	user       = 65532 // of the image
)

// stages returns the stages of the Dockerfile. The test fails if the linter of BuildKit finds anything.
func stages(t *testing.T) []instructions.Stage {
	t.Helper()
	text, err := os.ReadFile("../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parser.Parse(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	found, _, err := instructions.Parse(parsed.AST, linter.New(&linter.Config{
		Warn: func(rule, _, _, message string, place []parser.Range) {
			t.Errorf("Dockerfile:%v: %s: %s", place, rule, message)
		},
	}))
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 2 {
		t.Fatalf("the Dockerfile has %d stages, want 2", len(found))
	}
	return found
}

// variables returns the values of the ARG instructions of a stage, as BuildKit sets them: that of --build-arg, else the
// default, else that of the platform.
func variables(stage instructions.Stage, buildArgs, platform map[string]string) map[string]string {
	set := map[string]string{}
	for _, command := range stage.Commands {
		arg, ok := command.(*instructions.ArgCommand)
		if !ok {
			continue
		}
		for _, a := range arg.Args {
			if value, ok := buildArgs[a.Key]; ok {
				set[a.Key] = value
			} else if a.Value != nil {
				set[a.Key] = *a.Value
			} else {
				set[a.Key] = platform[a.Key]
			}
		}
	}
	return set
}

// context returns a directory with the files of the repository that the Dockerfile can use. .dockerignore excludes the
// others.
func context(t *testing.T) string {
	t.Helper()
	file, err := os.Open("../Dockerfile.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	patterns, err := ignorefile.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	ignored, err := patternmatcher.New(patterns)
	if err != nil {
		t.Fatal(err)
	}
	list := exec.CommandContext(t.Context(), "git", "-C", repository, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	names, err := list.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	dir := t.TempDir()
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		if skip, err := ignored.MatchesOrParentMatches(name); err != nil {
			t.Fatal(err)
		} else if skip {
			continue
		}
		data, err := os.ReadFile(filepath.Join(repository, name))
		if errors.Is(err, fs.ErrNotExist) { // It is deleted in the work tree.
			continue
		}
		to := filepath.Join(dir, name)
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(to), 0o700), os.WriteFile(to, data, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestDockerfile checks the image: no shell, no root, and the health check of the server.
func TestDockerfile(t *testing.T) {
	build, image := stages(t)[0], stages(t)[1]
	// With a default, these would be the same for all platforms.
	platform := map[string]string{"TARGETOS": "linux", "TARGETARCH": "riscv64"}
	for name, want := range platform {
		if got := variables(build, nil, platform)[name]; got != want {
			t.Errorf("%s = %q in a build for %v, want %q", name, got, platform, want)
		}
	}
	if image.BaseName != "scratch" {
		t.Errorf("base of the image = %s, want scratch", image.BaseName)
	}
	var got []string
	for _, command := range image.Commands {
		switch c := command.(type) {
		case *instructions.UserCommand:
			got = append(got, "user "+c.User)
		case *instructions.VolumeCommand:
			got = append(got, "volume "+strings.Join(c.Volumes, " "))
		case *instructions.HealthCheckCommand:
			got = append(got, "health "+strings.Join(c.Health.Test, " "))
		case *instructions.EntrypointCommand:
			got = append(got, "entrypoint "+strings.Join(c.CmdLine, " "))
			if c.PrependShell {
				t.Error("the entrypoint needs a shell, which the image has not")
			}
		case *instructions.RunCommand:
			t.Errorf("the image runs %q, but has no shell", c.CmdLine)
		}
	}
	want := []string{
		"user 65532:65532", "volume /var/lib/parley", "health CMD /usr/bin/parleyd healthcheck",
		"entrypoint /usr/bin/parleyd",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the image has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	module, err := os.ReadFile(filepath.Join(repository, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(module)
	text, err := os.ReadFile("../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(text, append([]byte("ARG GO_VERSION="), version[1]...)) {
		t.Errorf("GO_VERSION of the Dockerfile is not %s, the version of go.mod", version[1])
	}
}

// TestImage runs the steps of the Dockerfile by hand and then the program in the folder of the image, as its user,
// with a root file system that it cannot change.
func TestImage(t *testing.T) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root on Linux, to change the root folder")
	}
	root, err := os.MkdirTemp("", "image") //nolint:usetesting // The directories of t.TempDir are closed to other users.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	build, source := stages(t)[0], context(t)
	environ := os.Environ()
	for name, value := range variables(build,
		map[string]string{"VERSION": "v9", "COMMIT": "c0ffee", "DATE": "2026-01-02T03:04:05+00:00"},
		map[string]string{"TARGETOS": "linux", "TARGETARCH": runtime.GOARCH},
	) {
		environ = append(environ, name+"="+value)
	}
	for _, command := range build.Commands {
		run, ok := command.(*instructions.RunCommand)
		if !ok || run.CmdLine[0] == "go mod download" {
			continue
		}
		line := strings.NewReplacer(" /out/", " "+root+"/").Replace(run.CmdLine[0])
		shell := exec.CommandContext(t.Context(), "sh", "-euc", line)
		shell.Dir, shell.Env = source, environ
		if output, err := shell.CombinedOutput(); err != nil {
			t.Fatalf("RUN %s: %v\n%s", line, err, output)
		}
	}
	data := filepath.Join(root, "var", "lib", "parley")
	if err := errors.Join(os.Chmod(root, 0o755), os.Chown(data, user, user)); err != nil {
		t.Fatal(err)
	}
	inside := func(arguments ...string) *exec.Cmd {
		command := exec.CommandContext(t.Context(), "/usr/bin/parleyd", arguments...)
		command.Dir = "/"
		command.Env = []string{"PATH=/usr/bin", "PARLEY_DATA_DIR=/var/lib/parley", "PARLEY_GRPC_ADDRESS=" + address(t, root)}
		command.SysProcAttr = &syscall.SysProcAttr{
			Chroot: root, Credential: &syscall.Credential{Uid: user, Gid: user},
		}
		return command
	}
	const version = "parleyd version v9 (commit c0ffee, 2026-01-02T03:04:05+00:00, go"
	if output, err := inside("--version").CombinedOutput(); err != nil || !strings.HasPrefix(string(output), version) {
		t.Errorf("parleyd --version = %q, %v; want %s", output, err, version)
	}
	if output, err := inside("healthcheck").CombinedOutput(); err == nil || !strings.Contains(string(output), "refused") {
		t.Errorf("healthcheck before the start = %q, %v; want it refused", output, err)
	}
	var log bytes.Buffer
	server := inside("--insecure", "--http-address=", "--log-format=json")
	server.Stderr = &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	healthy := false
	for range 600 { // at least a minute: a check waits for the connection
		output, err := inside("healthcheck", "--timeout=1s").CombinedOutput()
		if healthy = err == nil; healthy {
			if !strings.HasSuffix(string(output), ": serving\n") {
				t.Errorf("healthcheck = %q, want serving", output)
			}
			break
		}
	}
	if err := server.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := server.Wait(); err != nil || !healthy {
		t.Errorf("server ended with %v, healthy = %t; its log:\n%s", err, healthy, &log)
	}
}

// address returns an address on which nothing listens. The image keeps it.
func address(t *testing.T, root string) string {
	t.Helper()
	path := filepath.Join(root, "address")
	if text, err := os.ReadFile(path); err == nil {
		return string(text)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := l.Addr().String()
	if err := errors.Join(l.Close(), os.WriteFile(path, []byte(free), 0o600)); err != nil {
		t.Fatal(err)
	}
	return free
}
