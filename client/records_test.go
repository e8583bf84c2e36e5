package client_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// recordsOf returns records with these keys.
func recordsOf(keys ...string) []*parleyv1.Record {
	var records []*parleyv1.Record
	for _, key := range keys {
		records = append(records, &parleyv1.Record{Key: key})
	}
	return records
}

// numberedKeys returns n keys that begin with prefix, in order.
func numberedKeys(prefix string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s%04d", prefix, i)
	}
	return keys
}

// TestGetAllGetsEveryRecordOnce gets records from a server that returns at most 30 of them in a reply and omits others.
func TestGetAllGetsEveryRecordOnce(t *testing.T) {
	for _, n := range []int{0, 1, 30, 31, 100, 101, 250} {
		synctest.Test(t, func(t *testing.T) {
			var sizes []int
			f := &fake{getRecords: func(r *parleyv1.GetRecordsRequest) *parleyv1.GetRecordsResponse {
				sizes = append(sizes, len(r.GetKeys()))
				if r.GetConversationId() != "a" {
					t.Errorf("conversation_id = %q, want a", r.GetConversationId())
				}
				present := slices.DeleteFunc(slices.Clone(r.GetKeys()), func(key string) bool { return key == "missing" })
				fit := min(30, len(present))
				return &parleyv1.GetRecordsResponse{Records: recordsOf(present[:fit]...), OmittedKeys: present[fit:]}
			}}
			keys := append(numberedKeys("k", n), "missing", "missing")
			keys = append(keys, numberedKeys("k", n/2)...) // The second of each is not requested.
			before := slices.Clone(keys)
			sequence := f.dial(t).Records("a").GetAll(t.Context(), keys)
			for range 2 { // A caller may range over the sequence again.
				var got []string
				for record, err := range sequence {
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, record.GetKey())
				}
				slices.Sort(got)
				if diff := cmp.Diff(numberedKeys("k", n), got, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("%d keys (-want +got):\n%s", n, diff)
				}
			}
			if slices.Max(sizes) > 100 || !slices.Equal(keys, before) {
				t.Errorf("calls of %v keys, keys changed: %t; want at most 100 and no change", sizes, !slices.Equal(keys, before))
			}
		})
	}
}

func TestGetAllGivesUpWithoutProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f *fake
		f = &fake{getRecords: func(r *parleyv1.GetRecordsRequest) *parleyv1.GetRecordsResponse {
			if calls, _ := f.recordedCalls(); len(calls) > 3 {
				return nil
			}
			return &parleyv1.GetRecordsResponse{OmittedKeys: r.GetKeys()}
		}}
		for record, err := range f.dial(t).TenantRecords().GetAll(t.Context(), []string{"k"}) {
			if record != nil || status.Code(err) != codes.Internal {
				t.Errorf("GetAll = %v, %v, want INTERNAL", record, err)
			}
		}
		if calls, _ := f.recordedCalls(); len(calls) != 1 {
			t.Errorf("calls = %v, want one", calls)
		}
	})
}

// TestListReadsAllPages lists records from a server with pages of three records, one of them empty.
func TestListReadsAllPages(t *testing.T) {
	pages := map[string]*parleyv1.ListRecordsResponse{
		"":  {Records: recordsOf("a", "b", "c"), NextPageToken: "1"},
		"1": {NextPageToken: "2"},
		"2": {Records: recordsOf("d")},
	}
	request := &parleyv1.ListRecordsRequest{Prefix: "p", KeysOnly: true, Descending: true, PageSize: 3}
	for _, given := range []*parleyv1.ListRecordsRequest{request, nil} {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{listRecords: func(r *parleyv1.ListRecordsRequest) *parleyv1.ListRecordsResponse {
				page := pages[r.GetPageToken()]
				want := &parleyv1.ListRecordsRequest{ConversationId: "c", PageToken: r.GetPageToken()}
				if given != nil {
					want.Prefix, want.KeysOnly, want.Descending, want.PageSize = "p", true, true, 3
				}
				if diff := cmp.Diff(want, r, protocmp.Transform()); diff != "" {
					t.Errorf("request (-want +got):\n%s", diff)
				}
				return page
			}}
			records := f.dial(t).Records("c")
			for _, stop := range []int{1, 3, 4, 5} {
				f.calls = nil
				var got []string
				for record, err := range records.List(t.Context(), given) {
					if err != nil {
						t.Fatal(err)
					}
					if got = append(got, record.GetKey()); len(got) == stop {
						break
					}
				}
				if want := []string{"a", "b", "c", "d"}[:min(stop, 4)]; !slices.Equal(got, want) {
					t.Errorf("List = %v, want %v", got, want)
				}
				if calls, _ := f.recordedCalls(); stop <= 3 && len(calls) != 1 {
					t.Errorf("%d calls for %d records, want one", len(calls), stop)
				}
			}
		})
	}
	if request.GetConversationId() != "" || request.GetPageToken() != "" {
		t.Errorf("request = %v, want no change", request)
	}
}

func TestListEndsWithAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{unavailable: 100}
		n := 0
		for record, err := range f.dial(t).TenantRecords().List(t.Context(), nil) {
			n++
			if record != nil || status.Code(err) != codes.Unavailable {
				t.Errorf("List = %v, %v, want UNAVAILABLE", record, err)
			}
		}
		if n != 1 {
			t.Errorf("%d elements, want one error", n)
		}
	})
}

func TestDeleteMakesBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		keys := append(numberedKeys("k", 201), numberedKeys("k", 100)...) // The second of each is not deleted again.
		if err := f.dial(t).Records("a").Delete(t.Context(), keys); err != nil {
			t.Fatal(err)
		}
		if calls, ids := f.recordedCalls(); len(calls) != 3 || ids[0] == ids[1] || ids[1] == ids[2] {
			t.Errorf("%d calls with request ids %q, want 3 with ids of their own", len(calls), ids)
		}
		if err := f.dial(t).Records("a").Delete(t.Context(), nil); err != nil || len(f.calls) != 3 {
			t.Errorf("Delete of no keys = %v, %d calls, want none", err, len(f.calls)-3)
		}
	})
}

func TestRevisionMismatch(t *testing.T) {
	refusal := func(domain, reason string, metadata map[string]string) error {
		s, err := status.New(codes.Aborted, "no").WithDetails(
			&errdetails.BadRequest{}, &errdetails.ErrorInfo{Domain: domain, Reason: reason, Metadata: metadata})
		if err != nil {
			t.Fatal(err)
		}
		return s.Err()
	}
	metadata := map[string]string{"key": "k/1", "current_revision": "9007199254740993", "scope": "conversation"}
	tests := []struct {
		name string
		err  error
		want client.Mismatch
		ok   bool
	}{
		{"none", nil, client.Mismatch{}, false},
		{"another error", io.EOF, client.Mismatch{}, false},
		{"another reason", refusal("parley", "VERSION_MISMATCH", metadata), client.Mismatch{}, false},
		{"another domain", refusal("other", "REVISION_MISMATCH", metadata), client.Mismatch{}, false},
		{
			"a record of the conversation", refusal("parley", "REVISION_MISMATCH", metadata),
			client.Mismatch{Key: "k/1", CurrentRevision: 1<<53 + 1},
			true,
		},
		{
			"a missing record of the tenant",
			refusal("parley", "REVISION_MISMATCH", map[string]string{"key": "k", "current_revision": "0", "scope": "tenant"}),
			client.Mismatch{Key: "k", TenantScope: true},
			true,
		},
		{"no revision", refusal("parley", "REVISION_MISMATCH", nil), client.Mismatch{}, false},
	}
	for _, test := range tests {
		for _, err := range []error{test.err, fmt.Errorf("wrapped: %w", test.err)} {
			if test.err == nil {
				err = nil
			}
			if got, ok := client.RevisionMismatch(err); got != test.want || ok != test.ok {
				t.Errorf("%s: RevisionMismatch(%v) = %+v, %t, want %+v, %t", test.name, err, got, ok, test.want, test.ok)
			}
		}
	}
}

func TestJSONRecords(t *testing.T) {
	type cart struct {
		Items []string `json:"items"`
	}
	write, err := client.JSONWrite("cart", cart{Items: []string{"<&>"}})
	want := &parleyv1.RecordWrite{Key: "cart", Value: []byte(`{"items":["<&>"]}`), MediaType: "application/json"}
	if diff := cmp.Diff(want, write, protocmp.Transform()); diff != "" || err != nil {
		t.Errorf("JSONWrite error %v (-want +got):\n%s", err, diff)
	}
	record := &parleyv1.Record{Key: "cart", Value: write.GetValue()}
	if got, err := client.DecodeJSON[cart](record); err != nil || !slices.Equal(got.Items, []string{"<&>"}) {
		t.Errorf("DecodeJSON = %v, %v, want the value that was written", got, err)
	}
	if got, err := client.DecodeJSON[*cart](nil); err != nil || got != nil {
		t.Errorf("DecodeJSON of no record = %v, %v, want nil", got, err)
	}
	record.Value = []byte(`{"items":["a"],"items":1}`)
	if got, err := client.DecodeJSON[cart](record); err == nil || got.Items != nil || !strings.Contains(err.Error(), `record "cart"`) {
		t.Errorf("DecodeJSON of another type = %v, %v, want the zero value and an error with the key", got, err)
	}
	record.Value = []byte("{\"items\":[\"\xff\"]}")
	got, err := client.DecodeJSON[cart](record)
	if err == nil || got.Items != nil || !strings.Contains(err.Error(), "invalid UTF-8") {
		t.Errorf("DecodeJSON of invalid UTF-8 = %v, %v, want the zero value and an error", got, err)
	}
	for _, value := range []any{func() {}, math.NaN(), json.RawMessage("\"\xff\"")} {
		if write, err := client.JSONWrite("cart", value); err == nil || write != nil || errors.Unwrap(err) == nil {
			t.Errorf("JSONWrite(%T) = %v, %v, want an error", value, write, err)
		}
	}
}

// TestRecordsOfNoConversation checks that an empty conversation id is refused without a call, because the server would
// use the records of the tenant.
func TestRecordsOfNoConversation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		ctx, records := t.Context(), f.dial(t).Records("")
		_, put := records.Put(ctx, &parleyv1.RecordWrite{Key: "k"})
		_, putJSON := records.PutJSON(ctx, "k", 1)
		_, get := records.Get(ctx, "k")
		_, _, getJSON := client.GetJSON[int](ctx, records, "k")
		_, getAll := keysOf(records.GetAll(ctx, []string{"k"}))
		_, list := keysOf(records.List(ctx, nil))
		errs := map[string]error{
			"Put": put, "PutJSON": putJSON, "Get": get, "GetJSON": getJSON, "GetAll": getAll, "List": list,
			"Delete": records.Delete(ctx, []string{"k"}),
		}
		for name, err := range errs {
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "TenantRecords") {
				t.Errorf("%s = %v, want INVALID_ARGUMENT that names TenantRecords", name, err)
			}
		}
		if calls, _ := f.recordedCalls(); len(calls) != 0 {
			t.Errorf("calls = %v, want none", calls)
		}
	})
}
