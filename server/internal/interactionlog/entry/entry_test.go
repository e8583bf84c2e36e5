package entry

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/interactionlog/entrytest"
	"github.com/parleyhq/parley/store"
)

// encoded returns the entry of a change without its line break.
func encoded(tb testing.TB, e *Encoder, c *store.Change) string {
	tb.Helper()
	b, _, err := e.Append([]byte("before"), c)
	if err != nil {
		tb.Fatal(err)
	}
	text, ok := strings.CutPrefix(string(b), "before")
	text, complete := strings.CutSuffix(text, "\n")
	if !ok || !complete {
		tb.Fatalf("Append = %q, want the prefix and a line", b)
	}
	return text
}

func TestEncode(t *testing.T) {
	const head = `{"timestamp":"2026-11-20T12:00:00.123456Z","session_id":"c1","tenant":"acme",`
	for _, test := range []struct {
		name    string
		message *parleyv1.Message
		want    string
	}{
		{"nothing", &parleyv1.Message{}, `"agent":"","role":"unspecified","content":"","metadata":{"turn_number":0}}`},
		{
			"a user", &parleyv1.Message{
				Sequence: 1, Exchange: 1, Role: parleyv1.Role_ROLE_USER,
				Content: "Grüße, \"Welt\"\n\\ 你好 <&>\u2028\x00\x1f\x7f",
			},
			`"agent":"User","role":"user","content":"Grüße, \"Welt\"\n\\ 你好 <&>` + "\u2028" + `\u0000\u001f` +
				"\x7f" + `","metadata":{"turn_number":1,"exchange":1}}`,
		},
		{
			"a user by name",
			&parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Metadata: map[string]string{"user": "Ann", "a": "1"}},
			`"agent":"Ann","role":"user","content":"","metadata":{"turn_number":0,"a":"1","user":"Ann"}}`,
		},
		{
			"an agent with all that there is", &parleyv1.Message{
				Sequence: 12, Exchange: 3, Role: parleyv1.Role_ROLE_ASSISTANT, Agent: "writer", Content: "ok", TurnId: "t1",
				Status: parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE,
				Usage:  &parleyv1.Usage{Model: "m\t1", InputTokens: 10, OutputTokens: 20, CachedInputTokens: 5, ReasoningTokens: 7},
				StructuredData: []*parleyv1.StructuredData{
					{Type: "list", Value: structpb.NewNumberValue(1)}, {Type: `"b"`}, {}, {Type: "list"},
				},
				Metadata: map[string]string{"model": "mine", "turn_number": "x", "zone": "eu", "\n": ""},
			},
			`"agent":"writer","role":"assistant","content":"ok","metadata":{"model":"m\t1","turn_number":12,"exchange":3,` +
				`"tokens":{"input":10,"output":20,"cached_input":5,"reasoning":7},"turn_id":"t1","status":"incomplete",` +
				`"structured_data_types":["list","\"b\""],"\n":"","zone":"eu"}}`,
		},
		{
			"a native form and reasoning", &parleyv1.Message{
				Role: parleyv1.Role_ROLE_ASSISTANT, Reasoning: "private thought",
				Native:         &parleyv1.Native{Type: `provider."x"`, Value: []byte("private bytes")},
				StructuredData: []*parleyv1.StructuredData{{Type: "list"}},
				Metadata:       map[string]string{"native": "mine", "m": "1"},
			},
			`"agent":"","role":"assistant","content":"","metadata":{"turn_number":0,"structured_data_types":["list"],` +
				`"native":{"type":"provider.\"x\"","bytes":13},"m":"1"}}`,
		},
		{
			"keys that ours leave free", &parleyv1.Message{
				Role: parleyv1.Role_ROLE_SYSTEM, Usage: &parleyv1.Usage{OutputTokens: 4},
				Metadata: map[string]string{
					"model": "mine", "tokens": "many", "status": "fine",
					"exchange": "e", "turn_id": "t", "structured_data_types": "s", "native": "n",
				},
			},
			`"agent":"","role":"system","content":"","metadata":{"turn_number":0,"tokens":{"output":4},` +
				`"exchange":"e","model":"mine","native":"n","status":"fine","structured_data_types":"s","turn_id":"t"}}`,
		},
		{
			"a tool", &parleyv1.Message{
				Role: parleyv1.Role_ROLE_TOOL, Status: parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE,
				ToolResult: &parleyv1.ToolResult{CallId: "1", Name: "weather", Content: "sunny"},
			},
			`"agent":"weather","role":"tool","content":"sunny","metadata":{"turn_number":0,"status":"complete"}}`,
		},
		{
			"a tool of an agent, with a text", &parleyv1.Message{
				Role: parleyv1.Role_ROLE_TOOL, Agent: "guide", Content: "it is sunny",
				ToolResult: &parleyv1.ToolResult{Name: "weather", Content: "sunny"},
			},
			`"agent":"guide","role":"tool","content":"it is sunny","metadata":{"turn_number":0}}`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := entrytest.Appended(t, "acme", "c1", test.message)
			if diff := cmp.Diff(head+test.want, encoded(t, new(Encoder), &c)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestEncodeRemoval checks the entries of removed messages, and that they can be parsed.
func TestEncodeRemoval(t *testing.T) {
	for _, test := range []struct {
		tenant  string
		removal store.Removal
		count   int
		want    string
	}{
		{
			"acme",
			store.Removal{After: 4},
			3,
			`"tenant":"acme","agent":"parley","role":"system","content":"3 messages removed after message 4",` +
				`"metadata":{"turn_number":0,"removed_after":4,"removed_count":3}}`,
		},
		{
			"",
			store.Removal{},
			1,
			`"tenant":"default","agent":"parley","role":"system","content":"1 message removed after message 0",` +
				`"metadata":{"turn_number":0,"removed_after":0,"removed_count":1}}`,
		},
		{
			"acme",
			store.Removal{Sequences: []int32{2, 7}},
			2,
			`"tenant":"acme","agent":"parley","role":"system","content":"2 messages removed",` +
				`"metadata":{"turn_number":0,"removed_sequences":[2,7],"removed_count":2}}`,
		},
	} {
		c := &store.Change{
			Kind: parleyv1.ChangeKind_CHANGE_KIND_CLEARED, Tenant: test.tenant, ConversationID: "c1", Time: entrytest.Noon(),
			Count: test.count, Removal: &test.removal,
		}
		line := encoded(t, new(Encoder), c)
		want := `{"timestamp":"2026-11-20T12:00:00.123456Z","session_id":"c1",` + test.want
		if diff := cmp.Diff(want, line); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if e, err := Parse([]byte(line)); err != nil || e.Interaction.GetConversationId() != "c1" {
			t.Errorf("Parse(%s) = %v, %v", line, e, err)
		}
		if h, ok := ParseHead([]byte(line)); !ok || string(h.ConversationID) != "c1" {
			t.Errorf("ParseHead(%s) = %v, %t", line, h, ok)
		}
	}
}

// TestEncodeTime checks the timestamps of entries.
func TestEncodeTime(t *testing.T) {
	changed := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, test := range []struct {
		stamp *timestamppb.Timestamp
		want  string
	}{
		{timestamppb.New(entrytest.Noon()), "2026-11-20T12:00:00.123456Z"},
		{timestamppb.New(time.Date(2024, 2, 29, 23, 59, 59, 999999999, time.UTC)), "2024-02-29T23:59:59.999999Z"},
		{timestamppb.New(time.Date(9, 1, 1, 0, 0, 0, 1000, time.UTC)), "0009-01-01T00:00:00.000001Z"},
		{&timestamppb.Timestamp{Seconds: -1, Nanos: 5000}, "1969-12-31T23:59:59.000005Z"},
		{&timestamppb.Timestamp{Seconds: 1 << 60}, "2026-01-02T03:04:05.000000Z"},
		{&timestamppb.Timestamp{Seconds: -1 << 60}, "2026-01-02T03:04:05.000000Z"},
	} {
		c := entrytest.Appended(t, "acme", "c1", &parleyv1.Message{CreateTime: test.stamp})
		c.Time = changed
		b, at, err := new(Encoder).Append(nil, &c)
		if err != nil {
			t.Fatal(err)
		}
		if head, ok := ParseHead(b); !ok || string(head.Timestamp) != test.want || at.Format(TimestampLayout) != test.want {
			t.Errorf("%v: %q and %v, want %s", test.stamp, head.Timestamp, at, test.want)
		}
	}
}

// TestEncodeInvalid encodes bodies that are not messages.
func TestEncodeInvalid(t *testing.T) {
	for _, body := range [][]byte{
		{0x80},
		{0x22, 5, 'a'},
		{0x2a, 1, 0x0a},
		{0x3a, 1, 0x12},
		{0x6a, 1, 0x10},
		{0x72, 1, 0x12},
		{0x7a, 1, 0x08},
		{0x0b},
		{0x92, 1, 1, 0x0a},
	} {
		c := &store.Change{ConversationID: "c1", Message: entrytest.Framed(body)}
		if b, _, err := new(Encoder).Append([]byte("before"), c); err == nil || string(b) != "before" {
			t.Errorf("Append(%x) = %q, %v, want an error and nothing added", body, b, err)
		}
	}
}

func TestRedact(t *testing.T) {
	e := &Encoder{redact: redactor{regexp.MustCompile(`\d{4}`), regexp.MustCompile(`(?i)secret|x*`)}}
	c := entrytest.Appended(t, "acme1234", "c1234", &parleyv1.Message{
		Sequence: 1, Role: parleyv1.Role_ROLE_USER, Content: "card 1234 5678, SECRET\nxx.", TurnId: "t1234",
		Usage:          &parleyv1.Usage{Model: "m1234"},
		StructuredData: []*parleyv1.StructuredData{{Type: "secret"}, {Type: "1234"}},
		Native:         &parleyv1.Native{Type: "of 1234"},
		Metadata:       map[string]string{"user": "Ann 1234", "k1234": "v1234", "k5678": "gone", "plain": "12"},
	})
	want := `{"timestamp":"2026-11-20T12:00:00.123456Z","session_id":"c1234","tenant":"acme1234",` +
		`"agent":"Ann [redacted]","role":"user",` +
		`"content":"card [redacted] [redacted], [redacted]\n[redacted].",` +
		`"metadata":{"model":"m[redacted]","turn_number":1,"turn_id":"t1234",` +
		`"structured_data_types":["[redacted]"],"native":{"type":"of [redacted]","bytes":0},"k[redacted]":"`
	got := encoded(t, e, &c)
	rest, ok := strings.CutPrefix(got, want)
	if !ok || !strings.HasSuffix(rest, `","plain":"12","user":"Ann [redacted]"}}`) {
		t.Errorf("got  %s\nwant %s…", got, want)
	}
	if n := strings.Count(got, "k[redacted]"); n != 1 {
		t.Errorf("%d members have the same key, want 1", n)
	}
	tool := entrytest.Appended(t, "acme", "c1", &parleyv1.Message{
		Role: parleyv1.Role_ROLE_TOOL, ToolResult: &parleyv1.ToolResult{Name: "secret", Content: "1234"},
	})
	agent := entrytest.Appended(t, "acme", "c1", &parleyv1.Message{Role: parleyv1.Role_ROLE_ASSISTANT, Agent: "secret"})
	for _, c := range []*store.Change{&tool, &agent} {
		if line := encoded(t, e, c); strings.Contains(line, "secret") || strings.Contains(line, "1234\"") {
			t.Errorf("not redacted: %s", line)
		}
	}
}

func TestParse(t *testing.T) {
	const rest = `"session_id":"c1","role":"user","content":"hi"`
	deep := strings.Repeat(`{"a":`, maxMetadataDepth) + "1" + strings.Repeat("}", maxMetadataDepth)
	for _, test := range []struct{ text, want string }{
		{`{"timestamp":"2026-11-20T12:00:00.123456Z",` + rest + `}`, `default 12:00:00.123456 c1 "" ROLE_USER "hi" {}`},
		{`{"timestamp":"2026-11-20T13:00:00+01:00",` + rest + `}`, `default 12:00:00 c1 "" ROLE_USER "hi" {}`},
		{
			`{"timestamp":"2026-11-20T12:00:00.5",` + rest + `,"tenant":"","agent":"a"}`,
			`default 12:00:00.5 c1 "a" ROLE_USER "hi" {}`,
		},
		{
			` { "metadata" : {"turn_number":7,"x":[{"y":null}]}, "content":"\u00e4\ud83d\ude00\/", ` +
				`"unknown":[1], "role":"tool", "tenant":"t", ` +
				`"session_id":"", "timestamp":"2026-11-20T12:00:00Z" } `,
			`t 12:00:00  "" ROLE_TOOL "ä😀/" {"turn_number":7,"x":[{"y":null}]}`,
		},
		{
			`{"timestamp":"2026-11-20T12:00:00Z",` + rest + `,"metadata":` + deep + `}`,
			`default 12:00:00 c1 "" ROLE_USER "hi" ` + deep,
		},
		{
			`{"timestamp":"2026-11-20T12:00:00Z",` + rest + `,"metadata":null,"content":"` + "\xff" + `"}`,
			`default 12:00:00 c1 "" ROLE_USER "` + "\ufffd" + `" {}`,
		},

		{``, ""},
		{`null`, ""},
		{`{}`, ""},
		{`[]`, ""},
		{`{"timestamp":"2026-11-20T12:00:00Z",` + rest, ""},
		{`{"timestamp":"2026-11-20T12:00:00Z",` + rest + `}{}`, ""},
		{`{` + rest + `}`, ""},
		{`{"timestamp":"2026-11-20T12:00:00Z","role":"user","content":"hi"}`, ""},
		{`{"timestamp":"2026-11-20T12:00:00Z","session_id":"c1","content":"hi"}`, ""},
		{`{"timestamp":"2026-11-20T12:00:00Z","session_id":"c1","role":"user"}`, ""},
		{`{"timestamp":"2026-11-20T12:00:00Z","session_id":"c1","role":"user","content":null}`, ""},
		{`{"timestamp":"2026-11-20T12:00:00Z","session_id":"c1","role":"robot","content":"hi"}`, ""},
		{`{"timestamp":"2026-11-20T12:00:00Z","session_id":"c1","role":"unspecified","content":"hi"}`, ""},
		{`{"timestamp":"2026-11-20T12:00:00Z","session_id":1,"role":"user","content":"hi"}`, ""},
		{`{"timestamp":"20 November",` + rest + `}`, ""},
		{`{"timestamp":"0000-11-20T12:00:00Z",` + rest + `}`, ""},
		{`{"timestamp":"2026-11-20T12:00:00Z",` + rest + `,"metadata":"none"}`, ""},
		{`{"timestamp":"2026-11-20T12:00:00Z",` + rest + `,"metadata":{"a":` + deep + `}}`, ""},
		{`{"timestamp":"2026-11-20T12:00:00Z",` + rest + `,"metadata":{"a":1e999}}`, ""},
	} {
		got := ""
		l, err := Parse([]byte(test.text))
		if err == nil {
			i := l.Interaction
			metadata, jsonErr := json.Marshal(i.GetMetadata().AsMap())
			if jsonErr != nil {
				t.Fatal(jsonErr)
			}
			got = fmt.Sprintf("%s %s %s %q %s %q %s", l.Tenant,
				i.GetTimestamp().AsTime().Format("15:04:05.999999"), i.GetConversationId(),
				i.GetAgent(), i.GetRole(), i.GetContent(), metadata)
		} else if !errors.Is(err, ErrInvalid) || strings.Contains(err.Error(), "hi") {
			t.Errorf("%s: %v", test.text, err)
		}
		if got != test.want {
			t.Errorf("%s:\ngot  %s, %v\nwant %s", test.text, got, err, test.want)
		}
	}
}

// TestParseErrors checks the texts of errors, which operators who edit files read.
func TestParseErrors(t *testing.T) {
	const rest = `{"timestamp":"2026-11-20T12:00:00Z","role":"user","content":"hi","session_id":`
	many := strings.Repeat(",0", maxMetadataValues-2) // The two brackets count, too.
	for text, want := range map[string]string{
		`[]`:                                  "it has the JSON type array, not object",
		`5`:                                   "it has the JSON type number, not object",
		rest + `17}`:                          "session_id has the JSON type number, not string",
		rest + `"c1","metadata":[]}`:          "metadata is not an object or has a number that is too large",
		rest + `"c1","metadata":{"a":1e999}}`: "metadata is not an object or has a number that is too large",
		rest + `"c1","metadata":{"a":[0` + many + `,0]}}`: "metadata has more than about 100000 values",
		rest + `"c1","metadata":{"a":[0` + many + `]}}`:   "",
		`{"content"}`: "invalid character '}' after object key",
	} {
		_, err := Parse([]byte(text))
		if want != "" {
			want = ErrInvalid.Error() + ": " + want
		}
		if got := fmt.Sprint(err); got != want && (err != nil || want != "") {
			t.Errorf("Parse(%.100s): %s, want %s", text, got, want)
		}
	}
}

func TestParseHead(t *testing.T) {
	c := entrytest.Appended(t, "", "c1", &parleyv1.Message{Role: parleyv1.Role_ROLE_USER})
	line := encoded(t, new(Encoder), &c)
	head, ok := ParseHead([]byte(line))
	if !ok || string(head.Timestamp) != "2026-11-20T12:00:00.123456Z" ||
		string(head.ConversationID) != "c1" ||
		string(head.Tenant) != "default" {
		t.Errorf("ParseHead(%s) = %q %q %q, %v", line, head.Timestamp, head.ConversationID, head.Tenant, ok)
	}
	for _, text := range []string{
		"", "{", `{"timestamp":"`, line[:40], line[:60], line[:75],
		line[:len(`{"timestamp":"2026-11-20T12:00:00.123456Z","session_id":"c1","tenant":"default`)],
		" " + line, strings.Replace(line, ".123456Z", ".123Z", 1), strings.Replace(line, "T12", " 12", 1),
		strings.Replace(line, "2026", "26-1", 1),
		strings.Replace(line, "c1", `c\u0031`, 1), strings.Replace(line, `"default"`, `""`, 1),
		strings.Replace(line, "default", `d\u0031`, 1), strings.Replace(line, `"tenant":`, `"tenant": `, 1),
	} {
		if head, ok := ParseHead([]byte(text)); ok {
			t.Errorf("ParseHead(%q) = %q, want none", text, head)
		}
	}
}
