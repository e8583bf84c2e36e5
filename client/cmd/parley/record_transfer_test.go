package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// withRecords adds records to a part of a conversation, whose header counts total records. A record is "KEY" or
// "KEY SIZE".
func withRecords(
	p *parleyv1.ExportConversationsResponse, total int32, records ...string,
) *parleyv1.ExportConversationsResponse {
	p.Conversation.RecordCount = total
	for _, text := range records {
		record, size := &parleyv1.Record{}, 0
		_, _ = fmt.Sscan(text, &record.Key, &size)
		record.Value = make([]byte, size)
		p.Records = append(p.Records, record)
	}
	return p
}

// outline returns the conversation of a line, its number of messages, and the keys of its records.
func outline(id string, messages int, records []*parleyv1.Record) string {
	text := fmt.Sprint(id, " ", messages)
	for _, record := range records {
		text += " " + record.GetKey()
	}
	return text
}

func TestJoinPartsWithRecords(t *testing.T) {
	const large = " 2000000"
	type parts = []*parleyv1.ExportConversationsResponse
	tests := []struct {
		name  string
		parts parts
		want  []string
	}{
		{
			"in the parts of the messages",
			parts{part("a", 2, "one"), withRecords(part("a", 2, "two"), 2, "k", "l"), part("b", 0)},
			[]string{"a 2 k l", "b 0"},
		},
		{
			"after the messages",
			parts{withRecords(part("a", 1, "one"), 2), withRecords(part("a", 1), 2, "k", "l")},
			[]string{"a 1 k l"},
		},
		{
			"no messages",
			parts{withRecords(part("a", 0), 2, "k"), withRecords(part("a", 0), 2, "l"), part("b", 0)},
			[]string{"a 0 k l", "b 0"},
		},
		{
			"too large for a line",
			parts{
				withRecords(part("a", 1, "one"), 4, "k"+large), withRecords(part("a", 1), 4, "l"+large),
				withRecords(part("a", 1), 4, "m"), withRecords(part("a", 1), 4, "n"+large), part("b", 0),
			},
			[]string{"a 1 k", "a 0 l m", "a 0 n", "b 0"},
		},
		{
			"last part without records",
			parts{withRecords(part("a", 0), 2, "k"), withRecords(part("a", 0), 1), part("b", 0)},
			[]string{"a 0 k", "b 0"},
		},
		{
			"larger record_count in the header of the first part",
			parts{withRecords(part("a", 1, "one"), 9, "k"), withRecords(part("a", 1), 2, "l"), part("b", 0)},
			[]string{"a 1 k l", "b 0"},
		},
		{
			"deleted during the export",
			parts{withRecords(part("a", 0), 3, "k"), withRecords(part("b", 0), 3, "l")},
			[]string{"a 0 k", "b 0 l"},
		},
		{
			"written during the export",
			parts{withRecords(part("a", 0), 1, "k"), withRecords(part("a", 0), 1, "l"), part("b", 0)},
			[]string{"a 0 k", "a 0 l", "b 0"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			last := map[string]int32{}
			for _, p := range test.parts {
				last[p.GetConversation().GetId()] = p.GetConversation().GetRecordCount()
			}
			counts := map[string]int32{}
			for _, line := range collect(t, test.parts) {
				counts[line.GetConversation().GetId()] = line.GetConversation().GetRecordCount()
				got = append(got, outline(line.GetConversation().GetId(), len(line.GetMessages()), line.GetRecords()))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(last, counts); diff != "" {
				t.Errorf("record_count of the last lines (-want +got):\n%s", diff)
			}
		})
	}
}

// TestExportCountsConversationsWithRecords checks that a conversation on several lines counts once, and that messages
// are not missing unnoticed if there are records.
func TestExportCountsConversationsWithRecords(t *testing.T) {
	f := exportFake(nil, withRecords(part("a", 0), 2, "k 2000000"), withRecords(part("a", 0), 2, "l 2000000"), part("b", 0))
	stdout, stderr, code := runOnce(t.Context(), "", "--address", f.serve(t), "export")
	if n := strings.Count(stdout, "\n"); n != 3 || stderr != "exported 2 conversations\n" || code != 0 {
		t.Errorf("%d lines, standard error %q, exit code %d; want 3 lines of 2 conversations, 0", n, stderr, code)
	}
	f = exportFake(nil, withRecords(part("a", 1), 1, "k"))
	_, stderr, code = runOnce(t.Context(), "", "--address", f.serve(t), "export")
	const want = "0 conversations written\nparley: conversation \"a\": only 0 of 1 messages received\n"
	if stderr != want || code != 1 {
		t.Errorf("standard error %q, exit code %d, want %q, 1", stderr, code, want)
	}
}

func TestRequestsWithRecordsFitTheServer(t *testing.T) {
	const third = " 1040000" // Almost a third of 3 MiB.
	many := withRecords(part("a", 0), 2001)
	for n := range 2001 {
		many.Records = append(many.Records, &parleyv1.Record{Key: fmt.Sprintf("k%04d", n)})
	}
	tests := []struct {
		name string
		line *parleyv1.ExportConversationsResponse
		want []int // The number of records in each request.
	}{
		{"with the messages", withRecords(part("a", 1, "one"), 2, "k", "l"), []int{2}},
		{"3 MiB", withRecords(part("a", 0), 3, "k"+third, "l"+third, "m"+third), []int{3}},
		{"more than 3 MiB", withRecords(part("a", 0), 4, "k"+third, "l"+third, "m"+third, "n"+third), []int{3, 1}},
		{
			"large messages", withRecords(part("a", 1, strings.Repeat("x", 3<<20)), 2, "k 3145728", "l 3145728"),
			[]int{0, 1, 1},
		},
		{"many", many, []int{1000, 1000, 1}},
		{"a record larger than a request", withRecords(part("a", 0), 1, "k 4194304"), nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			requests, err := requests(test.line, true)
			var got []int
			messages, keys := 0, []*parleyv1.Record(nil)
			for _, request := range requests {
				got = append(got, len(request.GetRecords()))
				messages, keys = messages+len(request.GetMessages()), append(keys, request.GetRecords()...)
				if n := proto.Size(request); n > 4<<20 || !proto.Equal(request.GetConversation(), test.line.GetConversation()) {
					t.Errorf("request of %d bytes, header %v; want at most 4 MiB, the header of the line", n,
						request.GetConversation())
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" || (err == nil) != (test.want != nil) {
				t.Fatalf("records (-want +got):\n%s%v", diff, err)
			}
			want := outline("a", len(test.line.GetMessages()), test.line.GetRecords())
			if got := outline("a", messages, keys); err == nil && got != want {
				t.Errorf("sent %q, want %q", got, want)
			}
		})
	}
}

// TestImportContinuesConversations checks which lines continue the conversation of the line before.
// outlineFake returns a server that reports that many imported conversations, and the outlines of the requests that it
// receives.
func outlineFake(imported int64) (f fake, received *[]string) {
	received = new([]string)
	return fake{imports: func(stream importStream) error {
		for {
			request, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return stream.SendAndClose(&parleyv1.ImportConversationsResponse{ImportedCount: imported})
			}
			if err != nil {
				return err
			}
			*received = append(*received,
				outline(request.GetConversation().GetId(), len(request.GetMessages()), request.GetRecords()))
		}
	}}, received
}

