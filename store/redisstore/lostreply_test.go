package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// lossy is a store whose connection loses replies or requests, and another one that sees what became of the data.
type lossy struct {
	*Store

	proxy *proxy
	other *Store
	seen  *watcher
}

func newLossy(t *testing.T) *lossy {
	t.Helper()
	engine := redistest.Start(t)
	l := &lossy{proxy: newProxy(t, engine.Addr()), seen: new(watcher)}
	l.other = openAt(t, store.Options{}, engine.Addr())
	l.Store = openAt(t, store.Options{Observe: l.seen.observe}, l.proxy.addr)
	// The engine must know the scripts: it replies to the first call of each that it does not.
	ctx := t.Context()
	appendTo(t, l, "first", "hello")
	hold := &store.Hold{Tenant: "acme", ConversationIDs: []string{"first"}}
	if err := l.Hold(ctx, hold); err != nil {
		t.Fatal(err)
	}
	if err := l.Release(ctx, hold); err != nil {
		t.Fatal(err)
	}
	appendTo(t, l, "first", "hello")
	if err := l.Delete(ctx, &store.Delete{Tenant: "acme", ConversationID: "first"}); err != nil {
		t.Fatal(err)
	}
	return l
}

// lostWrite is a write whose request or reply is lost.
type lostWrite struct {
	name    string
	commits int
	present bool // whether the conversation exists before
	do      func(ctx context.Context, s store.Store, id string) error
	texts   []string // of the conversation afterwards; nil if there is none
	changes []string // without the id
}

var oneText = []string{"one"}

