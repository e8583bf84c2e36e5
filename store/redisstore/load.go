package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

func isNil(err error) bool { return rueidis.IsRedisNil(err) }

// conversation is a conversation as it was read. It may have ended.
type conversation struct {
	space
	id        string
	revision  string // empty if there is none
	summary   string
	place     string // key in the order of create time
	ephemeral record.Ephemeral
	extra     *extra
	size      int64          // in bytes, without its records
	record    *record.Record // nil if there is none
	values    [parts]string  // of the parts that were read
	read      [parts]bool
}

// Indexes of the fields that every load of a conversation reads. The fields of its parts follow.
const (
	revisionField = iota
	summaryField
	placeField
	ephemeralField
	extraField
	headField
	fixedFields
)

// loadCommand returns the command that reads a conversation with these parts.
func (s *Store) loadCommand(p space, id string, with ...part) rueidis.Completed {
	args := []string{"v", "s", "k", "e", "x", "h"}
	for _, part := range with {
		args = append(args, part.field())
	}
	return s.client.B().Hmget().Key(p.of("c", id)).Field(args...).Build()
}

// decode decodes the reply of a loadCommand. If the conversation is damaged, the error is store.ErrCorrupt, and the
// result has all but its record.
func (s *Store) decode(
	ctx context.Context, p space, id string, reply rueidis.RedisResult, with ...part,
) (*conversation, error) {
	fields, err := reply.ToArray()
	if err != nil {
		return nil, s.fault(err)
	}
	text := func(i int) string {
		value, _ := fields[i].ToString() // A field that does not exist is empty.
		return value
	}
	c := &conversation{
		space: p, id: id, revision: text(revisionField), summary: text(summaryField), place: text(placeField),
	}
	if c.place == "" && c.revision == "" {
		return c, nil
	}
	var ok bool
	if c.ephemeral, ok = ephemeralOf(text(ephemeralField)); !ok {
		return c, fmt.Errorf("%w: ephemeral state of a conversation", store.ErrCorrupt)
	}
	if err := c.decode(text(headField), text(extraField)); err != nil {
		return c, err
	}
	for i, part := range with {
		value := text(fixedFields + i)
		if err := c.extra.check(part, []byte(value)); err != nil {
			c.record = nil
			return c, err
		}
		c.values[part], c.read[part] = value, true
	}
	c.setParts()
	c.record.TurnChunks = &turnChunks{ctx: ctx, store: s, conversation: c}
	return c, nil
}

// decode decodes head and extra.
func (c *conversation) decode(head, rest string) (err error) {
	if c.extra, err = unmarshalExtra(rest); err != nil {
		return err
	}
	r, err := record.Unmarshal([]byte(head))
	if err != nil {
		return err
	}
	if h := r.Conversation(); h.GetId() != c.id || r.Header.GetTenant() != c.tenant || string(r.Key()) != c.place {
		return fmt.Errorf("%w: it is another conversation", store.ErrCorrupt)
	}
	if !strings.HasSuffix(c.extra.commits, c.revision) || c.revision == "" {
		return fmt.Errorf("%w: revision of a conversation", store.ErrCorrupt)
	}
	count := int(r.Header.GetChunks().GetMessages()) + len(c.extra.sizes)
	if count != int(r.Conversation().GetMessageCount()) {
		return fmt.Errorf("%w: sizes of a conversation", store.ErrCorrupt)
	}
	r.Sizes = record.ListSizes(c.extra.sizes)
	c.record = r
	c.size = sizeOf(r, len(head), c.extra)
	return nil
}

// sizeOf returns the size of a conversation in bytes without its records: of head, messages, chunks of turns and parts.
func sizeOf(r *record.Record, head int, e *extra) int64 {
	size := int64(head+r.MessageBytes()) + r.Header.GetTurnChunks().GetBytes()
	for _, n := range e.lengths {
		size += int64(n)
	}
	return size
}

// setParts gives the record the parts that were read, in memory of its own.
func (c *conversation) setParts() {
	c.record.Requests = []byte(c.values[requestsPart])
	c.record.Turns = []byte(c.values[turnsPart])
	c.record.Prompt = []byte(c.values[promptPart])
}

