package record_test

import (
	"bytes"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
)

// TestAppendDecidedRecords checks that an append whose records were decided before has the same result, whatever the
// stored records and the settings are then.
func TestAppendDecidedRecords(t *testing.T) {
	o, now := store.Options{}.WithDefaults(), time.Unix(1_800_000_000, 0)
	value := appended(t, nil, o)
	for name, test := range map[string]struct {
		writes []*parleyv1.RecordWrite
		before records.State
	}{
		"new": {[]*parleyv1.RecordWrite{{Key: "a", Value: []byte("1")}}, records.State{}},
		"same": {
			[]*parleyv1.RecordWrite{{Key: "a", Value: []byte("1")}}, records.State{Revision: 1, Counts: records.Of(1, 2)},
		},
		"deletion": {[]*parleyv1.RecordWrite{{Key: "a", Delete: true}}, records.State{Revision: 1, Counts: records.Of(1, 9)}},
		"of the tenant": {
			[]*parleyv1.RecordWrite{{Key: "a", Value: []byte("1"), TenantScope: true}}, records.State{},
		},
	} {
		w := &store.WriteRecords{
			ConversationID: "c", Writes: test.writes, Request: &store.Request{ID: "r", Method: "WriteRecords"},
		}
		a := record.AppendOf(w)
		in := &records.Input{Before: []records.State{test.before}, Tenant: records.Tenant{Revision: 4}}
		r := unmarshalRecord(t, value)
		r.Conversation().RecordCount, r.Conversation().RecordBytes = 3, 30
		first, err := record.Append(r, a, nil, in, "", now, &o)
		if err != nil {
			t.Fatal(err)
		}
		want := marshalRecord(t, first.Record)

		decided := &records.Edits{
			Revision: first.Records.Revision, TenantRevision: first.Records.TenantRevision,
			Conversation: first.Records.Conversation, Tenant: first.Records.Tenant,
		}
		again := *a
		again.Records = nil
		r = unmarshalRecord(t, value)
		r.Conversation().RecordCount, r.Conversation().RecordBytes = 3, 30
		in = &records.Input{Decided: decided}
		out, err := record.Append(r, &again, nil, in, "", now, &store.Options{MaxRecordBytes: 1})
		if err != nil {
			t.Fatal(err)
		}
		if got := marshalRecord(t, out.Record); !bytes.Equal(got, want) {
			t.Errorf("%s: decided append = %v, want %v", name, out.Record.Header, first.Record.Header)
		}
		if c := first.Records.Conversation; first.Record.Conversation().GetRecordBytes() != 30+c.RecordBytes ||
			int64(first.Record.Conversation().GetRecordCount()) != 3+c.Records {
			t.Errorf("%s: header = %v, want the counts changed by %+v", name, first.Record.Header, c)
		}
	}
}

// TestAppendWithoutStates checks that an append with records fails if the store has not looked up their states.
func TestAppendWithoutStates(t *testing.T) {
	o := store.Options{}.WithDefaults()
	a := &store.Append{ConversationID: "c", Records: []*parleyv1.RecordWrite{{Key: "a"}}}
	if out, err := record.Append(nil, a, nil, nil, "uid", time.Unix(1_800_000_000, 0), &o); err == nil {
		t.Errorf("Append without the states of its records = %v, want an error", out)
	}
}

func unmarshalRecord(t *testing.T, value []byte) *record.Record {
	t.Helper()
	r, err := record.Unmarshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func marshalRecord(t *testing.T, r *record.Record) []byte {
	t.Helper()
	b, err := r.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return b
}
