package parleydtest

import (
	"fmt"
	"strings"
	"testing"
)

// TestLogOfKilledProcess: the part of a line that a killed process wrote last is in the text, but it is no entry.
func TestLogOfKilledProcess(t *testing.T) {
	const text = `{"msg":"serving grpc"}` + "\npanic: none\n" + `{"msg":"ca`
	log := Log{more: make(chan struct{})}
	log.Read(strings.NewReader(text))
	var got []string
	for _, entry := range log.Entries() {
		got = append(got, fmt.Sprint(entry["msg"]))
	}
	if want := "serving grpc," + NotAnEntry; strings.Join(got, ",") != want {
		t.Errorf("entries = %q, want %q", got, want)
	}
	if log.Text() != text {
		t.Errorf("text = %q, want %q", log.Text(), text)
	}
}
