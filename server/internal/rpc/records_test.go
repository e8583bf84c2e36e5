package rpc

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// put returns the write of a record of a conversation, and putTenant that of a record of the tenant.
func put(key, value string) *parleyv1.RecordWrite {
	return &parleyv1.RecordWrite{Key: key, Value: []byte(value)}
}

func putTenant(key, value string) *parleyv1.RecordWrite {
	return &parleyv1.RecordWrite{Key: key, Value: []byte(value), TenantScope: true}
}

// at sets the revision that a write requires.
func at(revision int64, w *parleyv1.RecordWrite) *parleyv1.RecordWrite {
	w.IfRevision = &revision
	return w
}

// write writes records and fails the test on an error.
func (f *fixture) write(t *testing.T, id string, writes ...*parleyv1.RecordWrite) *parleyv1.WriteRecordsResponse {
	t.Helper()
	reply, err := f.WriteRecords(t.Context(), &parleyv1.WriteRecordsRequest{ConversationId: id, Writes: writes})
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// wantRecords checks the keys, revisions and values of all records of a conversation, or of the tenant.
func (f *fixture) wantRecords(t *testing.T, id string, want ...string) {
	t.Helper()
	reply, err := f.ListRecords(t.Context(), &parleyv1.ListRecordsRequest{ConversationId: id})
	if d := cmp.Diff(want, describeRecords(reply.GetRecords())); err != nil || d != "" {
		t.Errorf("ListRecords(%q): %v (-want +got):\n%s", id, err, d)
	}
}

func describeRecords(records []*parleyv1.Record) []string {
	var all []string
	for _, r := range records {
		all = append(all, fmt.Sprintf("%s@%d %s", r.GetKey(), r.GetRevision(), r.GetValue()))
	}
	return all
}

func keysOf(records []*parleyv1.Record) []string {
	var keys []string
	for _, r := range records {
		keys = append(keys, r.GetKey())
	}
	return keys
}

// TestRecords writes, reads, replaces and deletes records of a conversation and of the tenant in one commit each.
func TestRecords(t *testing.T) {
	f := open(t, nil)
	if _, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
		ConversationId: "c1", Messages: []*parleyv1.Message{user("hello")},
		CreateWith: &parleyv1.Conversation{SystemPrompt: "Be brief."},
	}); err != nil {
		t.Fatal(err)
	}
	first := f.write(t, "c1", &parleyv1.RecordWrite{
		Key: "state", Value: []byte("{}"), MediaType: "application/json", Labels: map[string]string{"a": "b"},
	}, put("other", "1"), &parleyv1.RecordWrite{
		Key: "shared", Value: []byte("2"), TenantScope: true, Ttl: durationpb.New(time.Hour),
	})
	if c := first.GetConversation(); first.GetRevision() != 2 || first.GetTenantRevision() != 1 || first.GetReplayed() ||
		c.GetVersion() != 2 || c.GetRecordCount() != 2 || c.GetRecordBytes() == 0 || c.GetSystemPrompt() != "" {
		t.Errorf("WriteRecords = %v, want revision 2 and tenant_revision 1", first)
	}
	got, err := f.GetRecords(t.Context(), &parleyv1.GetRecordsRequest{
		ConversationId: "c1", Keys: []string{"state", "missing", "other"},
	})
	want := []*parleyv1.Record{
		{
			ConversationId: "c1", Key: "state", Value: []byte("{}"), MediaType: "application/json", Revision: 2,
			Labels: map[string]string{"a": "b"}, SizeBytes: 2,
		},
		{ConversationId: "c1", Key: "other", Value: []byte("1"), Revision: 2, SizeBytes: 1},
	}
	ignored := protocmp.IgnoreFields(&parleyv1.Record{}, "update_time")
	if d := cmp.Diff(want, got.GetRecords(), protocmp.Transform(), ignored); err != nil || d != "" {
		t.Errorf("GetRecords: %v (-want +got):\n%s", err, d)
	}
	if got.GetRecords()[0].GetUpdateTime() == nil {
		t.Error("the record has no update_time")
	}
	shared, err := f.GetRecords(t.Context(), &parleyv1.GetRecordsRequest{Keys: []string{"shared", "state"}})
	if err != nil || len(shared.GetRecords()) != 1 || shared.GetRecords()[0].GetConversationId() != "" ||
		shared.GetRecords()[0].GetExpireTime().AsTime().Sub(shared.GetRecords()[0].GetUpdateTime().AsTime()) != time.Hour {
		t.Errorf("GetRecords of the tenant = %v, %v, want shared with a ttl of 1 h", shared, err)
	}
	second := f.write(t, "c1", at(2, put("state", "new")), &parleyv1.RecordWrite{Key: "other", Delete: true},
		&parleyv1.RecordWrite{Key: "shared", Delete: true, TenantScope: true})
	if second.GetRevision() != 3 || second.GetTenantRevision() != 2 || second.GetConversation().GetRecordCount() != 1 {
		t.Errorf("WriteRecords = %v, want revision 3 and tenant_revision 2", second)
	}
	f.wantRecords(t, "c1", "state@3 new")
	f.wantRecords(t, "")
	// Without a conversation, all records are the tenant's.
	if alone := f.write(t, "", put("mine", "3")); alone.GetConversation() != nil || alone.GetRevision() != 0 ||
		alone.GetTenantRevision() != 3 {
		t.Errorf("WriteRecords of the tenant = %v, want only tenant_revision 3", alone)
	}
	f.wantRecords(t, "", "mine@3 3")
	stats, err := f.admin.GetStats(t.Context(), &parleyv1.GetStatsRequest{})
	if err != nil || stats.GetRecordCount() != 2 || stats.GetRecordBytes() == 0 {
		t.Errorf("GetStats = %v, %v, want 2 records", stats, err)
	}
	list, err := f.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{})
	if c := list.GetConversations()[0].GetConversation(); err != nil || c.GetRecordCount() != 1 || c.GetRecordBytes() != 8+store.RecordOverhead {
		t.Errorf("ListConversations = %v, %v, want a conversation with 1 record of 8 bytes", list, err)
	}
}

