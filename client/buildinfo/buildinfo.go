// Package buildinfo says from which source a program was built. Start at [Of].
package buildinfo

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// Unset is the version of a program if neither the linker nor the go command has set one.
const Unset = "dev"

// Info describes a program.
type Info struct {
	Version string // as in v1.2.3; never empty
	Commit  string // the commit of git; empty: unknown
	Date    string // time of the commit, as in 2026-11-23T05:00:00Z; empty: unknown
}

// Of returns the values that the linker has set. If version is empty or [Unset], as in a program built by go
// install, it returns what the go command recorded in the program.
func Of(version, commit, date string) Info {
	info := Info{Version: version, Commit: commit, Date: date}
	if version == "" || version == Unset {
		if build, ok := debug.ReadBuildInfo(); ok {
			info = info.with(build)
		}
	}
	info.Version = cmp.Or(info.Version, Unset)
	return info
}

// with returns i with the values that the go command has recorded.
func (i Info) with(build *debug.BuildInfo) Info {
	if v := build.Main.Version; v != "" && v != "(devel)" {
		i.Version = v
	}
	for _, s := range build.Settings {
		switch s.Key {
		case "vcs.revision":
			i.Commit = cmp.Or(i.Commit, s.Value)
		case "vcs.time":
			i.Date = cmp.Or(i.Date, s.Value)
		}
	}
	return i
}

// String returns one line for --version, as in
// "v1.2.3 (commit 1a537e4, 2026-11-23T05:00:00Z, go1.26.8, linux/amd64)".
func (i Info) String() string {
	source := ""
	if i.Commit != "" {
		source = "commit " + i.Commit + ", "
	}
	if i.Date != "" {
		source += i.Date + ", "
	}
	return fmt.Sprintf("%s (%s%s, %s/%s)", i.Version, source, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
