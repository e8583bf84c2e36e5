package redisstore

import (
	"bytes"
	"cmp"
	"context"
	"iter"
	"slices"

	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store/internal/record"
)

// rowPage is the number of conversations that a list reads at once.
const rowPage = 200

// rows reads the conversations of a tenant in the order of create time.
type rows struct {
	store  *Store
	ctx    context.Context //nolint:containedctx // It is that of one list.
	all    []space         // of the tenant
	most   int             // that are read at once
	states map[string]record.Ephemeral
	err    error
}

// rows returns the conversations of a tenant. most is the number that is read first.
func (s *Store) rows(ctx context.Context, tenant string, most int) *rows {
	return &rows{store: s, ctx: ctx, all: s.spaces(tenant), most: most, states: map[string]record.Ephemeral{}}
}

func (r *rows) ephemeral(id string) record.Ephemeral { return r.states[id] }

// newest implements record.Newest.
func (r *rows) newest(before []byte) iter.Seq2[[]byte, []byte] {
	from := "+"
	switch {
	case len(before) > record.KeySize: // It is after a key, and so it must be after that key with an id.
		from = "(" + string(before[:record.KeySize]) + "\xff"
	case before != nil:
		from = "(" + string(before)
	}
	return r.rest(newMerged(r.ctx, r.store, r.all, "ix", from, true), before)
}

// oldest implements record.Oldest.
func (r *rows) oldest(after []byte) iter.Seq2[[]byte, []byte] {
	from := "-"
	if after != nil {
		from = "(" + string(after)
	}
	return r.rest(newMerged(r.ctx, r.store, r.all, "ix", from, false), after)
}

// rest yields the keys and the heads of conversations, page by page, without the conversation with the key except.
func (r *rows) rest(places *merged, except []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		for {
			page, more, err := places.page(r.most)
			if err != nil {
				r.err = err
				return
			}
			for i, value := range r.heads(page) {
				key := []byte(page[i].text[:record.KeySize])
				if value == nil || bytes.Equal(key, except) {
					continue
				}
				if !yield(key, value) {
					return
				}
			}
			if r.err != nil || !more {
				return
			}
			r.most = rowPage
		}
	}
}

// heads returns the encoded heads of conversations, nil for those that no longer exist. A head whose key is lost is
// empty, and so damaged.
func (r *rows) heads(places []member) [][]byte {
	commands := make([]rueidis.Completed, len(places))
	for i, place := range places {
		commands[i] = r.store.client.B().Hmget().Key(place.of("c", place.text[record.KeySize:])).Field("h", "e").Build()
	}
	heads := make([][]byte, len(places))
	var missing []int
	for i, reply := range r.store.client.DoMulti(r.ctx, commands...) {
		fields, err := reply.ToArray()
		if err != nil {
			r.err = r.store.fault(err)
			return nil
		}
		if fields[0].IsNil() {
			missing = append(missing, i)
			continue
		}
		heads[i], _ = fields[0].AsBytes()
		if state, err := fields[1].ToString(); err == nil {
			r.states[places[i].text[record.KeySize:]], _ = ephemeralOf(state)
		}
	}
	for _, i := range missing {
		score := r.store.client.Do(r.ctx, r.store.client.B().Zscore().Key(places[i].key("ix")).Member(places[i].text).Build())
		if score.Error() == nil { // It was not deleted in between.
			heads[i] = []byte{}
		}
	}
	return heads
}

// member is a member of an index of a tenant in one of its buckets.
type member struct {
	space

	text string
}

// merged reads an index of a tenant in all its buckets in the order of its members. It keeps one page of each bucket.
type merged struct {
	ctx     context.Context //nolint:containedctx // It is that of one list.
	store   *Store
	kind    string // of the index
	reverse bool
	buckets []mergedBucket
}

// mergedBucket is the rest of a page of a bucket.
type mergedBucket struct {
	space

	from   string // where the next page begins
	left   []string
	atLast bool // no page follows
}

// newMerged returns the members of an index from a position on, in the syntax of ZRANGE BYLEX.
func newMerged(ctx context.Context, s *Store, all []space, kind, from string, reverse bool) *merged {
	m := &merged{ctx: ctx, store: s, kind: kind, reverse: reverse}
	for _, p := range all {
		m.buckets = append(m.buckets, mergedBucket{space: p, from: from})
	}
	return m
}

// page returns the next members, at most n, and whether others may follow. It returns fewer than n when a page of a
// bucket ends.
func (m *merged) page(n int) (found []member, more bool, err error) {
	if err := m.fill(n); err != nil {
		return nil, false, err
	}
	for len(found) < n {
		next := m.next()
		if next == nil {
			return found, false, nil
		}
		found = append(found, member{next.space, next.left[0]})
		if next.left = next.left[1:]; len(next.left) == 0 && !next.atLast {
			break
		}
	}
	return found, m.next() != nil || slices.ContainsFunc(m.buckets, func(b mergedBucket) bool { return !b.atLast }), nil
}

// next returns the bucket with the next member, nil at the end.
func (m *merged) next() *mergedBucket {
	var next *mergedBucket
	for i := range m.buckets {
		b := &m.buckets[i]
		if len(b.left) == 0 {
			continue
		}
		if next == nil || m.compare(b.left[0], next.left[0]) < 0 {
			next = b
		}
	}
	return next
}

func (m *merged) compare(a, b string) int {
	if m.reverse {
		return cmp.Compare(b, a)
	}
	return cmp.Compare(a, b)
}

// fill reads the next page of each bucket that has none, with one round trip for all.
func (m *merged) fill(n int) error {
	var commands []rueidis.Completed
	var of []*mergedBucket
	for i := range m.buckets {
		b := &m.buckets[i]
		if len(b.left) > 0 || b.atLast {
			continue
		}
		list := m.store.client.B().Zrange().Key(b.key(m.kind)).Min(b.from)
		if m.reverse {
			commands = append(commands, list.Max("-").Bylex().Rev().Limit(0, int64(n)).Build())
		} else {
			commands = append(commands, list.Max("+").Bylex().Limit(0, int64(n)).Build())
		}
		of = append(of, b)
	}
	for i, reply := range m.store.client.DoMulti(m.ctx, commands...) {
		texts, err := reply.AsStrSlice()
		if err != nil {
			return m.store.fault(err)
		}
		of[i].left, of[i].atLast = texts, len(texts) < n
		if len(texts) > 0 {
			of[i].from = "(" + texts[len(texts)-1]
		}
	}
	return nil
}
