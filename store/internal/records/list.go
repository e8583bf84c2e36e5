package records

import (
	"bytes"
	"iter"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// Ascend yields the keys and values of a scope in the order of the keys, from that key on.
type Ascend func(from string) iter.Seq2[string, []byte]

// Descend yields the keys and values of a scope in the reverse order, from the last key before that key on. If before
// is empty, it starts at the last key.
type Descend func(before string) iter.Seq2[string, []byte]

// List builds the result of a store.ListRecords from the values of its scope.
func List(
	l *store.ListRecords, now time.Time, ascend Ascend, descend Descend,
) (found []*parleyv1.Record, more bool, err error) {
	p := page{conversationID: l.ConversationID, now: now, keysOnly: l.KeysOnly, limit: l.Limit, space: l.MaxBytes}
	if l.Descending {
		before := afterPrefix(l.Prefix)
		if l.After != "" && (before == "" || l.After < before) {
			before = l.After
		}
		more, err = p.fill(l.Prefix, descend(before))
	} else {
		from := max(FirstKey, l.Prefix)
		if l.After != "" {
			from = max(from, l.After+"\x00")
		}
		more, err = p.fill(l.Prefix, ascend(from))
	}
	if err != nil {
		return nil, false, err
	}
	return p.records, more, nil
}

// WithPrefixes builds store.Snapshot.Records from the values of a conversation.
func WithPrefixes(
	prefixes []string, conversationID string, ascend Ascend,
) (found []*parleyv1.Record, more bool, err error) {
	p := page{conversationID: conversationID, limit: -1, space: store.MaxReadRecordBytes}
	last := "\xff" // No prefix begins with it.
	for _, prefix := range slices.Sorted(slices.Values(prefixes)) {
		if strings.HasPrefix(prefix, last) {
			continue // The prefix before it includes its records.
		}
		last = prefix
		if more, err = p.fill(prefix, ascend(max(FirstKey, prefix))); err != nil {
			return nil, false, err
		}
		if more {
			break
		}
	}
	return p.records, more, nil
}

// Get builds the result of a store.GetRecords. find returns the value under a key, or nil. The result does not share
// memory with the values.
func Get(
	g *store.GetRecords, now time.Time, find func(key string) ([]byte, error),
) (found store.RecordFrames, omitted []string, err error) {
	p := page{conversationID: g.ConversationID, now: now, limit: -1, space: g.MaxBytes}
	for _, key := range g.Keys {
		if IsHidden(key) {
			continue
		}
		value, err := find(key)
		if err != nil {
			return nil, nil, err
		}
		if value == nil {
			continue
		}
		r, value, full, err := p.take(key, value)
		if err == nil && r != nil {
			found, err = found.Append(r, value)
		}
		if err != nil {
			return nil, nil, err
		}
		if full {
			omitted = append(omitted, key)
		}
	}
	return found, omitted, nil
}

// Frame returns the result of Get that contains only one record, whose encoded value is b. expires is when the record
// expires; it is the zero time if the record does not expire.
func Frame(conversationID, key string, b []byte) (frame store.RecordFrames, expires time.Time, err error) {
	p := page{conversationID: conversationID, limit: 1}
	r, value, _, err := p.take(key, b)
	if err != nil {
		return nil, time.Time{}, err
	}
	frame, err = frame.Append(r, value)
	return frame, stateOf(r).ExpireTime, err
}

// afterPrefix returns the first key after all keys with a prefix; empty if there is none.
func afterPrefix(prefix string) string {
	end := []byte(prefix)
	for len(end) > 0 && end[len(end)-1] == 0xff {
		end = end[:len(end)-1]
	}
	if len(end) > 0 {
		end[len(end)-1]++
	}
	return string(end)
}

// page collects the records of a result.
type page struct {
	conversationID string
	now            time.Time
	keysOnly       bool
	limit          int // maximum number of records; negative: none
	space          int // maximum size of further records in bytes
	taken          int // number of records so far
	records        []*parleyv1.Record
}

// fill adds the values of a sequence while their keys have the prefix, until the page is full. more reports that a
// record had no space.
func (p *page) fill(prefix string, values iter.Seq2[string, []byte]) (more bool, err error) {
	for key, value := range values {
		if IsHidden(key) || !strings.HasPrefix(key, prefix) {
			_, err := StateOf(key, value) // It may have had the prefix before its key was damaged.
			return false, err
		}
		if full, err := p.add(key, value); full || err != nil {
			return full, err
		}
	}
	return false, nil
}

// add adds a record unless it has expired. full reports that it had no space. The first record always has space.
func (p *page) add(key string, b []byte) (full bool, err error) {
	r, value, full, err := p.take(key, b)
	if r == nil {
		return full, err
	}
	if !p.keysOnly {
		r.Value = bytes.Clone(value)
	}
	p.records = append(p.records, r)
	return false, nil
}

// take returns the next record, without its value, and the value, and counts it. r is nil if the record has expired, or
// if the page has no space for it; full is true in the second case. The first record always has space.
func (p *page) take(key string, b []byte) (r *parleyv1.Record, value []byte, full bool, err error) {
	head, value, err := split(key, b)
	if err != nil {
		return nil, nil, false, err
	}
	r = withoutValue(key, head)
	if stateOf(r).Expired(p.now) {
		return nil, nil, false, nil
	}
	if p.taken == p.limit {
		return nil, nil, true, nil
	}
	r.ConversationId = p.conversationID
	size := proto.Size(r)
	if !p.keysOnly {
		size += 1 + protowire.SizeBytes(len(value))
	}
	if size += 1 + protowire.SizeVarint(uint64(size)); size > p.space && p.taken > 0 {
		return nil, nil, true, nil
	}
	if !p.keysOnly {
		if err := checkValue(key, b, value); err != nil {
			return nil, nil, false, err
		}
	}
	p.space -= size
	p.taken++
	return r, value, false, nil
}
