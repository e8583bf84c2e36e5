package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	// followPage is the page size of a poll. Usually only a few entries are new.
	followPage = 100
	// overlap is how far a poll goes back before the start of the previous one. It covers entries that
	// are written late and calls that arrive late.
	overlap = time.Minute
	// maxDisorder is how much older than the newest entry a new entry may be. A poll stops at known
	// entries that are older than that.
	maxDisorder = 10 * time.Second
	// maxOutage is the longest outage of a server after which its entries are still printed.
	// A server that was killed is not asked any more when its lease has ended.
	maxOutage = 10 * time.Minute
)

// entryKey identifies an entry of the log.
type entryKey struct {
	conversation string
	turn         int32
	micros       int64  // since 1970
	content      string // Only for entries without a turn, of which people may write several in one second.
}

// keyOfEntry returns the key of an entry.
func keyOfEntry(i *parleyv1.Interaction) entryKey {
	turn := i.GetMetadata().GetFields()["turn_number"].GetNumberValue()
	key := entryKey{conversation: i.GetConversationId(), turn: int32(turn), micros: i.GetTimestamp().AsTime().UnixMicro()}
	if key.turn == 0 {
		key.content = i.GetContent()
	}
	return key
}

// keyOfMessage returns the key of the entry of an appended message.
func keyOfMessage(change *parleyv1.ConversationChange) entryKey {
	m := change.GetMessage()
	return entryKey{
		conversation: change.GetConversationId(), turn: m.GetSequence(), micros: m.GetCreateTime().AsTime().UnixMicro(),
	}
}

// logFollower prints entries as they are added to the log. It polls the log when a watch reports a change,
// because the server reports a message after it has logged it. New entries are those that no earlier poll
// has returned.
type logFollower struct {
	*app

	client  *client.Client
	writer  logWriter
	request *parleyv1.ListInteractionsRequest // Lists the entries to print first.

	seen     map[entryKey]time.Time // The known entries and the local time of the last poll that returned them.
	lastPoll time.Time              // The local time at which the last complete poll began.
	newest   time.Time              // The latest timestamp of the known entries.
	// unreachable are the servers that did not answer the last poll.
	unreachable []string
}

// followLog prints the entries that request lists, the newest last, and then new entries.
func (a *app) followLog(ctx context.Context, request *parleyv1.ListInteractionsRequest, flags *logFlags) error {
	if err := flags.check(); err != nil {
		return err
	}
	if !a.timeoutSet {
		a.timeout = 0
	}
	return a.call(ctx, func(ctx context.Context, c *client.Client) error {
		f := &logFollower{
			app: a, client: c, writer: logWriter{app: a}, request: request, seen: map[entryKey]time.Time{}, lastPoll: a.now(),
		}
		return f.run(ctx, flags)
	})
}

