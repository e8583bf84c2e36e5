package redisstore

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// marshalChanges encodes the changes of a write for other processes. The messages that the write keeps are not in the
// result, because the script has them already; told is their number. They are the last ones that it pushes.
func marshalChanges(out *record.Outcome) (encoded string, told int, err error) {
	all := new(storev1.Changes)
	kept := 0
	if out.Record != nil {
		kept = out.Record.Added().Count()
	}
	dropped := -kept // How many of the messages were dropped at once: those before the kept ones.
	for i := range out.Changes {
		if len(out.Changes[i].Message) > 0 {
			dropped++
		}
	}
	for i := range out.Changes {
		c := &out.Changes[i]
		change := &storev1.Change{
			Kind: c.Kind, ConversationId: c.ConversationID, Uid: c.UID, Version: c.Version, Time: timestamppb.New(c.Time),
			Conversation: c.Conversation, Count: int32(c.Count), Trimmed: int32(c.Trimmed),
		}
		switch {
		case len(c.Message) == 0:
		case dropped > 0:
			change.Message, dropped = c.Message, dropped-1
		default:
			change.HasFrame, told = true, told+1
		}
		if c.Removal != nil {
			change.Removed = &storev1.RemovedSequences{After: c.Removal.After, Sequences: c.Removal.Sequences}
		}
		if r := c.Record; r != nil {
			change.RecordKey, change.RecordRevision, change.RecordDeleted = r.GetKey(), r.GetRevision(), r.GetDeleted()
		}
		all.Changes = append(all.Changes, change)
	}
	b, err := proto.Marshal(all)
	if err != nil {
		return "", 0, fmt.Errorf("encode changes: %w", err)
	}
	return string(b), told, nil
}

// published is what a script has published, see tell in lib.lua.
type published struct {
	numbered

	server string
	rest   []string // tenant, time, what was removed, changes, messages
}

// readPublished splits a published text. ok is false if it is malformed.
func readPublished(text string) (p published, ok bool) {
	var parts []string
	for text != "" {
		length, rest, found := strings.Cut(text, ":")
		n, err := strconv.Atoi(length)
		if !found || err != nil || n < 0 || n > len(rest) {
			return p, false
		}
		parts, text = append(parts, rest[:n]), rest[n:]
	}
	if len(parts) < 7 {
		return p, false
	}
	number, err := strconv.ParseInt(parts[0], 10, 64)
	return published{numbered: numbered{number, parts[1]}, server: parts[2], rest: parts[3:]}, err == nil
}

// changes decodes the changes. ok is false if some are missing or malformed.
func (p published) changes(own string) (changes []store.Change, ok bool) {
	tenant, _, ok := cutTenant(p.rest[0])
	count, err := strconv.Atoi(p.rest[2])
	if !ok || err != nil || count < 0 || len(p.rest) < 4+6*count {
		return nil, false
	}
	now, parts := unstamp(p.rest[1]), p.rest[3:]
	for range count {
		changes = append(changes, removal(tenant, now, parts[:6]))
		parts = parts[6:]
	}
	all := new(storev1.Changes)
	if err := proto.Unmarshal([]byte(parts[0]), all); err != nil {
		return nil, false
	}
	frames := parts[1:]
	for _, c := range all.GetChanges() {
		change := store.Change{
			Tenant: tenant, Kind: c.GetKind(), ConversationID: c.GetConversationId(), UID: c.GetUid(), Version: c.GetVersion(),
			Time: c.GetTime().AsTime(), Conversation: c.GetConversation(), Count: int(c.GetCount()),
			Trimmed: int(c.GetTrimmed()), Message: c.GetMessage(),
		}
		if c.GetHasFrame() {
			if len(frames) == 0 {
				return nil, false
			}
			frame, err := unsealed(nil, frames[:1])
			if err != nil {
				return nil, false
			}
			change.Message, frames = store.Frame(frame), frames[1:]
		}
		if r := c.GetRemoved(); r != nil {
			change.Removal = &store.Removal{After: r.GetAfter(), Sequences: r.GetSequences()}
		}
		if c.GetRecordKey() != "" {
			change.Record = &parleyv1.RecordChange{
				Key: c.GetRecordKey(), Revision: c.GetRecordRevision(), Deleted: c.GetRecordDeleted(),
			}
		}
		changes = append(changes, change)
	}
	for i := range changes {
		changes[i].Elsewhere = p.server != own
	}
	return changes, true
}

// removal returns the change that reports what a script has removed, see removed in lib.lua.
func removal(tenant string, now time.Time, f []string) store.Change {
	c := store.Change{Tenant: tenant, ConversationID: f[0], UID: f[1], Time: now}
	version, _ := strconv.ParseInt(f[2], 10, 32)
	c.Version = int32(version)
	c.Count, _ = strconv.Atoi(f[3])
	switch f[5] {
	case "expired":
		c.Kind, c.ExpireTime = parleyv1.ChangeKind_CHANGE_KIND_EXPIRED, unstamp(f[4])
	case "evicted":
		c.Kind = parleyv1.ChangeKind_CHANGE_KIND_EVICTED
	default:
		c.Kind, c.EphemeralEnded = parleyv1.ChangeKind_CHANGE_KIND_DELETED, true
	}
	return c
}

// gap is the change that says that changes were missed.
func gap() []store.Change {
	return []store.Change{{Kind: parleyv1.ChangeKind_CHANGE_KIND_GAP, Elsewhere: true}}
}
