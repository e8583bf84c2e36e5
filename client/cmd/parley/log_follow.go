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
	// followPage is how many lines are asked for at a time: mostly few of them are new.
	followPage = 100
	// overlap is how far a look at the log goes back behind the start of the one before, for
	// lines that are late, and calls that are.
	overlap = time.Minute
	// disorder is how much older than the lines ahead of it a new line may be, when looks go
	// back no further than they must.
	disorder = 10 * time.Second
)

// lineKey tells a line of the log from others.
type lineKey struct {
	conversation string
	turn         int32
	micros       int64  // since 1970
	content      string // of lines without a turn: people write several at the same second
}

func keyOfLine(i *parleyv1.Interaction) lineKey {
	turn := i.GetMetadata().GetFields()["turn_number"].GetNumberValue()
	key := lineKey{conversation: i.GetConversationId(), turn: int32(turn), micros: i.GetTimestamp().AsTime().UnixMicro()}
	if key.turn == 0 {
		key.content = i.GetContent()
	}
	return key
}

// keyOfMessage is the key of the line that a message has.
func keyOfMessage(change *parleyv1.ConversationChange) lineKey {
	m := change.GetMessage()
	return lineKey{conversation: change.GetConversationId(), turn: m.GetSequence(), micros: m.GetCreateTime().AsTime().UnixMicro()}
}

// logFollower shows lines as they come into the log. A watch says when to look: the server
// tells of a message when its line is written. What is new is what no look has met before.
type logFollower struct {
	*app

	client  *client.Client
	lines   logLines
	request *parleyv1.ListInteractionsRequest // What to begin with.

	seen   map[lineKey]time.Time // The lines met, and when last by our clock.
	looked time.Time             // When the last look began, by our clock.
	newest time.Time             // The latest timestamp met.
}

// followLog shows what a list gives, the newest last, and then what comes.
func (a *app) followLog(ctx context.Context, request *parleyv1.ListInteractionsRequest, flags *logFlags) error {
	if err := flags.check(); err != nil {
		return err
	}
	if !a.timeoutSet {
		a.timeout = 0
	}
	return a.call(ctx, func(ctx context.Context, c *client.Client) error {
		f := &logFollower{app: a, client: c, lines: logLines{app: a}, request: request, seen: map[lineKey]time.Time{}, looked: a.now()}
		return f.run(ctx, flags)
	})
}

// run shows lines until there is no more time or somebody ends it.
func (f *logFollower) run(ctx context.Context, flags *logFlags) error {
	watch := &parleyv1.WatchConversationsRequest{}
	if id := f.request.GetConversationId(); id != "" {
		watch.ConversationIds = []string{id}
	}
	stands := false
	for change, err := range f.client.WatchConversations(ctx, watch) {
		switch {
		case err != nil:
		case !stands: // What is written from here on is told of.
			stands = true
			if f.errTerminal {
				fmt.Fprintln(f.err, "following the log; Ctrl-C ends it")
			}
			err = f.begin(ctx, flags)
		case f.isNews(change):
			if err = f.look(ctx, f.lines.show); status.Code(err) == codes.Unavailable && ctx.Err() == nil {
				err = nil // The watch waits for the server, and says when it is back.
			}
		}
		if err != nil {
			// What ends this is that somebody ends it, or the time that it was given.
			if late := status.Code(err) == codes.DeadlineExceeded; late && stands || !late && ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
	return nil
}

// isNews reports whether there may be lines that were not met: of a message that was not, and
// whenever the watch has been silent or broken.
func (f *logFollower) isNews(change *parleyv1.ConversationChange) bool {
	switch change.GetKind() {
	case parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED:
		_, met := f.seen[keyOfMessage(change)]
		return !met
	case parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT, parleyv1.ChangeKind_CHANGE_KIND_GAP:
		return true
	default:
		return false
	}
}

// begin shows what is there. What is not asked for is met all the same.
func (f *logFollower) begin(ctx context.Context, flags *logFlags) error {
	if err := f.look(ctx, func(*parleyv1.Interaction) error { return nil }); err != nil {
		return err
	}
	newestFirst := f.request.GetSpan() != nil
	var later []*parleyv1.Interaction
	ask := lister(f.request)
	more, err := f.readLog(flags, func(size int32, token string) (interactionPage, error) {
		return ask(ctx, f.client, size, token)
	}, func(i *parleyv1.Interaction) error {
		f.meet(keyOfLine(i), i, f.now())
		if newestFirst {
			later = append(later, i)
			return nil
		}
		return f.lines.show(i)
	})
	if err != nil {
		return err
	}
	for _, i := range slices.Backward(later) {
		if err := f.lines.show(i); err != nil {
			return err
		}
	}
	if more != "" {
		fmt.Fprintln(f.err, "there are older ones; --limit says how many are shown")
	}
	return nil
}

func (f *logFollower) meet(key lineKey, i *parleyv1.Interaction, at time.Time) {
	f.seen[key] = at
	if stamp := i.GetTimestamp().AsTime(); stamp.After(f.newest) {
		f.newest = stamp
	}
}

// look shows the lines that were not met before, oldest first. On an error none was met.
func (f *logFollower) look(ctx context.Context, show func(*parleyv1.Interaction) error) error {
	start := f.now()
	since := max(start.Sub(f.looked), start.Round(0).Sub(f.looked.Round(0))) // One clock stops where a machine sleeps.
	request := &parleyv1.ListInteractionsRequest{
		Span:     &parleyv1.ListInteractionsRequest_Within{Within: durationpb.New(since + overlap)},
		PageSize: followPage,
	}
	var met []*parleyv1.Interaction
	for {
		page, err := f.client.ListInteractions(ctx, request)
		if err != nil {
			return err
		}
		met = append(met, page.GetInteractions()...)
		if request.PageToken = page.GetNextPageToken(); request.GetPageToken() == "" || f.knows(page.GetInteractions()) {
			break
		}
	}
	for _, i := range slices.Backward(met) {
		key := keyOfLine(i)
		_, known := f.seen[key]
		f.meet(key, i, start)
		if wanted := f.request.GetConversationId(); known || wanted != "" && wanted != i.GetConversationId() {
			continue
		}
		if err := show(i); err != nil {
			return err
		}
	}
	f.looked = start
	maps.DeleteFunc(f.seen, func(_ lineKey, last time.Time) bool { return last.Before(start.Add(-overlap)) })
	return nil
}

// knows reports whether nothing that is new can stand behind lines: all are known, and older
// than new ones are.
func (f *logFollower) knows(lines []*parleyv1.Interaction) bool {
	for _, i := range lines {
		if _, known := f.seen[keyOfLine(i)]; !known {
			return false
		}
	}
	return len(lines) > 0 && lines[len(lines)-1].GetTimestamp().AsTime().Before(f.newest.Add(-disorder))
}
