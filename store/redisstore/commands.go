package redisstore

import (
	"bytes"
	"strconv"
	"time"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
)

// command returns the arguments of commit.lua after those that all scripts share.
func (t *transaction) command() ([]string, error) {
	out, limits := t.outcome, t.store.options.Limits(t.space.tenant)
	mode := t.mode()
	maxBytes := bytesHere(limits.MaxBytes, t.elsewhere)
	if t.write.mayExceed || t.isAcross() {
		maxBytes = 0
	}
	edits, tenant := t.edits()
	b := newCommands(t.space)
	e := new(extra)
	var place, text string
	var delta records.Counts
	bytesBefore, messagesBefore := int64(0), 0
	if mode == "change" {
		e, place = t.old.extra, t.old.place
		bytesBefore, messagesBefore = t.old.size, t.messagesBefore()
	}
	messages, size := 0, int64(0)
	if r := out.Record; r != nil {
		if mode != "change" {
			r.SetNumber(t.number)
			place = string(r.Key())
		}
		if err := t.putRecord(b, r, e, mode == "change"); err != nil {
			return nil, err
		}
		head, err := r.Head().MarshalHead()
		if err != nil {
			return nil, err
		}
		e.commits = withCommit(e.commits, t.commit)
		rest := e.marshal()
		size = sizeOf(r, len(head), e)
		text = summaryOf(r, size)
		b.fields = append(b.fields, "v", t.commit, "s", text, "x", string(rest), "h", string(head))
		if mode != "change" {
			b.fields = append(b.fields, "k", place)
		}
		b.add(append([]string{"HSET", t.of("c", t.write.id)}, b.fields...)...)
		messages = int(r.Conversation().GetMessageCount()) - messagesBefore
		b.records(t.write.id, t.commit, edits, tenant)
		if edits != nil {
			delta = edits.Conversation.Plus(edits.Tenant)
		}
	}
	t.bytes = size - bytesBefore + delta.Bytes
	changes, told, err := marshalChanges(out)
	if err != nil {
		return nil, err
	}
	source, sourceRevision := "", ""
	if t.source != nil && t.source.index == t.index { // The script reads no other bucket.
		source, sourceRevision = t.source.id, t.source.revision
	}
	return b.args(
		t.write.id, t.old.revision, mode, tenant.read(), source, sourceRevision,
		strconv.Itoa(t.store.share(limits.MaxConversations)),
		strconv.FormatInt(maxBytes, 10), place, text, strconv.Itoa(messages), strconv.FormatInt(delta.Records, 10),
		strconv.FormatInt(delta.RecordBytes, 10), strconv.FormatInt(t.bytes, 10), t.store.server,
		changes, strconv.Itoa(told),
	), nil
}

// messagesBefore returns the number of messages before the write.
func (t *transaction) messagesBefore() int { return t.aside + len(t.old.extra.sizes) }

// putRecord adds the commands that write messages, parts and turns, and completes e. changes says that the conversation
// exists.
func (t *transaction) putRecord(b *commands, r *record.Record, e *extra, changes bool) error {
	list := t.of("m", t.write.id)
	switch {
	case !changes:
		b.push(list, r.Messages)
		b.deleteAt(t.write.id, t.write.deleteTime)
	case t.write.messages:
		kept := t.aside - t.chunks.joined
		b.trim(list, t.messagesBefore(), 0, kept)
		b.trim(list, kept, kept-int(r.Header.GetChunks().GetMessages()), -1)
		b.push(list, r.Messages)
	default:
		left := int(r.Conversation().GetMessageCount()) - r.Added().Count()
		b.trim(list, t.messagesBefore(), t.messagesBefore()-left, -1)
	}
	b.push(list, r.Added())
	if err := t.putTurns(b, r, changes); err != nil {
		return err
	}
	e.sizes = r.CountAside(maxSizes)
	for i, value := range [parts][]byte{requestsPart: r.Requests, turnsPart: r.Turns, promptPart: r.Prompt} {
		i := part(i)
		if changes && !t.old.read[i] {
			continue
		}
		e.setPart(i, value)
		before := ""
		if changes {
			before = t.old.values[i]
		}
		b.part(t.of("c", t.write.id), i, before, string(value))
	}
	return nil
}

// commands collects the commands of a commit.
type commands struct {
	space

	words  []string
	fields []string // of the conversation
}

// deleteAt adds the commands that make a new conversation an ephemeral one that is deleted at a time; none for zero.
func (b *commands) deleteAt(id string, end time.Time) {
	if !end.IsZero() {
		b.add("HSET", b.key("em"), id, stamp(end))
		b.add("ZADD", b.key("ed"), strconv.FormatInt(end.UnixMicro(), 10), id)
	}
}

func newCommands(p space) *commands { return &commands{space: p} }

// add adds a command.
func (b *commands) add(words ...string) {
	b.words = append(append(b.words, strconv.Itoa(len(words))), words...)
}

// maxWords is the maximum number of words of a command; Lua can pass some thousands.
const maxWords = 1000

// addMany adds commands that begin with the same words, followed by any number of others, which belong together in
// groups of n.
func (b *commands) addMany(begin []string, n int, rest []string) {
	for most := maxWords - maxWords%n; len(rest) > 0; {
		now := min(most, len(rest))
		b.add(append(append([]string{}, begin...), rest[:now]...)...)
		rest = rest[now:]
	}
}

// args returns the arguments of the script.
func (b *commands) args(first ...string) []string { return append(first, b.words...) }

// push appends messages to the list.
func (b *commands) push(list string, frames store.Frames) {
	var elements []string
	for frame := range frames.All() {
		elements = append(elements, sealed(frame))
	}
	b.addMany([]string{"RPUSH", list}, 1, elements)
}

// trim keeps the elements from one place to before another of a list of n; -1 is its end.
func (b *commands) trim(list string, n, from, to int) {
	if to < 0 {
		to = n
	}
	switch {
	case from >= to && n > 0:
		b.add("DEL", list)
	case from > 0 || to < n:
		b.add("LTRIM", list, strconv.Itoa(from), strconv.Itoa(to-1))
	}
}

// part writes a part of the conversation. Of one that begins like a piece of what it was before, it sends only the
// rest.
func (b *commands) part(key string, p part, before, after string) {
	if before == after {
		return
	}
	const least = 64 // bytes that a common piece must have to be worth a splice
	if len(after) >= least && len(before) >= least {
		from := bytes.Index([]byte(before), []byte(after[:least]))
		if from >= 0 {
			n := 0
			for n < len(after) && from+n < len(before) && after[n] == before[from+n] {
				n++
			}
			b.add("SPLICE", key, p.field(), strconv.Itoa(from+1), strconv.Itoa(from+n), after[n:])
			return
		}
	}
	b.fields = append(b.fields, p.field(), after)
}
