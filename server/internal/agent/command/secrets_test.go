package command

import (
	"errors"
	"strings"
	"testing"

	"github.com/parleyhq/parley/server/internal/agent"
)

// TestErrorsTellNoSecret has programs that tell the key they were given in all the ways that an
// error quotes, cut in its middle, too.
func TestErrorsTellNoSecret(t *testing.T) {
	const key = "sk-marked-0123456789abcdefghijklmnopqrstuvwxyz"
	t.Setenv("PARLEY_TEST_KEY", key)
	t.Setenv("PARLEY_TEST_HEADER", "Authorization: Bearer marked+token/1\r\n")
	t.Setenv("TZ", "Etc/UTC")
	stderr := func(script string) string { return script + "; exit 1" }
	line := func(before, json string) string {
		return "echo '" + strings.ReplaceAll(json, "KEY", before+`'"$PARLEY_TEST_KEY"'`) + "'"
	}
	tests := []struct {
		name, format, script string
		want                 string // in the message
	}{
		{"standard error", "", stderr(`echo "bad key $PARLEY_TEST_KEY!" >&2`), "bad key [redacted]!"},
		{"a word of a header", "", stderr(`echo "no marked+token/1 here, nor marked%2Btoken%2F1" >&2`), "no [redacted] here, nor [redacted]"},
		{"with control characters", "", stderr(`printf 'sk-marked-\033\0010123456789abcdefghijklmnopqrstuvwxyz!' >&2`), ": [redacted]!"},
		{"the end of standard error begins in it", "", stderr(`printf %s "$PARLEY_TEST_KEY" >&2; head -c 4080 /dev/zero | tr '\0' x >&2`), ": [redacted]xxx"},
		{"standard error is nothing else", "", stderr(`for i in 1 2 3 4 5 6 7 8 9 10; do for j in 1 2 3 4 5 6 7 8 9 10; do printf "%s\n" "$PARLEY_TEST_KEY" >&2; done; done`), ": [redacted]\n[redacted]\n"},
		{"what anybody may know", "", stderr(`echo "zone $TZ" >&2`), "zone Etc/UTC"},
		{"no JSON", FormatStreamJSON, `echo "bad key $PARLEY_TEST_KEY!"`, `object: "bad key [redacted]!"`},
		{"no JSON, cut", FormatStreamJSON, line(strings.Repeat("x", 60), "KEY"), `x[redacted]"`},
		{"a result", FormatStreamJSON, line("bad key ", `{"type":"result","is_error":true,"result":"KEY!"}`), "bad key [redacted]!"},
		{"a result, cut", FormatStreamJSON, line(strings.Repeat("x", maxReport-20), `{"type":"result","is_error":true,"result":"KEY!"}`), "x[redacted]!"},
		{"errors of a result", FormatStreamJSON, line("", `{"type":"result","is_error":true,"errors":["KEY","KEY"]}`), "[redacted]; [redacted]"},
		{"a message", FormatStreamJSON, line("", `{"type":"assistant","error":"KEY"}`), "[redacted]"},
		{"a message, cut", FormatStreamJSON, line(strings.Repeat("x", maxReport-20), `{"type":"assistant","error":"auth","message":{"content":[{"type":"text","text":"KEY!"}]}}`), "x[redacted]!"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			a := made(t, Config{Command: []string{"/bin/sh", "-c", test.script}, Format: test.format, Env: []string{"PARLEY_TEST_KEY", "PARLEY_TEST_HEADER", "TZ"}})
			_, err := answer(t.Context(), a, saying("Hi"))
			failure, ok := errors.AsType[*agent.Error](err)
			if !ok {
				t.Fatalf("error is %v", err)
			}
			if m := failure.Message; !strings.Contains(m, test.want) || strings.Contains(m, "marked") || strings.Contains(m, "cdef") || len(m) > maxReport+100 {
				t.Errorf("message of %d bytes: %q, want %q in it", len(m), m, test.want)
			}
		})
	}
}

// TestShortSecretsKeepErrorsShort: "[redacted]" is longer than what it stands for.
func TestShortSecretsKeepErrorsShort(t *testing.T) {
	said := tail{kept: []byte(strings.Repeat("é1234 ", 600) + "é1234")}
	if got := said.text([]string{"1234"}); len(got) > tailBytes || !strings.HasSuffix(got, " é[redacted]") {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}
