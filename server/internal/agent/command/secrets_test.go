package command

import (
	"errors"
	"strings"
	"testing"

	"github.com/parleyhq/parley/server/internal/agent"
)

// TestErrorsContainNoSecret: errors do not contain a key that the program writes, even if the text
// is truncated within it.
func TestErrorsContainNoSecret(t *testing.T) {
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
		want                 string // A part of the message.
	}{
		{"standard error", "", stderr(`echo "bad key $PARLEY_TEST_KEY!" >&2`), "bad key [redacted]!"},
		{
			"a word of a header", "", stderr(`echo "no marked+token/1 here, nor marked%2Btoken%2F1" >&2`),
			"no [redacted] here, nor [redacted]",
		},
		{
			"with control characters", "", stderr(`printf 'sk-marked-\033\0010123456789abcdefghijklmnopqrstuvwxyz!' >&2`),
			": [redacted]!",
		},
		{
			"the end of standard error begins within the key", "",
			stderr(`printf %s "$PARLEY_TEST_KEY" >&2; head -c 4080 /dev/zero | tr '\0' x >&2`), ": [redacted]xxx",
		},
		{
			"standard error contains only the key", "",
			stderr(`for i in 1 2 3 4 5 6 7 8 9 10; do for j in 1 2 3 4 5 6 7 8 9 10; do printf "%s\n" "$PARLEY_TEST_KEY" >&2; done; done`),
			": [redacted]\n[redacted]\n",
		},
		{"a variable that is not secret", "", stderr(`echo "zone $TZ" >&2`), "zone Etc/UTC"},
		{"not JSON", FormatStreamJSON, `echo "bad key $PARLEY_TEST_KEY!"`, `object: "bad key [redacted]!"`},
		{"not JSON, truncated", FormatStreamJSON, line(strings.Repeat("x", 60), "KEY"), `x[redacted]"`},
		{
			"a result", FormatStreamJSON, line("bad key ", `{"type":"result","is_error":true,"result":"KEY!"}`),
			"bad key [redacted]!",
		},
		{
			"a result, truncated", FormatStreamJSON,
			line(strings.Repeat("x", maxReport-20), `{"type":"result","is_error":true,"result":"KEY!"}`), "x[redacted]!",
		},
		{
			"errors of a result", FormatStreamJSON, line("", `{"type":"result","is_error":true,"errors":["KEY","KEY"]}`),
			"[redacted]; [redacted]",
		},
		{"a message", FormatStreamJSON, line("", `{"type":"assistant","error":"KEY"}`), "[redacted]"},
		{
			"a message, truncated", FormatStreamJSON,
			line(strings.Repeat("x", maxReport-20),
				`{"type":"assistant","error":"auth","message":{"content":[{"type":"text","text":"KEY!"}]}}`),
			"x[redacted]!",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			a := newAgent(t, Config{
				Command: []string{"/bin/sh", "-c", test.script}, Format: test.format,
				Env: []string{"PARLEY_TEST_KEY", "PARLEY_TEST_HEADER", "TZ"},
			})
			_, err := answer(t.Context(), a, newRequest("Hi"))
			failure, ok := errors.AsType[*agent.Error](err)
			if !ok {
				t.Fatalf("Respond = %v, want an *agent.Error", err)
			}
			if m := failure.Message; !strings.Contains(m, test.want) || strings.Contains(m, "marked") ||
				strings.Contains(m, "cdef") || len(m) > maxReport+100 {
				t.Errorf("message of %d bytes = %q, want one with %q", len(m), m, test.want)
			}
		})
	}
}

// TestShortSecretsKeepErrorsShort: the text is limited although "[redacted]" is longer than the
// secret.
func TestShortSecretsKeepErrorsShort(t *testing.T) {
	output := tail{kept: []byte(strings.Repeat("é1234 ", 600) + "é1234")}
	if got := output.text([]string{"1234"}); len(got) > tailBytes || !strings.HasSuffix(got, " é[redacted]") {
		t.Errorf("text() = %d bytes %q, want at most tailBytes", len(got), got)
	}
}