// TestRecordPages: pages follow each other in both directions, whatever their size, and a token is valid only for the
// list that it came from.
func TestRecordPages(t *testing.T) {
	f := open(t, nil)
	f.append(t, "c1", user("hello"))
	f.append(t, "c2", user("hello"))
	var all []string
	for i := range 7 {
		all = append(all, fmt.Sprint("k/", i))
		f.write(t, "c1", put(all[i], "v"), put(fmt.Sprint("l/", i), "v"))
		f.write(t, "", put(all[i], "v"))
	}
	for _, id := range []string{"c1", ""} {
		for _, descending := range []bool{false, true} {
			r := &parleyv1.ListRecordsRequest{
				ConversationId: id, Prefix: "k/", PageSize: 2, Descending: descending, KeysOnly: descending, AfterKey: "k/0",
			}
			want := all[1:]
			if descending {
				r.AfterKey, want = "k/6", slices.Clone(all[:6])
				slices.Reverse(want)
			}
			var got []string
			for more := true; more; more = r.GetPageToken() != "" {
				page, err := f.ListRecords(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				for _, record := range page.GetRecords() {
					if len(record.GetValue()) > 0 == descending || record.GetSizeBytes() != 1 {
						t.Errorf("keys_only %t: got %v", descending, record)
					}
				}
				got, r.PageToken = append(got, keysOf(page.GetRecords())...), page.GetNextPageToken()
				r.PageSize = 3
			}
			if !slices.Equal(got, want) {
				t.Errorf("list of %q, descending %t = %v, want %v", id, descending, got, want)
			}
		}
	}
	first, err := f.ListRecords(t.Context(), &parleyv1.ListRecordsRequest{ConversationId: "c1", PageSize: 1})
	if err != nil || first.GetNextPageToken() == "" {
		t.Fatalf("ListRecords = %v, %v, want a token", first, err)
	}
	token := first.GetNextPageToken()
	for _, other := range []*parleyv1.ListRecordsRequest{
		{ConversationId: "c2", PageToken: token},
		{PageToken: token},
		{ConversationId: "c1", Prefix: "k", PageToken: token},
		{ConversationId: "c1", AfterKey: "k", PageToken: token},
		{ConversationId: "c1", Descending: true, PageToken: token},
		{ConversationId: "c1", KeysOnly: true, PageToken: token},
		{ConversationId: "c1", PageToken: token[1:]},
		{ConversationId: "c1", PageToken: "?"},
	} {
		_, err := f.ListRecords(t.Context(), other)
		if got := wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST"); !slices.Equal(got.fields, []string{"page_token"}) {
			t.Errorf("ListRecords(%v): fields = %q, want page_token", other, got.fields)
		}
	}
}

