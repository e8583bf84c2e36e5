package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestRelease checks a release that make release has written, which takes minutes: make checkrelease runs it. It
// builds the release a second time, in another directory.
func TestRelease(t *testing.T) {
	dist := os.Getenv("PARLEY_RELEASE")
	if dist == "" {
		t.Skip("SKIPPED: make checkrelease sets PARLEY_RELEASE to the directory of a release")
	}
	t.Run("again", func(t *testing.T) { buildAgain(t, dist) })
	t.Run("checksums", func(t *testing.T) {
		check := command(t, dist, "sha256sum", "--check", "--strict", checksumsName)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("sha256sum: %v\n%s", err, out)
		}
	})
	for _, target := range targets() {
		t.Run(target.goos+"/"+target.goarch, func(t *testing.T) { checkPrograms(t, dist, target) })
	}
	t.Run("deb", func(t *testing.T) { installDebian(t, dist) })
	t.Run("rpm", func(t *testing.T) { installRPM(t, dist) })
}

// command returns a command, and skips the test if its program is missing. In CI it fails instead.
func command(t *testing.T, dir, name string, args ...string) *exec.Cmd {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skipf("SKIPPED: %v", err)
	}
	c := exec.CommandContext(t.Context(), name, args...)
	c.Dir = dir
	return c
}

// buildAgain builds the commit of HEAD in a clone in another directory, with another time zone and mask of permissions,
// and compares each file.
func buildAgain(t *testing.T, dist string) {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	status, err := command(t, root, "git", "status", "--porcelain").Output()
	if err != nil {
		t.Fatal(err)
	}
	if len(status) > 0 {
		t.Fatalf("the work tree has changes, so a clone differs from it; commit or remove them:\n%s", status)
	}
	clone := filepath.Join(t.TempDir(), "elsewhere")
	if out, err := command(t, root, "git", "clone", "--quiet", root, clone).CombinedOutput(); err != nil {
		t.Fatalf("git clone: %v\n%s", err, out)
	}
	again := command(t, clone, "sh", "-c", "umask 077 && exec make release")
	again.Env = append(os.Environ(), "TZ=Pacific/Kiritimati")
	if out, err := again.CombinedOutput(); err != nil {
		t.Fatalf("make release: %v\n%s", err, out)
	}
	names := func(dir string) (names []string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	first, second := names(dist), names(filepath.Join(clone, "dist"))
	if !slices.Equal(first, second) || len(first) == 0 {
		t.Fatalf("files %v, in another directory %v, want the same", first, second)
	}
	for _, name := range first {
		a, errA := os.ReadFile(filepath.Join(dist, name))
		b, errB := os.ReadFile(filepath.Join(clone, "dist", name))
		if err := errors.Join(errA, errB); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s: two builds differ", name)
		}
	}
}