func TestImportContinuesConversations(t *testing.T) {
	f, received := outlineFake(3)
	lines := 0
	line := func(id, rest string) string {
		lines++ // Each header has another record_count.
		return fmt.Sprintf(`{"conversation":{"id":%q,"messageCount":1,"recordCount":%d}%s}`+"\n", id, lines, rest)
	}
	message := `,"messages":[{"content":"x"}]`
	records := func(keys ...string) string {
		return `,"records":[{"key":"` + strings.Join(keys, `"},{"key":"`) + `"}]`
	}
	input := line("a", message+records("k", "l")) + line("a", records("m")) + line("a", records("n", "o")) + // lines 1 to 3
		line("a", records("k")) + // 4: not after the last key
		line("b", message) + line("b", records("k")) + line("b", message+records("l")) + // 7: has messages
		line("b", records("m")) + // 8: continues a line that was not sent
		line("c", `,"messages":[{"content":"`+strings.Repeat("x", 4<<20)+`"}]`+records("k")) + // 9: too large
		line("c", records("l")) + // 10
		line("d", records("l")) + line("a", records("p")) // 12: the line before is of another conversation
	_, stderr, code := runOnce(t.Context(), input, "--address", f.serve(t), "import")
	const want = `line 4 (a): line 1 already contains this conversation
line 7 (b): line 5 already contains this conversation
line 8 (b): the line continues a conversation whose earlier line was not imported
line 9 (c): a message, a record or the header has 4.0 MiB; the limit of a request is 4.0 MiB
line 10 (c): the line continues a conversation whose earlier line was not imported
line 12 (a): line 1 already contains this conversation
parley: 6 lines not imported
`
	if diff := cmp.Diff(want, stderr); diff != "" || code != 1 {
		t.Errorf("exit code %d, want 1; standard error (-want +got):\n%s", code, diff)
	}
	sent := []string{"a 1 k l", "a 0 m", "a 0 n o", "b 1", "b 0 k", "d 0 l"}
	if diff := cmp.Diff(sent, *received); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// TestLongConversationOnSeveralLines checks that an export divides a long conversation, and that an import of these
// lines sends it as one.
func TestLongConversationOnSeveralLines(t *testing.T) {
	var parts []*parleyv1.ExportConversationsResponse
	for n := range int32(5) {
		p := part("a", 5, strings.Repeat("x", 3<<20))
		p.GetMessages()[0].Sequence = n + 1
		parts = append(parts, withRecords(p, 1))
	}
	parts = append(parts, withRecords(part("a", 5), 1, "k"), part("b", 0))
	stdout, stderr, code := runOnce(t.Context(), "", "--address", exportFake(nil, parts...).serve(t), "export")
	if n := strings.Count(stdout, "\n"); n != 4 || stderr != "exported 2 conversations\n" || code != 0 {
		t.Fatalf("%d lines, standard error %q, exit code %d; want 4 lines of 2 conversations, 0", n, stderr, code)
	}
	f, received := outlineFake(2)
	if _, stderr, code = runOnce(t.Context(), stdout, "--address", f.serve(t), "import"); stderr != "" || code != 0 {
		t.Errorf("import: exit code %d, standard error %q", code, stderr)
	}
	sent := []string{"a 1", "a 1", "a 1", "a 1", "a 1", "a 0 k", "b 0"}
	if diff := cmp.Diff(sent, *received); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	again := stdout + stdout[:strings.Index(stdout, "\n")+1]
	if _, stderr, _ = runOnce(t.Context(), again, "--address", f.serve(t), "import"); !strings.HasPrefix(stderr,
		"line 5 (a): line 1 already contains this conversation\n") {
		t.Errorf("a repeated line: standard error %q", stderr)
	}
}