// ephemeralOf returns the ephemeral state of an id from its stored form, see lib.lua. ok is false if it is damaged.
func ephemeralOf(text string) (e record.Ephemeral, ok bool) {
	number, held := strings.CutPrefix(text, "h")
	switch n, err := strconv.ParseInt(number, 10, 64); {
	case text == "":
		return e, true
	case err != nil || n < 0:
		return e, false
	case held:
		return record.Ephemeral{Held: true}, n > 0
	default:
		return record.Ephemeral{DeleteTime: time.Unix(0, n)}, len(text) == len(stamp(time.Time{}))
	}
}

// live returns the record if there is one and it has not ended.
func (c *conversation) live(now time.Time) *record.Record {
	if c.record == nil || c.record.Expired(now, c.ephemeral) {
		return nil
	}
	return c.record
}

// count returns the number of retained messages.
func (c *conversation) count() int { return int(c.record.Conversation().GetMessageCount()) }

// deleted returns the change that reports the deletion of a damaged conversation.
func (c *conversation) deleted(now time.Time) store.Change {
	s, _ := readSummary(c.summary)
	return store.Change{
		Tenant: c.tenant, Kind: parleyv1.ChangeKind_CHANGE_KIND_DELETED, ConversationID: c.id, UID: s.uid, Version: s.version,
		Time: now, Count: s.messages,
	}
}

// maxTries is how often a read or a write is tried again because another one came in between.
const maxTries = 200

// errMoved means that the conversation has changed since it was read.
var errMoved = errors.New("the conversation has changed since it was read")

// maxPause is the longest pause before a write is tried again because the engine did not answer.
const maxPause = 250 * time.Millisecond

// again calls try until it does not return errMoved. If the error is store.ErrUnavailable, too, there are pauses
// between the calls. If the time ends during a call, the error is that of the call before.
func again[T any](ctx context.Context, try func() (T, error)) (T, error) {
	pause := maxPause / 32
	var cause error
	for range maxTries {
		result, err := try()
		isLost := errors.Is(err, store.ErrUnavailable)
		if isLost && errors.Is(err, context.DeadlineExceeded) { // The earlier error is more specific.
			err = cmp.Or(cause, err)
		}
		if isLost {
			cause = err
		}
		if !errors.Is(err, errMoved) || isLost && ctx.Err() != nil {
			return result, err
		}
		if err := ctx.Err(); err != nil {
			return result, err
		}
		if isLost {
			pause = min(2*pause, maxPause)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return result, err
			}
		}
	}
	var none T
	return none, fmt.Errorf("%w: %d other writes came in between", store.ErrOverloaded, maxTries)
}

// revisionCommand returns a command that reads the revision of a conversation again, at the end of a pipeline.
func (s *Store) revisionCommand(p space, id string) rueidis.Completed {
	return s.client.B().Hget().Key(p.of("c", id)).Field("v").Build()
}

// unchanged returns errMoved if the reply of a revisionCommand differs from the revision that was read first.
func (s *Store) unchanged(c *conversation, reply rueidis.RedisResult) error {
	revision, err := reply.ToString()
	if err != nil && !isNil(err) {
		return s.fault(err)
	}
	if revision != c.revision {
		return errMoved
	}
	return nil
}

// load reads a conversation without messages.
func (s *Store) load(ctx context.Context, p space, id string, with ...part) (*conversation, error) {
	return s.decode(ctx, p, id, s.client.Do(ctx, s.loadCommand(p, id, with...)), with...)
}

// pageElements is the number of messages that one command reads at most.
const pageElements = 256

// elements reads messages by their places in the list, from first to last. The error is errMoved if the conversation
// has changed.
func (s *Store) elements(ctx context.Context, c *conversation, first, last int) (store.Frames, error) {
	var frames store.Frames
	for ; first <= last; first += pageElements {
		end := min(last, first+pageElements-1)
		replies := s.client.DoMulti(ctx,
			s.client.B().Lrange().Key(c.of("m", c.id)).Start(int64(first)).Stop(int64(end)).Build(),
			s.revisionCommand(c.space, c.id))
		list, err := replies[0].AsStrSlice()
		if err != nil {
			return nil, s.fault(err)
		}
		if err := s.unchanged(c, replies[1]); err != nil {
			return nil, err
		}
		if len(list) != end-first+1 {
			return nil, fmt.Errorf("%w: messages %d to %d of the list are missing", store.ErrCorrupt, first, end)
		}
		if frames, err = unsealed(frames, list); err != nil {
			return nil, err
		}
	}
	return frames, nil
}