// checkPrograms unpacks the archive of a target. Programs for this machine must print their version, and the manual
// page must contain the flags of --help. The program file checks those for others.
func checkPrograms(t *testing.T, dist string, of target) {
	t.Helper()
	archives, err := filepath.Glob(filepath.Join(dist, "parley_*_"+of.goos+"_"+of.goarch+".*[zp]"))
	if err != nil || len(archives) != 1 {
		t.Fatalf("archives %v, %v, want one", archives, err)
	}
	dir := filepath.Join(unpack(t, archives[0]), strings.TrimSuffix(strings.TrimSuffix(filepath.Base(archives[0]), ".tar.gz"), ".zip"))
	kinds := map[target]string{
		{"linux", "amd64"}: `ELF 64-bit LSB executable, x86-64.*statically linked.*, stripped`,
		{"linux", "arm64"}: `ELF 64-bit LSB executable, ARM aarch64.*statically linked.*, stripped`,
		// Programs of macOS always use its system library.
		{"darwin", "amd64"}: `Mach-O 64-bit x86_64 executable`, {"darwin", "arm64"}: `Mach-O 64-bit arm64 executable`,
		{"windows", "amd64"}: `PE32\+ executable \(console\) x86-64`, {"windows", "arm64"}: `PE32\+ executable \(console\) Aarch64`,
	}
	notices, err := os.ReadFile(filepath.Join(dir, noticesName))
	for _, module := range []string{"\ngoogle.golang.org/grpc v", "\ngo.etcd.io/bbolt v"} {
		if err != nil || !bytes.HasPrefix(notices, []byte("Go go1.")) || !bytes.Contains(notices, []byte(module)) {
			t.Errorf("%s: %v, want the licenses of Go and of%s", noticesName, err, module)
		}
	}
	for _, p := range programs() {
		name := filepath.Base((&release{}).built(of, p))
		kind, err := command(t, dir, "file", "--brief", name).Output()
		if err != nil || !regexp.MustCompile(kinds[of]).Match(kind) {
			t.Errorf("file %s = %s, %v, want %s", name, kind, err, kinds[of])
		}
		if of.goos != runtime.GOOS || of.goarch != runtime.GOARCH {
			continue
		}
		run := func(args ...string) string {
			out, err := command(t, dir, filepath.Join(dir, name), args...).CombinedOutput()
			if err != nil {
				t.Errorf("%s %v: %v\n%s", name, args, err, out)
			}
			return string(out)
		}
		want := regexp.MustCompile(`^` + p.name + ` version \S+ \(commit [0-9a-f]{40}, 20\S+Z, go`)
		if version := run("--version"); !want.MatchString(version) {
			t.Errorf("%s --version = %q, want %s", name, version, want)
		}
		page, err := os.ReadFile(filepath.Join(dir, "man", "man"+p.section, p.name+"."+p.section))
		if err != nil {
			t.Fatal(err)
		}
		flags := regexp.MustCompile(`(?m)^ {2,6}(?:-., )?(--[a-z-]+)`).FindAllStringSubmatch(run("--help"), -1)
		for _, flag := range flags {
			if flag[1] != "--version" && !bytes.Contains(page, []byte(`\fB`+flag[1]+`\fP`)) {
				t.Errorf("manual page of %s does not have the flag %s", name, flag[1])
			}
		}
		if len(flags) < 5 {
			t.Errorf("%s --help has %d flags, want more", name, len(flags))
		}
	}
}

// unpack unpacks an archive and returns the directory.
func unpack(t *testing.T, archive string) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, mode os.FileMode, r io.Reader) {
		path := filepath.Join(dir, filepath.FromSlash(name))
		data, err := io.ReadAll(r)
		if err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o700)); err == nil {
			err = os.WriteFile(path, data, mode)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if strings.HasSuffix(archive, ".zip") {
		r, err := zip.OpenReader(archive)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for _, f := range r.File {
			content, err := f.Open()
			if err != nil {
				t.Fatal(err)
			}
			write(f.Name, f.Mode(), content)
		}
		return dir
	}
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	compressed, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(compressed); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		} else if err != nil {
			t.Fatal(err)
		}
		write(header.Name, header.FileInfo().Mode(), r)
	}
}

// packageOf returns the path of the package for this machine.
func packageOf(t *testing.T, dist, format string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: an installation needs root")
	}
	packages, err := filepath.Glob(filepath.Join(dist, "parley_*_linux_"+runtime.GOARCH+"."+format))
	if err != nil || len(packages) != 1 {
		t.Fatalf("packages %v, %v, want one", packages, err)
	}
	return packages[0]
}

// wantFiles checks that these files exist below root, or that none of them does.
func wantFiles(t *testing.T, root string, want bool, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if _, err := os.Lstat(filepath.Join(root, path)); (err == nil) != want {
			t.Errorf("%s: %v, want it to exist: %t", path, err, want)
		}
	}
}