// TestRecordReplies: a reply has at most 3 MiB of records, but at least one, and says what is missing.
func TestRecordReplies(t *testing.T) {
	f := open(t, nil)
	f.append(t, "c1", user("hello"))
	const size = store.MaxMessageBytes
	for _, w := range []*parleyv1.RecordWrite{
		put("a", strings.Repeat("a", size)), put("b", "b"), put("c", strings.Repeat("c", size/2)), put("d", strings.Repeat("d", size/2)),
	} {
		f.write(t, "c1", w)
	}
	get, err := f.GetRecords(t.Context(), &parleyv1.GetRecordsRequest{
		ConversationId: "c1", Keys: []string{"a", "b", "c", "d", "e"},
	})
	if err != nil || !slices.Equal(keysOf(get.GetRecords()), []string{"a"}) ||
		!slices.Equal(get.GetOmittedKeys(), []string{"b", "c", "d"}) || len(get.GetRecords()[0].GetValue()) != size {
		t.Errorf("GetRecords = %q without %q, %v, want a", keysOf(get.GetRecords()), get.GetOmittedKeys(), err)
	}
	r, pages := &parleyv1.ListRecordsRequest{ConversationId: "c1"}, [][]string{}
	for more := true; more; more = r.GetPageToken() != "" {
		page, err := f.ListRecords(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		pages, r.PageToken = append(pages, keysOf(page.GetRecords())), page.GetNextPageToken()
	}
	if d := cmp.Diff([][]string{{"a"}, {"b", "c"}, {"d"}}, pages); d != "" {
		t.Errorf("pages (-want +got):\n%s", d)
	}
}

// TestRevisionMismatch: a write of a record that has another revision names the record and both revisions, and changes
// nothing.
func TestRevisionMismatch(t *testing.T) {
	f := open(t, nil)
	f.append(t, "c1", user("hello"))
	f.write(t, "c1", put("a", "1"), putTenant("b", "1"))
	written := f.changeCount()
	for _, test := range []struct {
		writes []*parleyv1.RecordWrite
		want   map[string]string
		text   string
	}{
		{
			[]*parleyv1.RecordWrite{put("new", "2"), at(1, put("a", "2"))},
			map[string]string{"key": "a", "current_revision": "2", "scope": "conversation"},
			`record "a" of conversation "c1" is at revision 2, but if_revision is 1; read it and decide again`,
		},
		{
			[]*parleyv1.RecordWrite{at(2, put("a", "2")), at(0, putTenant("b", "2"))},
			map[string]string{"key": "b", "current_revision": "1", "scope": "tenant"},
			`record "b" of the tenant already exists at revision 1, but if_revision is 0; read it and decide again`,
		},
		{
			[]*parleyv1.RecordWrite{at(7, put("missing", "2"))},
			map[string]string{"key": "missing", "current_revision": "0", "scope": "conversation"},
			`record "missing" of conversation "c1" does not exist, but if_revision is 7; read it and decide again`,
		},
	} {
		_, err := f.WriteRecords(t.Context(), &parleyv1.WriteRecordsRequest{ConversationId: "c1", Writes: test.writes})
		write := wantError(t, err, codes.Aborted, "REVISION_MISMATCH")
		_, err = f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
			ConversationId: "c1", Messages: []*parleyv1.Message{user("more")}, Records: test.writes,
		})
		appended := wantError(t, err, codes.Aborted, "REVISION_MISMATCH")
		_, err = f.chat(t, &parleyv1.ChatRequest{ConversationId: "c1", Content: "more", Records: test.writes})
		chat := wantError(t, err, codes.Aborted, "REVISION_MISMATCH")
		for _, got := range []statusParts{write, appended, chat} {
			if d := cmp.Diff(test.want, got.metadata); d != "" {
				t.Errorf("%v: metadata (-want +got):\n%s", test.writes, d)
			}
			if got.text != test.text {
				t.Errorf("%v: text = %q, want %q", test.writes, got.text, test.text)
			}
		}
	}
	if n := f.changeCount(); n != written {
		t.Errorf("%d changes, want 0", n-written)
	}
	f.wantRecords(t, "c1", "a@2 1")
	f.wantRecords(t, "", "b@1 1")
}