func lostWrites() []lostWrite {
	wantAppended := func(r *store.Result, err error, sequence, version int32) error {
		if err == nil && (r.Replayed || r.Appended[0].GetSequence() != sequence || r.Conversation.GetVersion() != version) {
			return fmt.Errorf("result = %+v, want sequence %d and version %d", r, sequence, version)
		}
		return err
	}
	imported := func(id string, overwrite bool) *store.Import {
		now := timestamppb.Now()
		return &store.Import{Tenant: "acme", Overwrite: overwrite, Conversation: &parleyv1.Conversation{
			Id: id, Version: 7, CreateTime: now, UpdateTime: now, LastAppendTime: now,
		}}
	}
	return []lostWrite{
		{"append", 1, true, func(ctx context.Context, s store.Store, id string) error {
			r, err := s.Append(ctx, &store.Append{Tenant: "acme", ConversationID: id, Messages: message("two")})
			return wantAppended(r, err, 2, 2)
		}, []string{"one", "two"}, []string{"MESSAGE_APPENDED 2"}},
		{"append with a request", 1, true, func(ctx context.Context, s store.Store, id string) error {
			a := &store.Append{Tenant: "acme", ConversationID: id, Messages: message("two"), Request: requestOf("r")}
			r, err := s.Append(ctx, a)
			if err := wantAppended(r, err, 2, 2); err != nil {
				return err
			}
			if r, err = s.Append(ctx, a); err == nil && !r.Replayed {
				err = fmt.Errorf("repeated Append = %+v, want a replay", r)
			}
			return err
		}, []string{"one", "two"}, []string{"MESSAGE_APPENDED 2"}},
		{"append that creates", 1, false, func(ctx context.Context, s store.Store, id string) error {
			r, err := s.Append(ctx, &store.Append{Tenant: "acme", ConversationID: id, Messages: message("one")})
			return wantAppended(r, err, 1, 1)
		}, oneText, []string{"CREATED 1", "MESSAGE_APPENDED 1"}},
		{"create", 1, false, func(ctx context.Context, s store.Store, id string) error {
			r, err := s.Create(ctx, &store.Create{Tenant: "acme", Conversation: &parleyv1.Conversation{Id: id}})
			if err == nil && !r.Created {
				err = fmt.Errorf("result = %+v, want Created", r)
			}
			return err
		}, []string{}, []string{"CREATED 1"}},
		{"import", 1, false, func(ctx context.Context, s store.Store, id string) error {
			_, err := s.Import(ctx, imported(id, false))
			return err
		}, []string{}, []string{"CREATED 7"}},
		{"import that overwrites", 1, true, func(ctx context.Context, s store.Store, id string) error {
			_, err := s.Import(ctx, imported(id, true))
			return err
		}, []string{}, []string{"DELETED 1", "CREATED 7"}},
		{"update", 1, true, func(ctx context.Context, s store.Store, id string) error {
			r, err := s.Update(ctx, &store.Update{
				Tenant: "acme", ConversationID: id, Values: &parleyv1.Conversation{Title: "new"}, Fields: []string{"title"},
			})
			if err == nil && (r.Conversation.GetVersion() != 2 || r.Conversation.GetTitle() != "new") {
				err = fmt.Errorf("result = %+v, want version 2", r)
			}
			return err
		}, oneText, []string{"UPDATED 2"}},
		{"removal of messages", 1, true, func(ctx context.Context, s store.Store, id string) error {
			_, err := s.Update(ctx, &store.Update{Tenant: "acme", ConversationID: id, KeepThrough: new(int32)})
			return err
		}, []string{}, []string{"CLEARED 2"}},
		{"delete", 1, true, func(ctx context.Context, s store.Store, id string) error {
			return s.Delete(ctx, &store.Delete{Tenant: "acme", ConversationID: id})
		}, nil, []string{"DELETED 1"}},
		{"delete of a version", 1, true, func(ctx context.Context, s store.Store, id string) error {
			version := int32(1)
			return s.Delete(ctx, &store.Delete{Tenant: "acme", ConversationID: id, IfVersion: &version})
		}, nil, []string{"DELETED 1"}},
		{"purge", 1, true, func(ctx context.Context, s store.Store, id string) error {
			purged, err := s.Purge(ctx, &store.Purge{Tenant: "acme"})
			if err == nil && !slices.Equal(purged.SampleIDs, []string{id}) {
				err = fmt.Errorf("Purge = %+v, want %q", purged, id)
			}
			return err
		}, nil, []string{"DELETED 1"}},
		{"begin and end of a turn", 2, true, func(ctx context.Context, s store.Store, id string) error {
			turn := &parleyv1.Turn{Id: "turn of " + id}
			if _, err := s.Append(ctx, &store.Append{
				Tenant: "acme", ConversationID: id, Messages: message("two"), Begin: turn,
			}); err != nil {
				return err
			}
			_, err := s.Append(ctx, &store.Append{Tenant: "acme", ConversationID: id, End: turn})
			return err
		}, []string{"one", "two"}, []string{"MESSAGE_APPENDED 2", "UPDATED 3"}},
		{"records of the conversation", 1, true, func(ctx context.Context, s store.Store, id string) error {
			w, err := s.WriteRecords(ctx, &store.WriteRecords{
				Tenant: "acme", ConversationID: id, Writes: []*parleyv1.RecordWrite{putRecord("k", "v")},
			})
			if err == nil && w.Revision != 2 {
				err = fmt.Errorf("result = %+v, want revision 2", w)
			}
			return err
		}, oneText, []string{"UPDATED 2", "RECORD 2"}},
		{"records of both scopes", 1, true, func(ctx context.Context, s store.Store, id string) error {
			before, err := tenantRevision(ctx, s)
			if err != nil {
				return err
			}
			of := putRecord("k", "v")
			of.TenantScope = true
			w, err := s.WriteRecords(ctx, &store.WriteRecords{
				Tenant: "acme", ConversationID: id, Writes: []*parleyv1.RecordWrite{putRecord("k", "v"), of},
			})
			if err == nil && w.TenantRevision != before+1 {
				err = fmt.Errorf("result = %+v, want tenant revision %d", w, before+1)
			}
			return err
		}, oneText, []string{"UPDATED 2", "RECORD 2"}},
		{"records of the tenant", 1, true, func(ctx context.Context, s store.Store, _ string) error {
			return writeTenantOnce(ctx, s, &store.WriteRecords{
				Tenant: "acme", Writes: []*parleyv1.RecordWrite{putRecord("k", "v")},
			})
		}, oneText, nil},
		{"records of the tenant with a request", 1, true, func(ctx context.Context, s store.Store, id string) error {
			return writeTenantOnce(ctx, s, &store.WriteRecords{
				Tenant: "acme", Writes: []*parleyv1.RecordWrite{putRecord("k", "v")}, Request: requestOf(id),
			})
		}, oneText, nil},
		{"deletion of a record of the tenant", 1, true, func(ctx context.Context, s store.Store, _ string) error {
			return writeTenantOnce(ctx, s, &store.WriteRecords{
				Tenant: "acme", Writes: []*parleyv1.RecordWrite{{Key: "k", Delete: true}},
			})
		}, oneText, nil},
	}
}

// tenantRevision returns the revision of the record "k" of the tenant, 0 if there is none.
func tenantRevision(ctx context.Context, s store.Store) (int64, error) {
	found, _, err := s.ListRecords(ctx, &store.ListRecords{Tenant: "acme", Prefix: "k", Limit: 1, MaxBytes: 1 << 20})
	if err != nil || len(found) == 0 {
		return 0, err
	}
	return found[0].GetRevision(), nil
}

// writeTenantOnce checks that a write of the record "k", which exists, has the next revision.
func writeTenantOnce(ctx context.Context, s store.Store, w *store.WriteRecords) error {
	before, err := tenantRevision(ctx, s)
	if err != nil {
		return err
	}
	written, err := s.WriteRecords(ctx, w)
	if err == nil && (written.TenantRevision != before+1 || written.Replayed) {
		err = fmt.Errorf("result = %+v, want tenant revision %d", written, before+1)
	}
	return err
}

// TestLostReplies loses the reply or the request of each commit. Each write must be made once, with the result of its
// only commit.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	l := newLossy(t)
	for n, w := range lostWrites() {
		for _, unsent := range []bool{false, true} {
			for skip := range w.commits {
				name := fmt.Sprintf("%s, unsent %v, skip %d", w.name, unsent, skip)
				t.Run(name, func(t *testing.T) { l.lose(t, w, fmt.Sprint("c", n, unsent, skip), unsent, skip) })
			}
		}
	}
}

