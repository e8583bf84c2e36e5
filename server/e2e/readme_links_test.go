package e2e_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// maxFrontPage is the size of a page that is read in three minutes, in bytes.
const maxFrontPage = 9000

func TestFrontPageIsShort(t *testing.T) {
	if page := readPage(t, "README.md"); len(page) > maxFrontPage {
		t.Errorf("README.md has %d bytes, want at most %d", len(page), maxFrontPage)
	}
}

// TestAllCommandsAreRun fails if a page with commands is missing in pages. The pages of the clients for Python and
// TypeScript are tested there.
func TestAllCommandsAreRun(t *testing.T) {
	for _, path := range findPages(t) {
		hasCommands := slices.ContainsFunc(readBlocks(t, path), func(b block) bool {
			return strings.HasPrefix(b.language, "sh")
		})
		if hasCommands != slices.ContainsFunc(pages(), func(p page) bool { return p.path == path }) {
			t.Errorf("%s: has commands = %v, but the list of pages says otherwise", path, hasCommands)
		}
	}
}

// TestLinesOfPages checks that the pages keep the width that fits beside a diff. Tables, links and code may be wider.
func TestLinesOfPages(t *testing.T) {
	const width = 120
	for _, path := range findPages(t) {
		code := false
		for i, line := range strings.Split(readPage(t, path), "\n") {
			code = code != strings.HasPrefix(line, "```")
			mayBeWide := code || strings.HasPrefix(line, "|") || strings.HasPrefix(line, "    ")
			if n := utf8.RuneCountInString(line); n > width && !mayBeWide {
				t.Errorf("%s:%d has %d characters, want at most %d", path, i+1, n, width)
			}
		}
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	fence   = regexp.MustCompile("(?ms)^```.*?\n```$")
)

// TestLinksOfPages checks that the files and headings that the pages link to exist.
func TestLinksOfPages(t *testing.T) {
	for _, path := range findPages(t) {
		for _, match := range link.FindAllStringSubmatch(fence.ReplaceAllString(readPage(t, path), ""), -1) {
			target, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			linked := path
			if target != "" {
				linked = filepath.Join(filepath.Dir(path), target)
			}
			if _, err := os.Stat(filepath.Join("..", "..", linked)); err != nil {
				t.Errorf("%s: link %s: %v", path, match[1], err)
				continue
			}
			if anchor != "" && !slices.Contains(anchors(readPage(t, linked)), anchor) {
				t.Errorf("%s: link %s: %s has no such heading", path, match[1], linked)
			}
		}
	}
}

// anchors returns the names that code hosts give the headings of a page.
func anchors(page string) (names []string) {
	for _, match := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		names = append(names, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, match[1]))
	}
	return names
}

// findPages returns the paths of all pages of the repository.
func findPages(t *testing.T) (paths []string) {
	t.Helper()
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		others := []string{"bin", "data", "dist", "node_modules", "testdata"}
		if entry.IsDir() && path != "../.." && (name[0] == '.' || slices.Contains(others, name)) {
			return filepath.SkipDir
		}
		if filepath.Ext(name) == ".md" {
			relative, err := filepath.Rel("../..", path)
			if err != nil {
				return err
			}
			paths = append(paths, filepath.ToSlash(relative))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func readPage(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// flagOfHelp matches a flag in the help text of parleyd, with its default if it has one.
var flagOfHelp = regexp.MustCompile(`(?m)^ +(--[a-z-]+) .*?(?: \(default ([^)]+)\))?$`)

// TestSettingsAreListed compares the table of settings with the help text of parleyd.
func TestSettingsAreListed(t *testing.T) {
	help := readPage(t, "server/internal/config/testdata/help.txt")
	guide := readPage(t, "server/README.md")
	_, flags, _ := strings.Cut(help, "\nFlags:\n")
	matches := flagOfHelp.FindAllStringSubmatch(flags, -1)
	if len(matches) == 0 {
		t.Fatalf("the help text has no flags:\n%s", help)
	}
	for _, match := range matches {
		if row := "\n| " + match[1] + " | " + match[2]; !strings.Contains(guide, row) {
			t.Errorf("server/README.md: the table of settings has no row %q", row)
		}
	}
}