// TestRecordRequests: a retry changes nothing and returns the first revisions; other records are another request.
func TestRecordRequests(t *testing.T) {
	f := open(t, nil)
	f.append(t, "c1", user("hello"))
	for id, owner := range map[string]string{"c1": `conversation "c1"`, "": "the tenant's records"} {
		r := &parleyv1.WriteRecordsRequest{
			ConversationId: id, RequestId: "r1", Writes: []*parleyv1.RecordWrite{put("a", "1"), putTenant("b"+id, "1")},
		}
		first, err := f.WriteRecords(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		f.write(t, id, put("a", "2"))
		again, err := f.WriteRecords(t.Context(), r)
		if err != nil || !again.GetReplayed() || first.GetReplayed() || again.GetRevision() != first.GetRevision() ||
			again.GetTenantRevision() != first.GetTenantRevision() {
			t.Errorf("retry = %v, %v, want the revisions of %v", again, err, first)
		}
		r.Writes[0] = put("a", "3")
		_, err = f.WriteRecords(t.Context(), r)
		refused := wantError(t, err, codes.AlreadyExists, "REQUEST_ID_REUSED")
		if want := "request_id: was already used on " + owner + " with"; !strings.HasPrefix(refused.text, want) {
			t.Errorf("reuse of a request_id for %q = %q, want %q…", id, refused.text, want)
		}
	}
	f.wantRecords(t, "c1", "a@3 2")

	messages := []*parleyv1.Message{user("more")}
	r := &parleyv1.AppendMessagesRequest{
		ConversationId: "c1", RequestId: "r2", Messages: messages, Records: []*parleyv1.RecordWrite{putTenant("c", "1")},
	}
	first, err := f.AppendMessages(t.Context(), r)
	again, againErr := f.AppendMessages(t.Context(), r)
	if err != nil || againErr != nil || !again.GetReplayed() || first.GetTenantRevision() == 0 ||
		again.GetTenantRevision() != first.GetTenantRevision() {
		t.Errorf("AppendMessages = %v, %v, its retry = %v, %v", first, err, again, againErr)
	}
	r.Records = nil
	_, err = f.AppendMessages(t.Context(), r)
	wantError(t, err, codes.AlreadyExists, "REQUEST_ID_REUSED")
	chat := &parleyv1.ChatRequest{
		ConversationId: "c1", RequestId: "r3", Content: "hi", Records: []*parleyv1.RecordWrite{put("d", "1")},
	}
	if _, err := f.chat(t, chat); err != nil {
		t.Fatal(err)
	}
	chat.Records[0].Value = []byte("2")
	_, err = f.chat(t, chat)
	wantError(t, err, codes.AlreadyExists, "REQUEST_ID_REUSED")
}

// TestBadRecords sends invalid writes with each call that takes them. Each error names the fields, and nothing changes.
func TestBadRecords(t *testing.T) {
	f := open(t, nil)
	f.append(t, "c1", user("hello"))
	written := f.changeCount()
	ttl := durationpb.New(time.Minute)
	tests := []struct {
		name   string
		writes []*parleyv1.RecordWrite
		fields []string // without the name of the list
	}{
		{"no key", []*parleyv1.RecordWrite{{}}, []string{"[0].key"}},
		{"a long key", []*parleyv1.RecordWrite{put("a", ""), put(strings.Repeat("é", 257), "")}, []string{"[1].key"}},
		{"a control character", []*parleyv1.RecordWrite{put("a\x00b", "")}, []string{"[0].key"}},
		{"a line break", []*parleyv1.RecordWrite{put("a\u2028b", "")}, []string{"[0].key"}},
		{"a large value", []*parleyv1.RecordWrite{put("a", strings.Repeat("x", 3<<20+1))}, []string{"[0].value"}},
		{"a long media type", []*parleyv1.RecordWrite{{Key: "a", MediaType: strings.Repeat("x", 257)}}, []string{"[0].media_type"}},
		{"a long label", []*parleyv1.RecordWrite{
			{Key: "a", Labels: map[string]string{"a": strings.Repeat("x", 257)}},
		}, []string{`[0].labels["a"]`}},
		{"a negative revision", []*parleyv1.RecordWrite{at(-1, put("a", ""))}, []string{"[0].if_revision"}},
		{"a deletion with a value", []*parleyv1.RecordWrite{{Key: "a", Delete: true, Value: []byte("x")}}, []string{"[0].delete"}},
		{"the same record", []*parleyv1.RecordWrite{put("a", "1"), putTenant("a", "2"), put("a", "3")}, []string{"[2].key"}},
		{"a ttl of a conversation", []*parleyv1.RecordWrite{{Key: "a", Ttl: ttl}}, []string{"[0].ttl"}},
		{"a short ttl", []*parleyv1.RecordWrite{{Key: "a", TenantScope: true, Ttl: durationpb.New(time.Millisecond)}}, []string{"[0].ttl"}},
		{"an invalid ttl", []*parleyv1.RecordWrite{
			{Key: "a", TenantScope: true, Ttl: &durationpb.Duration{Seconds: 5, Nanos: -7}},
		}, []string{"[0].ttl"}},
		{"many writes", func() (many []*parleyv1.RecordWrite) {
			for i := range 101 {
				many = append(many, put(fmt.Sprint(i), ""))
			}
			return many
		}(), []string{""}},
	}
	for _, test := range tests {
		calls := map[string]func() error{
			"writes": func() error {
				_, err := f.WriteRecords(t.Context(), &parleyv1.WriteRecordsRequest{ConversationId: "c1", Writes: test.writes})
				return err
			},
			"records": func() error {
				_, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
					ConversationId: "c1", Messages: []*parleyv1.Message{user("more")}, Records: test.writes,
				})
				_, chatErr := f.chat(t, &parleyv1.ChatRequest{ConversationId: "c1", Content: "more", Records: test.writes})
				if a, b := statusOf(err), statusOf(chatErr); !slices.Equal(a.fields, b.fields) {
					t.Errorf("%s: fields of AppendMessages = %q, of Chat = %q", test.name, a.fields, b.fields)
				}
				return err
			},
		}
		for list, call := range calls {
			var want []string
			for _, field := range test.fields {
				want = append(want, list+field)
			}
			got := wantError(t, call(), codes.InvalidArgument, "INVALID_REQUEST")
			if d := cmp.Diff(want, got.fields); d != "" {
				t.Errorf("%s (-want +got):\n%s", test.name, d)
			}
		}
	}
	for field, r := range map[string]proto.Message{
		"writes":      &parleyv1.WriteRecordsRequest{},
		"if_version":  &parleyv1.WriteRecordsRequest{Writes: []*parleyv1.RecordWrite{put("a", "")}, IfVersion: proto.Int32(1)},
		"writes[1]":   &parleyv1.WriteRecordsRequest{Writes: []*parleyv1.RecordWrite{put("a", ""), putTenant("a", "")}},
		"keys":        &parleyv1.GetRecordsRequest{ConversationId: "c1"},
		"keys[0]":     &parleyv1.GetRecordsRequest{Keys: []string{"\n"}},
		"prefix":      &parleyv1.ListRecordsRequest{Prefix: strings.Repeat("x", 513)},
		"after_key":   &parleyv1.ListRecordsRequest{AfterKey: strings.Repeat("x", 513)},
		"page_size":   &parleyv1.ListRecordsRequest{PageSize: 1001},
		"record_pref": &parleyv1.GetContextRequest{ConversationId: "c1", RecordPrefixes: make([]string, 11)},
	} {
		err := validate(r)
		invalid := new(invalidError)
		if !errors.As(err, &invalid) || len(invalid.violations) != 1 ||
			!strings.HasPrefix(invalid.violations[0].GetField(), field) {
			t.Errorf("validate(%v) = %v, want a fault of %s", r, err, field)
		}
	}
	if n := f.changeCount(); n != written {
		t.Errorf("%d changes, want 0", n-written)
	}
	f.wantRecords(t, "c1")
	f.wantRecords(t, "")
}

