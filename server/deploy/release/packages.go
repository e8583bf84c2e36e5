package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// packageDir contains the files of this package that the Linux packages contain.
const packageDir = "server/deploy/release"

// writePackages writes the Debian and the RPM package for a target.
func (r *release) writePackages(ctx context.Context, t target, notices []byte) error {
	staged, err := r.stage(t, notices)
	if err != nil {
		return err
	}
	config, err := os.ReadFile(filepath.Join(packageDir, "nfpm.yaml"))
	if err != nil {
		return err
	}
	values := map[string]string{
		"ARCH": t.goarch, "VERSION": packageVersion(r.version, r.commit, r.date), "STAGED": staged,
		"BUILT": filepath.Join(r.work, t.goos, t.goarch), "DATE": r.date.Format(time.RFC3339),
	}
	path := filepath.Join(staged, "nfpm.yaml")
	text := os.Expand(string(config), func(name string) string { return values[name] })
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	for _, format := range []string{"deb", "rpm"} {
		to := filepath.Join(r.dist, r.name(t.goos, t.goarch)+"."+format)
		if err := r.command(ctx, "go", "tool", toolsFile, "nfpm", "package",
			"--config", path, "--packager", format, "--target", to); err != nil {
			return err
		}
	}
	return nil
}

// stage writes the files that only the packages contain, and returns their directory.
func (r *release) stage(t target, notices []byte) (dir string, err error) {
	dir = filepath.Join(r.work, "packages", t.goarch)
	files := append([]file{{noticesName, 0o644, notices}}, r.completions...)
	changelog := fmt.Sprintf("parleyd (%s) unstable; urgency=medium\n\n  * Version %s, commit %s.\n\n"+
		" -- Parley maintainers <maintainers@parleyhq.example>  %s\n",
		packageVersion(r.version, r.commit, r.date), r.version, r.commit, r.date.Format(time.RFC1123Z))
	for _, f := range append([]file{{"changelog", 0o644, []byte(changelog)}}, r.pages...) {
		if f.data, err = compress(f.data); err != nil {
			return "", err
		}
		f.name += ".gz"
		files = append(files, f)
	}
	for _, f := range files {
		path := filepath.Join(dir, filepath.FromSlash(f.name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return "", err
		}
		if err := os.WriteFile(path, f.data, 0o600); err != nil {
			return "", err
		}
	}
	return dir, nil
}

var (
	// tagged matches the versions of releases, and what git describe prints some commits after one.
	tagged = regexp.MustCompile(`^v?(\d+\.\d+\.\d+)(?:-([0-9A-Za-z.]+?))??(?:-(\d+)-g([0-9a-f]+))?(-dirty)?$`)
	other  = regexp.MustCompile(`[^0-9A-Za-z.]+`)
)

// packageVersion returns a version as package managers sort it: v1.2.3 is 1.2.3, v1.2.3-rc.1 before it is 1.2.3~rc.1,
// and four commits later is 1.2.3+4.g1a537e4. Other versions, as of a repository without tags, sort by date and before
// all of these.
func packageVersion(version, commit string, date time.Time) string {
	match := tagged.FindStringSubmatch(version)
	if match == nil {
		result := "0~" + date.Format("20060102.150405") + "." + commit[:7]
		hash, suffix, _ := strings.Cut(version, "-")
		if !strings.HasPrefix(commit, hash) {
			suffix = version
		}
		if suffix = strings.Trim(other.ReplaceAllString(suffix, "."), "."); suffix != "" {
			result += "." + suffix
		}
		return result
	}
	result := match[1]
	if match[2] != "" {
		result += "~" + match[2]
	}
	if match[3] != "" {
		result += "+" + match[3] + ".g" + match[4]
	}
	if match[5] != "" {
		result += "+dirty"
	}
	return result
}