// lose makes a write and loses its commit after others.
func (l *lossy) lose(t *testing.T, w lostWrite, id string, unsent bool, skip int) {
	t.Helper()
	ctx := t.Context()
	if _, err := l.other.WriteRecords(ctx, &store.WriteRecords{
		Tenant: "acme", Writes: []*parleyv1.RecordWrite{putRecord("k", "before")},
	}); err != nil {
		t.Fatal(err)
	}
	if w.present {
		appendTo(t, l, id, "one")
	}
	l.seen.take()
	l.proxy.set(&fault{matches: isWrite, times: 1, skip: skip, unsent: unsent})
	if err := w.do(ctx, l, id); err != nil {
		t.Errorf("the write = %v", err)
	}
	if lost := l.proxy.lost(); lost != 1 {
		t.Errorf("%d commits were lost, want 1", lost)
	}
	l.proxy.set(nil)
	var changes []string
	for _, text := range w.changes {
		changes = append(changes, strings.Replace(text, " ", " "+id+" ", 1))
	}
	l.seen.want(t, "the write", changes...)
	if w.texts == nil {
		_, err := l.other.Read(ctx, &store.Read{Tenant: "acme", ConversationID: id})
		wantError(t, "Read of what was deleted", err, store.ErrNotFound)
		return
	}
	wantTexts(t, l.other, id, w.texts...)
	if err := l.other.Delete(ctx, &store.Delete{Tenant: "acme", ConversationID: id}); err != nil {
		t.Error(err)
	}
	if stats, err := l.TenantStats(ctx, "acme"); err != nil || stats.Conversations != 0 || stats.Messages != 0 {
		t.Errorf("TenantStats = %+v, %v; want no conversations", stats, err)
	}
}

// TestLostReplyAndOthers has another process write between a commit whose reply is lost and the next attempt.
func TestLostReplyAndOthers(t *testing.T) {
	t.Parallel()
	l := newLossy(t)
	ctx := t.Context()
	during := func(do func()) { l.proxy.set(&fault{matches: isWrite, times: 1, afterward: do}) }

	appendTo(t, l, "again", "one")
	l.seen.take()
	during(func() {
		appendTo(t, l.other, "again", "another")
	})
	if err := l.Delete(ctx, &store.Delete{Tenant: "acme", ConversationID: "again"}); err != nil {
		t.Errorf("Delete = %v", err)
	}
	wantTexts(t, l.other, "again", "another")
	l.seen.want(t, "a delete", "DELETED again 1")

	during(func() {
		for i := range maxCommits - 1 {
			appendTo(t, l.other, "few", fmt.Sprint(i))
		}
	})
	if r := appendTo(t, l, "few", "mine"); r.Conversation.GetVersion() != 1 {
		t.Errorf("version after an append before others = %d, want 1", r.Conversation.GetVersion())
	}
	if got := textsOf(t, readAll(t, l, "few").Messages); len(got) != maxCommits || got[0] != "mine" {
		t.Errorf("messages = %q, want mine first and once", got)
	}

	appendTo(t, l, "many", "one")
	during(func() {
		for i := range maxCommits + 1 {
			appendTo(t, l.other, "many", fmt.Sprint(i))
		}
	})
	_, err := l.Append(ctx, &store.Append{Tenant: "acme", ConversationID: "many", Messages: message("mine")})
	wantError(t, "Append before more commits than are remembered", err, store.ErrUnavailable)
	got := textsOf(t, readAll(t, l, "many").Messages)
	if n := len(got) - len(slices.DeleteFunc(got, func(text string) bool { return text == "mine" })); n != 1 {
		t.Errorf("the message is there %d times, want once", n)
	}
}

// TestLostReplyOfRecordsAndOthers is TestLostReplyAndOthers for the records of the tenant.
func TestLostReplyOfRecordsAndOthers(t *testing.T) {
	t.Parallel()
	l := newLossy(t)
	ctx := t.Context()
	write := func(s store.Store, value string) (int64, error) {
		w, err := s.WriteRecords(ctx, &store.WriteRecords{
			Tenant: "acme", Writes: []*parleyv1.RecordWrite{putRecord("k", value)},
		})
		if err != nil {
			return 0, err
		}
		return w.TenantRevision, nil
	}
	for _, others := range []int{1, maxCommits - 1, maxCommits + 1} {
		first, err := write(l, "before")
		if err != nil {
			t.Fatal(err)
		}
		l.proxy.set(&fault{matches: isWrite, times: 1, afterward: func() {
			for range others {
				if _, err := write(l.other, "other"); err != nil {
					t.Error(err)
				}
			}
		}})
		got, err := write(l, "mine")
		if others > maxCommits {
			wantError(t, "WriteRecords before more commits than are remembered", err, store.ErrUnavailable)
		} else if err != nil || got != first+1 {
			t.Errorf("WriteRecords before %d others = %d, %v; want revision %d", others, got, err, first+1)
		}
		if now, err := tenantRevision(ctx, l); err != nil || now != first+1+int64(others) {
			t.Errorf("revision after %d others = %d, %v; want %d", others, now, err, first+1+int64(others))
		}
	}
}
