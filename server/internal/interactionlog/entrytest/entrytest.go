// Package entrytest makes changes and entries for tests of the interaction log. It spells entries
// without the encoder, so that tests compare two implementations. Start at [Sample].
package entrytest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// Noon returns the time of the messages in tests.
func Noon() time.Time { return time.Date(2026, 11, 20, 12, 0, 0, 123456789, time.UTC) }

// Appended returns the change of appending a message, at Noon unless the message has a time.
func Appended(tb testing.TB, tenant, id string, m *parleyv1.Message) store.Change {
	tb.Helper()
	if m.CreateTime == nil {
		m.CreateTime = timestamppb.New(Noon())
	}
	body, err := proto.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return store.Change{
		Tenant: tenant, ConversationID: id, Kind: parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED,
		Time: m.GetCreateTime().AsTime(), Message: Framed(body),
	}
}

// Framed returns an encoded message as a frame of the store.
func Framed(body []byte) store.Frame {
	return store.AppendFrame(nil, body)
}

// Sample is an entry to write to a file. Empty fields except Content get a default value.
type Sample struct{ At, Conversation, Tenant, Agent, Role, Content string }

// String returns the entry as the encoder writes it, with the line break.
func (s Sample) String() string {
	or := func(field *string, value string) {
		if *field == "" {
			*field = value
		}
	}
	or(&s.At, "2026-11-20T09:00:00.000000Z")
	or(&s.Conversation, "s")
	or(&s.Tenant, "default")
	or(&s.Agent, "User")
	or(&s.Role, "user")
	return `{"timestamp":"` + s.At + `","session_id":"` + escape(s.Conversation) + `","tenant":"` + escape(s.Tenant) +
		`","agent":"` + escape(s.Agent) + `","role":"` + s.Role + `","content":"` + escape(s.Content) +
		`","metadata":{"turn_number":1}}` + "\n"
}

// Lines returns entries that differ only in their contents.
func Lines(contents ...string) string {
	var b strings.Builder
	for _, content := range contents {
		b.WriteString(Sample{Content: content}.String())
	}
	return b.String()
}

// escape returns a text as it stands in a JSON string. It escapes what JSON requires and replaces invalid
// UTF-8 by U+FFFD.
func escape(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < ' ':
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
