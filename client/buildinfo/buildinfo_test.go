package buildinfo

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOf(t *testing.T) {
	set := Info{Version: "v1.2.3", Commit: "1a537e4", Date: "2026-11-23T05:00:00Z"}
	if got := Of(set.Version, set.Commit, set.Date); got != set {
		t.Errorf("Of(%v) = %v, want the values of the linker", set, got)
	}
	for _, version := range []string{"", Unset} {
		if got := Of(version, "", "").Version; got == "" || got == "(devel)" {
			t.Errorf("Of(%q).Version = %q, want a version or %q", version, got, Unset)
		}
	}
}

// TestRecorded: the values that the go command records count only where the linker has set none.
func TestRecorded(t *testing.T) {
	build := func(version string) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: version}, Settings: []debug.BuildSetting{
			{Key: "GOOS", Value: "plan9"}, {Key: "vcs.revision", Value: "c0ffee"}, {Key: "vcs.time", Value: "2026-01-02T03:04:05Z"},
		}}
	}
	for _, c := range []struct {
		in      Info
		version string
		want    Info
	}{
		{Info{Version: Unset}, "v1.4.0", Info{"v1.4.0", "c0ffee", "2026-01-02T03:04:05Z"}},
		{Info{Version: Unset}, "(devel)", Info{Unset, "c0ffee", "2026-01-02T03:04:05Z"}},
		{Info{Version: Unset, Commit: "feed", Date: "today"}, "", Info{Unset, "feed", "today"}},
	} {
		if diff := cmp.Diff(c.want, c.in.with(build(c.version))); diff != "" {
			t.Errorf("%v.with(%s) (-want +got):\n%s", c.in, c.version, diff)
		}
	}
}

func TestString(t *testing.T) {
	end := runtime.Version() + ", " + runtime.GOOS + "/" + runtime.GOARCH + ")"
	for _, c := range []struct {
		in   Info
		want string
	}{
		{Info{"v1.2.3", "1a537e4", "2026-11-23T05:00:00Z"}, "v1.2.3 (commit 1a537e4, 2026-11-23T05:00:00Z, " + end},
		{Info{Version: Unset}, "dev (" + end},
	} {
		if got := c.in.String(); got != c.want {
			t.Errorf("%#v.String() = %q, want %q", c.in, got, c.want)
		}
	}
}