// run prints entries until ctx ends or an error occurs. Ctrl-C and the end of --timeout are no errors.
func (f *logFollower) run(ctx context.Context, flags *logFlags) error {
	watch := &parleyv1.WatchConversationsRequest{}
	if id := f.request.GetConversationId(); id != "" {
		watch.ConversationIds = []string{id}
	}
	active := false
	for change, err := range f.client.WatchConversations(ctx, watch) {
		switch {
		case err != nil:
		case !active: // The watch is active and reports every later message.
			active = true
			if f.errTerminal {
				fmt.Fprintln(f.err, "following the log; press Ctrl-C to stop")
			}
			err = f.showExisting(ctx, flags)
		case f.mayHaveNewEntries(change):
			if err = f.poll(ctx, f.writer.show); status.Code(err) == codes.Unavailable && ctx.Err() == nil {
				err = nil // The watch waits for the server and reports when it is available again.
			}
		}
		if err != nil {
			// Ctrl-C, SIGTERM and, once the watch is active, the end of --timeout are regular ends.
			if late := status.Code(err) == codes.DeadlineExceeded; late && active || !late && ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
	return nil
}

// mayHaveNewEntries reports whether the log may have unknown entries after change. That is so for an unknown
// message, and after each heartbeat or gap of the watch.
func (f *logFollower) mayHaveNewEntries(change *parleyv1.ConversationChange) bool {
	switch change.GetKind() {
	case parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED:
		_, known := f.seen[keyOfMessage(change)]
		return !known
	case parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT, parleyv1.ChangeKind_CHANGE_KIND_GAP:
		return true
	default:
		return false
	}
}

// showExisting prints the entries that the request lists. It marks all recent entries as known, including those
// that it does not print.
func (f *logFollower) showExisting(ctx context.Context, flags *logFlags) error {
	if err := f.poll(ctx, func(*parleyv1.Interaction) error { return nil }); err != nil {
		return err
	}
	newestFirst := f.request.GetSpan() != nil
	var reversed []*parleyv1.Interaction
	getPage := listPages(f.request)
	more, err := f.readLog(flags, func(size int32, token string) (interactionPage, error) {
		return getPage(ctx, f.client, size, token)
	}, func(i *parleyv1.Interaction) error {
		f.markSeen(keyOfEntry(i), i, f.now())
		if newestFirst {
			reversed = append(reversed, i)
			return nil
		}
		return f.writer.show(i)
	})
	if err != nil {
		return err
	}
	for _, i := range slices.Backward(reversed) {
		if err := f.writer.show(i); err != nil {
			return err
		}
	}
	if more != "" {
		fmt.Fprintln(f.err, "there are older messages; --limit sets how many are shown")
	}
	return nil
}

// markSeen records an entry that a poll at time at has returned.
func (f *logFollower) markSeen(key entryKey, i *parleyv1.Interaction, at time.Time) {
	f.seen[key] = at
	if stamp := i.GetTimestamp().AsTime(); stamp.After(f.newest) {
		f.newest = stamp
	}
}

// poll calls show with the unknown entries of the log, oldest first. If it cannot read the log, no entry becomes
// known.
func (f *logFollower) poll(ctx context.Context, show func(*parleyv1.Interaction) error) error {
	start := f.now()
	// The monotonic clock may stop while the machine sleeps.
	since := max(start.Sub(f.lastPoll), start.Round(0).Sub(f.lastPoll.Round(0)))
	request := &parleyv1.ListInteractionsRequest{
		Span:     &parleyv1.ListInteractionsRequest_Within{Within: durationpb.New(since + overlap)},
		PageSize: followPage,
	}
	var entries []*parleyv1.Interaction
	var unreachable []string
	for {
		page, err := f.client.ListInteractions(ctx, request)
		if err != nil {
			return err
		}
		entries, unreachable = append(entries, page.GetInteractions()...), page.GetUnreachable()
		// Unknown entries of a server that did not answer may be older than all known ones.
		mayStop := len(f.unreachable) == 0 && f.allSeen(page.GetInteractions())
		if request.PageToken = page.GetNextPageToken(); request.GetPageToken() == "" || mayStop {
			break
		}
	}
	for _, i := range slices.Backward(entries) {
		key := keyOfEntry(i)
		_, known := f.seen[key]
		f.markSeen(key, i, start)
		if wanted := f.request.GetConversationId(); known || wanted != "" && wanted != i.GetConversationId() {
			continue
		}
		if err := show(i); err != nil {
			return err
		}
	}
	if len(unreachable) > 0 && !slices.Equal(unreachable, f.unreachable) {
		fmt.Fprintln(f.err, unreachableText(unreachable))
	}
	f.unreachable = unreachable
	if len(unreachable) == 0 || start.Sub(f.lastPoll) > maxOutage {
		f.lastPoll = start
	}
	maps.DeleteFunc(f.seen, func(_ entryKey, last time.Time) bool { return last.Before(f.lastPoll.Add(-overlap)) })
	return nil
}

// allSeen reports whether no unknown entry can follow entries: all are known, and the last one is older than a
// new entry may be.
func (f *logFollower) allSeen(entries []*parleyv1.Interaction) bool {
	for _, i := range entries {
		if _, known := f.seen[keyOfEntry(i)]; !known {
			return false
		}
	}
	return len(entries) > 0 && entries[len(entries)-1].GetTimestamp().AsTime().Before(f.newest.Add(-maxDisorder))
}
