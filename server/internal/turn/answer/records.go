package answer

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/server/internal/turn/eventlog"
)

// maxRecords is the maximum number of different records in an answer. The store accepts as many writes in one commit.
const maxRecords = 100

// records are the records of an answer, in the order in which the agent first named them.
type records struct {
	writes []*parleyv1.RecordWrite
	places map[recordID]int // in writes
}

// recordID identifies a record.
type recordID struct {
	tenantScope bool
	key         string
}

func idOf(w *parleyv1.RecordWrite) recordID { return recordID{w.GetTenantScope(), w.GetKey()} }

// checkRecord checks the number of different records.
func (a *Answer) checkRecord(w *parleyv1.RecordWrite) error {
	if _, known := a.records.places[idOf(w)]; !known && len(a.records.writes) == maxRecords {
		return ruleError(rules.Fault{
			Field: "record", Rule: fmt.Sprintf("an answer has at most %d different records", maxRecords),
		})
	}
	return nil
}

// addRecord adds a record in place of an earlier write of the same record, and its event, which has no value.
func (a *Answer) addRecord(w *parleyv1.RecordWrite) error {
	event := eventlog.Encode(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Record{Record: &parleyv1.TurnRecord{
		Key: w.GetKey(), Deleted: w.GetDelete(), TenantScope: w.GetTenantScope(),
	}}})
	if event.IsZero() {
		return ruleError(rules.Fault{Field: "record.key", Rule: "is not valid UTF-8"})
	}
	place, known := a.records.places[idOf(w)]
	size := proto.Size(w)
	if known {
		size -= proto.Size(a.records.writes[place])
	}
	if !a.fits(size) {
		return a.tooManyBytes()
	}
	a.bytes += size
	if known {
		a.records.writes[place] = w
	} else {
		if a.records.places == nil {
			a.records.places = make(map[recordID]int)
		}
		a.records.places[idOf(w)] = len(a.records.writes)
		a.records.writes = append(a.records.writes, w)
	}
	a.events.AddEncoded(event, nil)
	return nil
}

// Records returns the records of the answer. Call it after Finish.
func (a *Answer) Records() []*parleyv1.RecordWrite {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.records.writes
}
