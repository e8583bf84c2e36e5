package record

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// conversationsField is the field of a list's reply whose size store.MaxListBytes limits.
var conversationsField = store.FieldNumber(new(parleyv1.ListConversationsResponse), "conversations")

// KeySize is the length of a [Key].
const KeySize = 12

// Key returns the key of a conversation within its tenant. Keys are in the order of create time. The number separates
// conversations that were created in the same nanosecond. A store assigns rising numbers: of two conversations, the one
// added later has the higher number, whatever their create times. If a tenant is divided into lanes, numbers rise
// within each lane: the number of a conversation modulo the number of lanes is its lane.
func Key(created time.Time, number uint32) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, KeySize), uint64(created.UnixNano()))
	return binary.BigEndian.AppendUint32(b, number)
}

// numberIn returns the number in a key.
func numberIn(key []byte) uint32 { return binary.BigEndian.Uint32(key[KeySize-4:]) }

// Key returns the record's key. A new record has no number until SetNumber.
func (r *Record) Key() []byte {
	return Key(r.Conversation().GetCreateTime().AsTime(), r.Header.GetNumber())
}

// SetNumber sets the number of a new record, which is part of its Key.
func (r *Record) SetNumber(number uint32) { r.Header.Number = number }

// Newest yields the tenant's conversations in descending order of [Key]: the key and the value of
// [Record.Marshal]. It yields those whose key is less than before, or all of them if before is nil.
// before may be longer than a key.
type Newest func(before []byte) iter.Seq2[[]byte, []byte]

// Oldest yields the tenant's conversations in ascending order of [Key]: those whose key is greater
// than after, or all of them if after is nil.
type Oldest func(after []byte) iter.Seq2[[]byte, []byte]

// BuildPage builds the page of a store.List. total is the number of the tenant's conversations. lanes is the number of
// lanes of the tenant, see [Key]. BuildPage calls newest or oldest once and stops reading when the page is full. The
// yielded slices must not change until BuildPage returns; the page does not refer to them. BuildPage skips and counts
// conversations whose record is damaged, so that the others can be listed. Errors: store.ErrPageToken, and the error of
// ctx, which is checked before each conversation.
func BuildPage(ctx context.Context, l *store.List, total int64, lanes int, now time.Time, newest Newest, oldest Oldest,
	ephemeral EphemeralStates,
) (*store.Page, error) {
	var position []byte
	if l.PageToken != "" {
		var err error
		if position, err = store.OpenToken(l.PageToken, scope(l)...); err != nil {
			return nil, err
		}
		if len(position) != KeySize && (len(position) != inBlockSize(lanes) || !byUpdateTime(l)) {
			return nil, store.ErrPageToken
		}
	}
	p := pager{list: l, text: strings.ToLower(l.Text), lanes: lanes, now: now, ephemeral: ephemeral}
	switch {
	case byUpdateTime(l):
		position = p.fillByUpdateTime(ctx, position, newest)
	case l.OldestFirst:
		position = p.fillByCreateTime(ctx, position, oldest(position))
	default:
		position = p.fillByCreateTime(ctx, position, newest(position))
	}
	if err := ctx.Err(); err != nil {
		return nil, err // The page is incomplete.
	}
	page := &store.Page{Entries: p.entries, Total: total, Damaged: p.damaged}
	if position != nil {
		page.NextPageToken = store.SealToken(position, scope(l)...)
	}
	return page, nil
}

func byUpdateTime(l *store.List) bool {
	return l.Order == parleyv1.ListOrder_LIST_ORDER_UPDATE_TIME_DESC
}

// scope identifies a list. A token is valid only for lists with the same scope.
func scope(l *store.List) []string {
	order := "created"
	switch {
	case byUpdateTime(l):
		order = "updated"
	case l.OldestFirst:
		order = "oldest"
	}
	s := []string{"conversations", l.Tenant, order, l.StructuredDataType}
	if l.Text != "" {
		// The other tokens stay as they were. A label has a key, so this is none.
		s = append(s, "", l.Text)
	}
	for _, key := range slices.Sorted(maps.Keys(l.Labels)) {
		s = append(s, key, l.Labels[key])
	}
	return s
}

// pager collects the rows of one page.
type pager struct {
	list      *store.List
	text      string // List.Text in lower case
	lanes     int
	now       time.Time
	ephemeral EphemeralStates
	entries   []*parleyv1.ConversationEntry
	size      int
	damaged   int
	readBytes int // bytes of headers and data that were read
}

// readMatching reads a row. It returns false if the list does not include the conversation, or if the value is damaged
// or has the wrong key.
func (p *pager) readMatching(key, value []byte) (row, bool) {
	r, size, err := readRow(value, p.list.StructuredDataType != "")
	p.readBytes += size
	if err != nil || string(r.tenant) != p.list.Tenant || !bytes.Equal(key, r.key()) {
		p.damaged++
		return row{}, false
	}
	return r, r.matches(p.list, p.text) && !r.expired(p.now, p.ephemeral.Of(string(r.id)))
}