// TestRecordsOfMissingConversation: the calls of records report that the conversation does not exist and how it ended, and
// create none.
func TestRecordsOfMissingConversation(t *testing.T) {
	f := open(t, nil)
	f.append(t, "gone", user("hello"))
	f.write(t, "gone", put("a", "1"))
	if _, err := f.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: "gone"}); err != nil {
		t.Fatal(err)
	}
	for id, ended := range map[string]string{"gone": "DELETED", "never": ""} {
		_, write := f.WriteRecords(t.Context(), &parleyv1.WriteRecordsRequest{
			ConversationId: id, Writes: []*parleyv1.RecordWrite{put("a", "1"), putTenant("a", "1")},
		})
		_, get := f.GetRecords(t.Context(), &parleyv1.GetRecordsRequest{ConversationId: id, Keys: []string{"a"}})
		_, list := f.ListRecords(t.Context(), &parleyv1.ListRecordsRequest{ConversationId: id})
		for _, err := range []error{write, get, list} {
			got := wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
			if got.metadata["ended"] != ended || got.resource.GetResourceName() != id {
				t.Errorf("%s: metadata = %v, resource = %v, want ended %q", id, got.metadata, got.resource, ended)
			}
		}
	}
	f.wantRecords(t, "")
	f.append(t, "gone", user("hello")) // A new conversation with the same id has no records.
	f.wantRecords(t, "gone")
}
