package faulttest

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	// recordKey is the key of the record of each conversation. The key of a client's record of the tenant is its id.
	recordKey = "state"
	// faultKey is the key of a record of the tenant that verifyAll writes after each fault.
	faultKey = "fault"
)

// storedRecord is a record as clients see it. The zero value is that of one that was never written.
type storedRecord struct {
	value    string // empty if the record does not exist
	revision int64  // of the newest write or deletion
	above    bool   // The write is not acknowledged: its revision is higher than revision.
}

// recordOf returns the only record of a reply, or the zero value if there is none.
func recordOf(records []*parleyv1.Record) storedRecord {
	if len(records) == 0 {
		return storedRecord{}
	}
	return storedRecord{value: string(records[0].GetValue()), revision: records[0].GetRevision()}
}

// matches reports whether a record that was read is the wanted one.
func (r storedRecord) matches(want storedRecord) bool {
	if r.value != want.value || r.value == "" {
		return r.value == want.value
	}
	return r.revision == want.revision || want.above && r.revision > want.revision
}

func (r storedRecord) String() string {
	return fmt.Sprintf("%.60s (%d bytes), revision %d, above=%t", r.value, len(r.value), r.revision, r.above)
}

// count returns the number of records that exist.
func (c conversation) count() (n int) {
	for _, r := range []storedRecord{c.record, c.tenantRecord} {
		if r.value != "" {
			n++
		}
	}
	return n
}

// write is a write of a record of the conversation or of the tenant; a deletion if value is empty.
type write struct {
	tenantScope bool
	value       string
}

// writesTenant reports whether the step writes or deletes a record of the tenant.
func (s *step) writesTenant() bool {
	for _, w := range s.writes {
		if w.tenantScope {
			return true
		}
	}
	return false
}

// recordWrites returns the writes of a step for a call.
func (c *client) recordWrites(s *step) (all []*parleyv1.RecordWrite) {
	for _, w := range s.writes {
		key := recordKey
		if w.tenantScope {
			key = c.id
		}
		all = append(all, &parleyv1.RecordWrite{
			Key: key, Value: []byte(w.value), Delete: w.value == "", TenantScope: w.tenantScope,
		})
	}
	return all
}

// addWrites makes a step write both records, in the commit of its newest message, whose content is their value. A turn
// writes only the record of the conversation: its reply has no revision of the tenant.
func (s *step) addWrites() {
	value := s.contents[len(s.contents)-1]
	s.writes = []write{{value: value}}
	if !s.isChat() {
		s.writes = append(s.writes, write{tenantScope: true, value: value})
	}
}

// chooseWrites makes a step write or delete records without a message: of the conversation, or of the tenant alone, or
// both in one commit.
func (c *client) chooseWrites(s *step) {
	has := c.state.acknowledged
	s.kind = recordsStep
	if has.version == 0 || c.random.IntN(3) == 0 {
		s.kind = tenantStep
	}
	value := c.newContent()
	written := func(r storedRecord) string {
		if r.value != "" && c.random.IntN(3) == 0 {
			return ""
		}
		return value
	}
	if s.kind == recordsStep {
		s.writes = append(s.writes, write{value: written(has.record)})
	}
	if s.kind == tenantStep || c.random.IntN(2) == 0 {
		s.writes = append(s.writes, write{tenantScope: true, value: written(has.tenantRecord)})
	}
}

// withRecords returns the state after the writes of a step, which the present version contains.
func (c conversation) withRecords(s *step) conversation {
	for _, w := range s.writes {
		if w.tenantScope {
			c.tenantRecord = storedRecord{value: w.value, revision: c.tenantRecord.revision, above: true}
		} else {
			c.record = storedRecord{value: w.value, revision: int64(c.version)}
		}
	}
	return c
}

// acknowledge returns the state after a step that is acknowledged with that revision of the tenant's record. The error
// says that the revision is wrong.
func (c conversation) acknowledge(s *step, revision int64) (conversation, error) {
	if !s.writesTenant() {
		return c, nil
	}
	if revision <= c.tenantRecord.revision {
		return c, fmt.Errorf("%s returned tenant_revision %d, want more than %d", s.kind, revision, c.tenantRecord.revision)
	}
	c.tenantRecord.revision, c.tenantRecord.above = revision, false
	return c, nil
}

// countAppends counts the acknowledged steps with messages and records.
func countAppends(t *testing.T, clients []*client) {
	t.Helper()
	for _, c := range clients {
		counts.add(t, "appends with records", c.withRecords)
		c.withRecords = 0
	}
}

// getRecord reads a record; of the tenant if the conversation is empty. A conversation that does not exist has none.
func getRecord(ctx context.Context, s *server, conversation, key string) (storedRecord, error) {
	reply, err := s.GetRecords(ctx, &parleyv1.GetRecordsRequest{ConversationId: conversation, Keys: []string{key}})
	if status.Code(err) == codes.NotFound {
		return storedRecord{}, nil
	}
	return recordOf(reply.GetRecords()), err
}

// checkRevisions writes a record of the tenant after a fault. Its revision must be higher than all that were
// acknowledged before.
func checkRevisions(ctx context.Context, s *server, clients []*client) error {
	reply, err := s.WriteRecords(ctx, &parleyv1.WriteRecordsRequest{
		Writes: []*parleyv1.RecordWrite{{Key: faultKey, Value: []byte("1")}},
	})
	if err != nil {
		return err
	}
	for _, c := range clients {
		if used := c.state.acknowledged.tenantRecord.revision; reply.GetTenantRevision() <= used {
			return fmt.Errorf("tenant_revision after a fault = %d, want more than %d of %s", reply.GetTenantRevision(), used,
				c.id)
		}
	}
	return nil
}

// checkTenantRecords checks the list of the tenant's records after verify: it has those of the clients and that of
// checkRevisions.
func checkTenantRecords(ctx context.Context, s *server, clients []*client) error {
	list, err := s.ListRecords(ctx, &parleyv1.ListRecordsRequest{PageSize: 1000, KeysOnly: true})
	if err != nil {
		return err
	}
	want := map[string]int64{}
	for _, c := range clients {
		if r := c.state.acknowledged.tenantRecord; r.value != "" {
			want[c.id] = r.revision
		}
	}
	return checkList(list.GetRecords(), want)
}

// checkList checks that a list has the records of want, by their keys with their revisions, and that of faultKey. No
// two may have the same revision.
func checkList(list []*parleyv1.Record, want map[string]int64) error {
	used := map[int64]string{}
	for _, r := range list {
		if revision, ok := want[r.GetKey()]; r.GetKey() != faultKey && (!ok || revision != r.GetRevision()) {
			return fmt.Errorf("record %s is listed with revision %d, want %d", r.GetKey(), r.GetRevision(), revision)
		}
		if other, ok := used[r.GetRevision()]; ok {
			return fmt.Errorf("records %s and %s of the tenant both have revision %d", other, r.GetKey(), r.GetRevision())
		}
		used[r.GetRevision()] = r.GetKey()
	}
	if len(list) != len(want)+1 {
		return fmt.Errorf("ListRecords = %d records of the tenant, want %d", len(list), len(want)+1)
	}
	return nil
}
