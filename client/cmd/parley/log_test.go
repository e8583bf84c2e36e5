package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestLogLines(t *testing.T) {
	const user, assistant, tool = parleyv1.Role_ROLE_USER, parleyv1.Role_ROLE_ASSISTANT, parleyv1.Role_ROLE_TOOL
	incomplete := &structpb.Struct{Fields: map[string]*structpb.Value{"status": structpb.NewStringValue("incomplete")}}
	long := strings.Repeat("ö", 10_000)
	tests := []struct {
		interaction *parleyv1.Interaction
		want        string
	}{
		{&parleyv1.Interaction{Role: user, Agent: "User", Content: "hi"}, "a user: hi"},
		{&parleyv1.Interaction{Role: user, Agent: "Mary", Content: "hi"}, "a user Mary: hi"},
		{&parleyv1.Interaction{Role: assistant, Agent: "User", Content: "hi"}, "a assistant User: hi"},
		{
			&parleyv1.Interaction{Role: assistant, Agent: "wri\nter\x1b", Content: long, Metadata: incomplete},
			"a assistant wri ter\uFFFD, incomplete: " + long,
		},
		{&parleyv1.Interaction{Role: tool, Agent: "price"}, "a tool price:"},
		{&parleyv1.Interaction{Role: user, Content: "one\n\ntwo\x1b[2J\n"}, "a user: one\n    \n    two\uFFFD[2J"},
	}
	for _, test := range tests {
		test.interaction.ConversationId, test.interaction.Timestamp = "a", timestamppb.New(noon())
		if diff := cmp.Diff("2026-11-20T12:00:05Z "+test.want+"\n",
			printedEntry(t, console{outTerminal: true, getenv: noColour}, nil, test.interaction)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", test.interaction, diff)
		}
	}
}

func noColour(name string) string { return map[string]string{"NO_COLOR": "1"}[name] }

