package records

import (
	"time"

	"github.com/parleyhq/parley/store"
)

// Copies returns the next records of a scope for a copy: those after a key, without those that have expired. all yields
// the keys and values of the scope. It checks the values; if one is damaged, the error is store.ErrCorrupt.
func Copies(all Ascend, after string, now time.Time) (found []store.RecordCopy, more bool, err error) {
	from := ""
	if after != "" {
		from = after + "\x00"
	}
	size := 0
	for key, value := range all(from) {
		r, err := Unmarshal(key, value)
		if err != nil {
			return nil, false, err
		}
		if stateOf(r).Expired(now) {
			continue
		}
		if len(found) > 0 && (size+len(value) > store.MaxCopiedPageBytes || len(found) == store.MaxCopiedPage) {
			return found, true, nil
		}
		found, size = append(found, store.RecordCopy{Key: key, Value: append([]byte(nil), value...)}), size+len(value)
	}
	return found, false, nil
}

// FromCopies returns the edits that store copies of records in a scope that has none with these keys.
func FromCopies(c *store.RecordCopies) (*Edits, error) {
	edits := &Edits{TenantRevision: c.Revision}
	for _, r := range c.Records {
		after, err := StateOf(r.Key, r.Value)
		if err != nil {
			return nil, err
		}
		edits.Add(Edit{TenantScope: c.ConversationID == "", Key: r.Key, Value: r.Value, After: after})
	}
	return edits, nil
}
