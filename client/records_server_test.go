package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// createConversation creates a conversation without messages.
func createConversation(t *testing.T, c *client.Client, id string) {
	t.Helper()
	_, err := c.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{
		Conversation: &parleyv1.Conversation{Id: id},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// keysOf returns the keys of a sequence of records.
func keysOf(records func(func(*parleyv1.Record, error) bool)) (keys []string, err error) {
	for record, err := range records {
		if err != nil {
			return keys, err
		}
		keys = append(keys, record.GetKey())
	}
	return keys, nil
}

// TestRecordsOfBothScopes writes, reads and deletes records of a conversation and of the tenant under the same keys.
func TestRecordsOfBothScopes(t *testing.T) {
	t.Parallel()
	c := dialServer(t)
	createConversation(t, c, "a")
	for _, id := range []string{"a", ""} {
		ctx, records := t.Context(), c.TenantRecords()
		if id != "" {
			records = c.Records(id)
		}
		value := []byte("\x00\xff of " + id)
		write := &parleyv1.RecordWrite{Key: "k", Value: value, MediaType: "x/y", Labels: map[string]string{"l": "1"}}
		first, err := records.Put(ctx, write)
		if err != nil {
			t.Fatal(err)
		}
		got, err := records.Get(ctx, "k")
		want := &parleyv1.Record{
			ConversationId: id, Key: "k", Value: value, MediaType: "x/y", Labels: write.GetLabels(), Revision: first,
			SizeBytes: int32(len(value)),
		}
		if diff := cmp.Diff(want, got, protocmp.Transform(), protocmp.IgnoreFields(got, "update_time")); diff != "" || err != nil {
			t.Errorf("conversation %q: Get error %v (-want +got):\n%s", id, err, diff)
		}
		second, err := records.PutJSON(ctx, "k", []int{1, 2})
		if err != nil || second <= first {
			t.Errorf("conversation %q: revision %d after %d, error %v; want a higher one", id, second, first, err)
		}
		numbers, revision, err := client.GetJSON[[]int](ctx, records, "k")
		if !slices.Equal(numbers, []int{1, 2}) || revision != second || err != nil {
			t.Errorf("conversation %q: GetJSON = %v, %d, %v, want [1 2], %d", id, numbers, revision, err, second)
		}
		if _, revision, err = client.GetJSON[string](ctx, records, "k"); err == nil || revision != second {
			t.Errorf("conversation %q: GetJSON of another type = %d, %v, want %d and an error", id, revision, err, second)
		}
		if err := records.Delete(ctx, []string{"k", "missing"}); err != nil {
			t.Errorf("conversation %q: Delete = %v", id, err)
		}
		revision, err = records.Put(ctx, &parleyv1.RecordWrite{Key: "k", Delete: true})
		if revision != 0 || err != nil {
			t.Errorf("conversation %q: Put of a second deletion = %d, %v, want 0", id, revision, err)
		}
		record, err := records.Get(ctx, "k")
		numbers, revision, jsonErr := client.GetJSON[[]int](ctx, records, "k")
		if record != nil || numbers != nil || revision != 0 || errors.Join(err, jsonErr) != nil {
			t.Errorf("conversation %q: after the deletion, Get = %v, GetJSON = %v, %d, errors %v, %v; want none", id,
				record, numbers, revision, err, jsonErr)
		}
	}
	if _, err := c.TenantRecords().Put(t.Context(), &parleyv1.RecordWrite{Key: "t", Ttl: durationpb.New(time.Hour)}); err != nil {
		t.Error(err)
	}
	if record, err := c.TenantRecords().Get(t.Context(), "t"); err != nil || record.GetExpireTime() == nil {
		t.Errorf("record with a ttl = %v, %v, want an expire_time", record, err)
	}
	if _, err := c.Records("missing").Get(t.Context(), "k"); client.Reason(err) != "CONVERSATION_NOT_FOUND" {
		t.Errorf("Get of a missing conversation = %v, want CONVERSATION_NOT_FOUND", err)
	}
}

// TestOnlyOneWriterOfARevisionWins lets programs increase a counter with if_revision. No increase is lost.
func TestOnlyOneWriterOfARevisionWins(t *testing.T) {
	t.Parallel()
	c := dialServer(t)
	createConversation(t, c, "a")
	const writers, increases = 4, 10
	results := make(chan error, writers)
	for range writers {
		go func() {
			var err error
			for range increases {
				err = errors.Join(err, increase(t.Context(), c.Records("a")))
			}
			results <- err
		}()
	}
	for range writers {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if n, _, err := client.GetJSON[int](t.Context(), c.Records("a"), "n"); n != writers*increases || err != nil {
		t.Errorf("counter = %d, %v, want %d", n, err, writers*increases)
	}
}

// increase adds 1 to the counter n, while others do so too.
func increase(ctx context.Context, records client.Records) error {
	for {
		n, revision, err := client.GetJSON[int](ctx, records, "n")
		if err != nil {
			return err
		}
		write, err := client.JSONWrite("n", n+1)
		if err != nil {
			return err
		}
		write.IfRevision = &revision
		_, err = records.Put(ctx, write)
		mismatch, ok := client.RevisionMismatch(err)
		switch {
		case !ok:
			return err
		case mismatch.Key != "n" || mismatch.CurrentRevision <= revision || mismatch.TenantScope:
			return fmt.Errorf("mismatch = %+v, want key n and a revision above %d", mismatch, revision)
		}
	}
}

func TestRevisionMismatchOfTheTenant(t *testing.T) {
	t.Parallel()
	c := dialServer(t)
	revision, err := c.TenantRecords().Put(t.Context(), &parleyv1.RecordWrite{Key: "k/ü"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.TenantRecords().Put(t.Context(), &parleyv1.RecordWrite{Key: "k/ü", IfRevision: new(int64(0))})
	want := client.Mismatch{Key: "k/ü", CurrentRevision: revision, TenantScope: true}
	if got, ok := client.RevisionMismatch(err); got != want || !ok || status.Code(err) != codes.Aborted {
		t.Errorf("RevisionMismatch(%v) = %+v, %t, want %+v", err, got, ok, want)
	}
}

// TestManyAndLargeRecords reads records that need several pages and several calls.
func TestManyAndLargeRecords(t *testing.T) {
	t.Parallel()
	c := dialServer(t)
	createConversation(t, c, "a")
	ctx, records := t.Context(), c.Records("a")
	want := numberedKeys("small/", 250)
	for batch := range slices.Chunk(want, 100) {
		request := &parleyv1.WriteRecordsRequest{ConversationId: "a"}
		for _, key := range batch {
			request.Writes = append(request.Writes, &parleyv1.RecordWrite{Key: key})
		}
		if _, err := c.WriteRecords(ctx, request); err != nil {
			t.Fatal(err)
		}
	}
	large := []string{"large/1", "large/2", "large/3"}
	for _, key := range large {
		if _, err := records.Put(ctx, &parleyv1.RecordWrite{Key: key, Value: []byte(strings.Repeat("x", 2<<20))}); err != nil {
			t.Fatal(err)
		}
	}
	want = append(slices.Clone(large), want...)
	slices.Sort(want)
	if got, err := keysOf(records.List(ctx, nil)); err != nil || !slices.Equal(got, want) {
		t.Errorf("List = %d keys, %v, want %d in order", len(got), err, len(want))
	}
	got, err := keysOf(records.List(ctx, &parleyv1.ListRecordsRequest{
		Prefix: "small/", PageSize: 7, Descending: true, AfterKey: "small/0100", KeysOnly: true,
	}))
	smaller := numberedKeys("small/", 100)
	slices.Reverse(smaller)
	if err != nil || !slices.Equal(got, smaller) {
		t.Errorf("List in descending order = %d keys, %v, want %d", len(got), err, len(smaller))
	}
	size := 0
	got = nil
	for record, err := range records.GetAll(ctx, append(slices.Clone(want), "missing")) {
		if err != nil {
			t.Fatal(err)
		}
		got, size = append(got, record.GetKey()), size+len(record.GetValue())
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" || size != 6<<20 {
		t.Errorf("GetAll of %d bytes (-want +got):\n%s", size, diff)
	}
	if err := records.Delete(ctx, want); err != nil {
		t.Error(err)
	}
	if got, err := keysOf(records.List(ctx, nil)); len(got) != 0 || err != nil {
		t.Errorf("List after the deletion = %v, %v, want none", got, err)
	}
}

// TestRecordsInTheCommitOfMessages writes records together with messages, and reads both at one instant.
func TestRecordsInTheCommitOfMessages(t *testing.T) {
	t.Parallel()
	c := dialServer(t)
	ctx := t.Context()
	write := func(key, value string) []*parleyv1.RecordWrite {
		return []*parleyv1.RecordWrite{{Key: key, Value: []byte(value)}}
	}
	request := batch(1, "hello")
	request.Records = append(write("state/1", "one"), &parleyv1.RecordWrite{Key: "shared", TenantScope: true})
	reply, err := c.AppendMessages(ctx, request)
	if err != nil || reply.GetConversation().GetRecordCount() != 1 || reply.GetTenantRevision() != 1 {
		t.Fatalf("AppendMessages = %v, %v, want one record in each scope", reply, err)
	}
	appender := c.NewAppender(ctx)
	streamed := batch(1, "more")
	streamed.Records = write("state/2", "two")
	_, err = appender.Append(ctx, streamed).Wait(ctx)
	if err := errors.Join(err, appender.Close()); err != nil {
		t.Fatal(err)
	}
	for _, err := range c.Chat(ctx, &parleyv1.ChatRequest{
		ConversationId: "a", Content: "hi", Records: write("state/3", "three"),
	}) {
		if err != nil {
			t.Fatal(err)
		}
	}

	prefixes := []string{"state/", "none"}
	loaded, err := c.LoadConversation(ctx, &parleyv1.LoadConversationRequest{ConversationId: "a", RecordPrefixes: prefixes})
	if err != nil {
		t.Fatal(err)
	}
	window, err := c.GetContext(ctx, &parleyv1.GetContextRequest{ConversationId: "a", RecordPrefixes: prefixes})
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string][]*parleyv1.Record{"load": loaded.GetRecords(), "context": window.GetRecords()} {
		var values []string
		for _, record := range got {
			values = append(values, record.GetKey()+"="+string(record.GetValue()))
		}
		if want := []string{"state/1=one", "state/2=two", "state/3=three"}; !slices.Equal(values, want) {
			t.Errorf("%s: records = %q, want %q", name, values, want)
		}
	}
	if n := len(loaded.GetMessages()); n != 4 {
		t.Errorf("%d messages, want 4", n)
	}
}

// TestWatchReportsRecords checks that a watch reports records only if it asks for them.
func TestWatchReportsRecords(t *testing.T) {
	t.Parallel()
	c := dialServer(t)
	list, err := c.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	request := batch(1, "hello")
	request.Records = []*parleyv1.RecordWrite{{Key: "k", Value: []byte("secret")}}
	_, err = c.AppendMessages(t.Context(), request)
	err = errors.Join(err, c.Records("a").Delete(t.Context(), []string{"k"}))
	_, appendErr := c.AppendMessages(t.Context(), batch(1, "last"))
	if err := errors.Join(err, appendErr); err != nil {
		t.Fatal(err)
	}
	for _, include := range []bool{true, false} {
		var got []string
		for change, err := range c.WatchConversations(t.Context(), &parleyv1.WatchConversationsRequest{
			Cursor: list.GetWatchCursor(), IncludeRecords: include,
		}) {
			if err != nil {
				t.Fatal(err)
			}
			if change.GetMessage().GetContent() == "last" {
				break
			}
			if record := change.GetRecord(); record != nil {
				got = append(got, fmt.Sprint(record.GetKey(), " ", record.GetRevision(), " ", record.GetDeleted()))
			}
		}
		var want []string
		if include {
			want = []string{"k 1 false", "k 2 true"}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("include_records %t: records (-want +got):\n%s", include, diff)
		}
	}
}