// printedEntry returns what a logWriter prints for an entry.
func printedEntry(t *testing.T, c console, match *regexp.Regexp, i *parleyv1.Interaction) string {
	t.Helper()
	var out strings.Builder
	c.out = &out
	if err := (&logWriter{app: &app{console: c}, match: match}).show(i); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestLogColours checks that on a terminal each occurrence of the matched text is in colour.
func TestLogColours(t *testing.T) {
	i := &parleyv1.Interaction{
		Timestamp: timestamppb.New(noon()), ConversationId: "goals", Role: parleyv1.Role_ROLE_USER, Agent: "User",
		Content: "Goals.\nGOALS\x1b and (more) goal",
	}
	const plain = "2026-11-20T12:00:05Z goals user: Goals.\n    GOALS\uFFFD and (more) goal\n"
	match := regexp.MustCompile("(?i)" + regexp.QuoteMeta("goals"))
	colours := func(string) string { return "" }
	head := "\x1b[2m2026-11-20T12:00:05Z\x1b[0m \x1b[1mgoals\x1b[0m \x1b[36muser:\x1b[0m "
	tests := []struct {
		name   string
		c      console
		match  *regexp.Regexp
		output string
	}{
		{
			"a terminal",
			console{outTerminal: true, getenv: colours},
			match,
			head + "\x1b[1;31mGoals\x1b[0m.\n    \x1b[1;31mGOALS\x1b[0m\uFFFD and (more) goal\n",
		},
		{"no match", console{outTerminal: true, getenv: colours}, nil, head + "Goals.\n    GOALS\uFFFD and (more) goal\n"},
		{"a terminal without colours", console{outTerminal: true, getenv: noColour}, match, plain},
		{"a file", console{getenv: colours}, match, strings.ReplaceAll(plain, "\uFFFD", "\x1b")},
	}
	for _, test := range tests {
		if diff := cmp.Diff(test.output, printedEntry(t, test.c, test.match, i)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

// TestLogPages checks that the log commands read pages up to the limit.
func TestLogPages(t *testing.T) {
	f, address := serveLog(t)
	var all []string
	for n := range 2500 {
		content := strings.Repeat("x", n%7)
		f.append("a", n, 0, content)
		all = append(all, content)
	}
	tests := []struct {
		args  []string
		want  []string
		calls int
		more  bool
	}{
		{[]string{"session", "a"}, all, 3, false},
		{[]string{"session", "a", "-n", "0"}, all, 3, false},
		{[]string{"session", "a", "-n", "1500"}, all[:1500], 2, true},
		{[]string{"session", "a", "-n", "1500", "--page-token", "1500"}, all[1500:], 1, false},
		{[]string{"session", "a", "-n", "2500"}, all, 3, false},
	}
	for _, test := range tests {
		before := f.listCount()
		stdout, stderr, code := runOnce(t.Context(), "", append([]string{"--address", address, "log"}, test.args...)...)
		var got []string
		for line := range strings.Lines(stdout) {
			_, content, _ := strings.Cut(strings.TrimSpace(line), "user:")
			got = append(got, strings.TrimSpace(content))
		}
		if diff := cmp.Diff(test.want, got); diff != "" || code != 0 {
			t.Errorf("%v: exit code %d, %d entries; want 0, %d entries", test.args, code, len(got), len(test.want))
		}
		if calls := f.listCount() - before; calls != test.calls || strings.Contains(stderr, "there are more") != test.more {
			t.Errorf("%v: %d calls, want %d; standard error %q", test.args, calls, test.calls, stderr)
		}
	}
}

func TestLogReportsSkippedEntries(t *testing.T) {
	_, address := serveLog(t)
	stdout, stderr, code := runOnce(t.Context(), "", "--address", address, "log", "search", "x")
	if want := "skipped 1 log entry that cannot be read; the server's own log lists them\n"; stdout != "" ||
		stderr != want || code != 0 {
		t.Errorf("standard output %q, standard error %q, exit code %d; want %q", stdout, stderr, code, want)
	}
}

// TestLogNamesServersThatDoNotAnswer checks that a server is named once, not for each page.
func TestLogNamesServersThatDoNotAnswer(t *testing.T) {
	f, address := serveLog(t)
	f.unreachable = []string{"10.0.0.3:50051"}
	for i := range 2000 {
		f.append("a", i, float64(i), "text")
	}
	const want = "entries of servers that did not answer are missing: 10.0.0.3:50051\n"
	for _, args := range [][]string{{"session", "a"}, {"search", "text"}} {
		_, stderr, code := runOnce(t.Context(), "", append([]string{"--address", address, "log"}, args...)...)
		if !strings.HasPrefix(stderr, want) && !strings.HasSuffix(stderr, want) || strings.Count(stderr, want) != 1 || code != 0 {
			t.Errorf("standard error of %v = %q, exit code %d, want %q", args, stderr, code, want)
		}
	}
}

// TestEraseAsks checks that erase on a terminal needs the answer yes.
func TestEraseAsks(t *testing.T) {
	const question = "permanently erase all messages of conversation a from the log? [y/N] "
	tests := []struct {
		name   string
		args   []string
		answer func(s *terminal)
		want   string
		code   int
		erased int
	}{
		{"y", nil, func(s *terminal) { s.enter("y") }, question + "erased 1 entry of a\n", 0, 1},
		{"yes", nil, func(s *terminal) { s.enter(" YES ") }, question + "erased 1 entry of a\n", 0, 1},
		{"no", nil, func(s *terminal) { s.enter("no") }, question + "parley: nothing was done\n", 1, 0},
		{"an empty line", nil, func(s *terminal) { s.enter("") }, question + "parley: nothing was done\n", 1, 0},
		{"Ctrl-D", nil, func(s *terminal) { s.keys.Close() }, question + "parley: nothing was done\n", 1, 0},
		{"Ctrl-C", nil, func(s *terminal) { s.interrupt() }, question + "\nparley: interrupted\n", 1, 0},
		{"--yes", []string{"--yes"}, nil, "erased 1 entry of a\n", 0, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f, address := serveLog(t)
			s := openTerminal(t.Context(), t, append([]string{"--address", address, "log", "erase", "a"}, test.args...)...)
			if test.answer != nil {
				s.expect("[y/N] ")
				test.answer(s)
			}
			s.expectEnd(test.code)
			if s.screen.String() != test.want || len(f.erased) != test.erased {
				t.Errorf("screen %q, %d erased; want %q, %d", s.screen.String(), len(f.erased), test.want, test.erased)
			}
		})
	}
	f, address := serveLog(t)
	if stdout, stderr, code := runOnce(t.Context(), "", "--address", address, "log", "erase", "a"); stdout != "erased 1 entry of a\n" || len(f.erased) != 1 {
		t.Errorf("erase without a terminal: %q, %q, exit code %d; want 1 entry, 0", stdout, stderr, code)
	}
}

func TestLogWithFullOutput(t *testing.T) {
	f, address := serveLog(t)
	f.append("a", 1, 0, "one")
	for _, args := range [][]string{{"log", "session", "a"}, {"log", "session", "a", "--output", "json"}} {
		var errs strings.Builder
		code := run(t.Context(), append([]string{"--address", address}, args...), console{
			program: "parley", out: fullDisk{}, err: &errs, getenv: func(string) string { return "" }, now: noon,
		})
		if errs.String() != "parley: no space left on device\n" || code != 1 {
			t.Errorf("%v: standard error %q, exit code %d; want 1", args, errs.String(), code)
		}
	}
}