// add adds the conversation of a value and returns true, unless the page is full. It skips and counts a damaged one.
func (p *pager) add(value []byte) bool {
	v, err := unmarshal(value)
	if err != nil {
		p.damaged++
		return true
	}
	v.removeExpiredLease(p.now)
	entry := v.Entry()
	size := protowire.SizeTag(conversationsField) + protowire.SizeBytes(proto.Size(entry))
	full := len(p.entries) >= p.list.PageSize || p.size+size > store.MaxListBytes
	if len(p.entries) > 0 && full {
		return false
	}
	p.entries, p.size = append(p.entries, entry), p.size+size
	return true
}

// fillByCreateTime fills the page with the conversations that entries yields in the order of create
// time. It returns the position after which the next page starts: the key of the last conversation
// that was read, or nil at the end of the list.
func (p *pager) fillByCreateTime(ctx context.Context, position []byte, entries iter.Seq2[[]byte, []byte]) []byte {
	scanned, last := 0, position
	for key, value := range entries {
		if scanned == store.MaxListHeaders || scanned > 0 && p.readBytes >= store.MaxListHeaderBytes || ctx.Err() != nil {
			return last
		}
		if _, ok := p.readMatching(key, value); ok && !p.add(value) {
			return last
		}
		scanned, last = scanned+1, key
	}
	return nil
}

// listRow is a conversation's position in the order of update time.
type listRow struct {
	updated    int64
	key, value []byte
}

// compare orders rows by update time, the latest first.
func (a listRow) compare(b listRow) int {
	return cmp.Or(cmp.Compare(b.updated, a.updated), bytes.Compare(b.key, a.key))
}

// inBlockSize returns the length of a position inside a block: the keys of its first and last conversation, its highest
// number in each lane, then update time and key of the last returned row.
func inBlockSize(lanes int) int { return 3*KeySize + 4*lanes + 8 }

// fillByUpdateTime fills the page in the order of update time, within one block of at most
// store.MaxListHeaders conversations by create time. A position is either inside a block, or the
// key below which the next block begins.
func (p *pager) fillByUpdateTime(ctx context.Context, position []byte, newest Newest) []byte {
	b := p.readBlock(ctx, position, newest)
	slices.SortFunc(b.rows, listRow.compare)
	for i, at := range b.rows {
		if ctx.Err() != nil {
			break
		}
		if !p.add(at.value) {
			returned := b.rows[i-1]
			var at []byte
			for _, highest := range b.highest {
				at = binary.BigEndian.AppendUint32(at, highest)
			}
			at = binary.BigEndian.AppendUint64(at, uint64(returned.updated))
			return slices.Concat(b.first, b.last, at, returned.key)
		}
	}
	if b.more {
		return b.last
	}
	return nil
}

// block is a range of conversations in the order of create time. Its first page determines its
// bounds.
type block struct {
	first, last []byte    // their keys
	highest     []uint32  // highest number in the keys, of each lane
	rows        []listRow // matching conversations that were on no page yet
	more        bool      // older conversations follow
}

// readBlock reads the block that contains the position or begins below it. A block keeps its bounds
// from page to page, whatever is added and deleted, so that no conversation moves to another block.
// Conversations that were imported into it since its first page are skipped, so that its size does
// not grow.
func (p *pager) readBlock(ctx context.Context, position []byte, newest Newest) block {
	before, inside := position, len(position) == inBlockSize(p.lanes)
	b := block{highest: make([]uint32, p.lanes)}
	var returned listRow
	if inside {
		b.first, b.last = position[:KeySize], position[KeySize:2*KeySize]
		before, position = slices.Concat(b.first, []byte{0}), position[2*KeySize:]
		for i := range b.highest {
			b.highest[i], position = binary.BigEndian.Uint32(position), position[4:]
		}
		returned.updated, returned.key = int64(binary.BigEndian.Uint64(position)), position[8:]
	}
	scanned, end := 0, b.last
	for key, value := range newest(before) {
		b.more = scanned == store.MaxListHeaders || inside && bytes.Compare(key, b.last) < 0 ||
			!inside && scanned > 0 && p.readBytes >= store.MaxListHeaderBytes
		if b.more || ctx.Err() != nil {
			break
		}
		highest := &b.highest[int(numberIn(key))%p.lanes]
		if inside && numberIn(key) > *highest {
			continue
		}
		if b.first == nil {
			b.first = key
		}
		scanned, end = scanned+1, key
		if !inside {
			*highest = max(*highest, numberIn(key))
		}
		if r, ok := p.readMatching(key, value); ok {
			at := listRow{updated: r.updated.UnixNano(), key: key, value: value}
			if !inside || returned.compare(at) < 0 {
				b.rows = append(b.rows, at)
			}
		}
	}
	// A block retains its last key, even if that conversation was deleted. It is full before that
	// key only if the token is forged, or if the numbers started again at 0: the remaining
	// conversations are then the next block.
	if !inside || scanned == store.MaxListHeaders {
		b.last = end
	}
	return b
}