// installDebian installs the Debian package in a directory of its own, runs the server from there, and removes,
// reinstalls and purges the package.
func installDebian(t *testing.T, dist string) {
	t.Helper()
	deb, root := packageOf(t, dist, "deb"), t.TempDir()
	for _, dir := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/parley"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"status", "available"} {
		if err := os.WriteFile(filepath.Join(root, "var", "lib", "dpkg", name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// The scripts run with DPKG_ROOT in place of a changed root directory, which has no shell.
	dpkg := func(args ...string) {
		t.Helper()
		args = append([]string{"--root=" + root, "--force-script-chrootless", "--force-not-root"}, args...)
		if out, err := command(t, "", "dpkg", args...).CombinedOutput(); err != nil {
			t.Fatalf("dpkg %v: %v\n%s", args, err, out)
		}
	}
	const (
		enabled  = "etc/systemd/system/multi-user.target.wants/parleyd.service"
		config   = "etc/parley/parleyd.yaml"
		secrets  = "etc/parley/parleyd.env"
		database = "var/lib/parley/parley.db"
	)
	paths := []string{
		"usr/bin/parleyd", "usr/bin/parley", "usr/lib/systemd/system/parleyd.service", "usr/share/man/man8/parleyd.8.gz",
		"usr/share/bash-completion/completions/parleyd", "usr/share/doc/parleyd/copyright", "usr/share/doc/parleyd/" + noticesName,
	}
	dpkg("--install", deb)
	wantFiles(t, root, true, append(paths, enabled, config, secrets)...)
	if info, err := os.Stat(filepath.Join(root, secrets)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("Stat of %s = %v, %v, want mode 0600", secrets, info, err)
	}
	serveFrom(t, root)
	dpkg("--remove", "parleyd")
	wantFiles(t, root, false, paths...)
	wantFiles(t, root, true, config, secrets, database)

	dpkg("--install", deb)
	wantFiles(t, root, true, enabled)
	if err := os.Remove(filepath.Join(root, enabled)); err != nil { // as systemctl disable does
		t.Fatal(err)
	}
	dpkg("--install", deb)
	wantFiles(t, root, false, enabled)
	dpkg("--purge", "parleyd")
	wantFiles(t, root, false, append(paths, enabled, "etc/parley")...)
	wantFiles(t, root, true, database) // Only its owner deletes conversations.
	if left, err := filepath.Glob(filepath.Join(root, "var", "lib", "systemd", "*", "*parley*")); err != nil || len(left) > 0 {
		t.Errorf("a purge leaves %v, %v", left, err)
	}
}

// installRPM installs the RPM package in a directory of its own, and removes it. Its scripts do not run.
func installRPM(t *testing.T, dist string) {
	t.Helper()
	file, root := packageOf(t, dist, "rpm"), t.TempDir()
	rpm := func(args ...string) string {
		t.Helper()
		out, err := command(t, "", "rpm", append([]string{"--root=" + root}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("rpm %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	rpm("--install", "--noscripts", "--nodeps", "--ignorearch", file)
	paths := []string{
		"usr/bin/parleyd", "usr/lib/systemd/system/parleyd.service", "etc/parley/parleyd.yaml", "etc/parley/parleyd.env",
		"usr/share/doc/parleyd", "usr/share/licenses/parleyd/LICENSE",
	}
	wantFiles(t, root, true, paths...)
	if verified := rpm("--verify", "parleyd"); strings.Contains(verified, "/") {
		t.Errorf("rpm --verify after the installation:\n%s", verified)
	}
	rpm("--erase", "--noscripts", "parleyd")
	wantFiles(t, root, false, append(paths, "etc/parley", "usr/share/licenses/parleyd")...)
}

// serveFrom starts and stops the installed server with the settings of the package.
func serveFrom(t *testing.T, root string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	server := exec.CommandContext(ctx, filepath.Join(root, "usr", "bin", "parleyd"),
		"--config", filepath.Join(root, "etc", "parley", "parleyd.yaml"), "--data-dir", filepath.Join(root, "var", "lib", "parley"),
		"--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0")
	server.Cancel = func() error { return server.Process.Signal(os.Interrupt) }
	server.Stderr = write
	err = server.Start()
	if closeErr := write.Close(); err != nil || closeErr != nil {
		t.Fatal(err, closeErr)
	}
	var log []byte
	for buffer := make([]byte, 4096); !bytes.Contains(log, []byte("serving http")) && err == nil; {
		var n int
		n, err = read.Read(buffer)
		log = append(log, buffer[:n]...)
	}
	cancel()
	rest, _ := io.ReadAll(read) // Until the server has ended.
	if waitErr := server.Wait(); err != nil || server.ProcessState.ExitCode() != 0 {
		t.Errorf("installed parleyd: %v, %v\n%s%s", err, waitErr, log, rest)
	}
}
