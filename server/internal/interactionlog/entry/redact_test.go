package entry

import (
	"regexp"
	"testing"
)

// TestRedactOnce checks that no expression matches in the replacement of another one.
func TestRedactOnce(t *testing.T) {
	r := redactor{regexp.MustCompile(`\d`), regexp.MustCompile(`[a-z]`), regexp.MustCompile(`.b`)}
	if got, want := string(r.redact([]byte("1xB"))), redacted+redacted+"B"; got != want {
		t.Errorf("text = %q, want %q", got, want)
	}
	if got := string(r.redact([]byte("\xffB"))); got != "\xffB" {
		t.Errorf("text = %q, want it unchanged", got)
	}
}
