package manual

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

// TestWrite: a page contains the text of the command as it is, with its flags, and the pages of two runs are equal.
func TestWrite(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1701385200") // 2023-11-30 23:00 UTC, and December in the zone of the second run
	local := time.Local
	t.Cleanup(func() { time.Local = local })
	write := func() map[string]string {
		dir := t.TempDir()
		root := &cobra.Command{Use: "tool", Short: "Do it", Long: "Set max_turns *now*.\n\n  tool sub    run it\n  tool        wait"}
		root.Flags().String("some-flag", "", "what it does")
		root.AddCommand(&cobra.Command{Use: "sub", Short: "Run it", Run: func(*cobra.Command, []string) {}})
		if err := Write(root, "8", []string{dir}); err != nil {
			t.Fatal(err)
		}
		pages := map[string]string{}
		for _, name := range []string{"tool.8", "tool-sub.8", "tool-completion-zsh.8"} {
			page, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			pages[name] = string(page)
		}
		return pages
	}
	pages := write()
	for _, want := range []string{
		"max_turns *now*", "tool sub    run it\n", "tool        wait\n", `\fB--some-flag\fP`, "what it does", "Nov 2023",
	} {
		if !strings.Contains(pages["tool.8"], want) {
			t.Errorf("tool.8 does not contain %q:\n%s", want, pages["tool.8"])
		}
	}
	time.Local = time.FixedZone("", 2*3600)
	if diff := cmp.Diff(pages, write()); diff != "" {
		t.Errorf("second run (-first +second):\n%s", diff)
	}
}
