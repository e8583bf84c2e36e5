package adk

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/adk/v2/session"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// errNoSession is the error of a conversation that is no session of this package.
var errNoSession = errors.New("the conversation is not a session of the ADK")

// maxReads is the number of sessions whose states List reads at the same time.
const maxReads = 32

// Get returns a session with its events, oldest first, and its state, which is that after the newest event. With
// NumRecentEvents or After, it returns the newest events of those that are not before After.
func (s *service) Get(ctx context.Context, request *session.GetRequest) (*session.GetResponse, error) {
	key, err := newIdentity(request.AppName, request.UserID, request.SessionID)
	if err != nil {
		return nil, err
	}
	var page *parleyv1.ListMessagesResponse
	var stored states
	var app, user scope
	reads, readCtx := errgroup.WithContext(ctx)
	reads.Go(func() (err error) {
		page, err = s.client.ListMessages(readCtx, pageRequest(key, request))
		return err
	})
	reads.Go(func() (err error) {
		stored, err = s.readRecords(readCtx, key.conversation)
		return err
	})
	reads.Go(func() (err error) {
		app, user, err = s.readTenant(readCtx, key)
		return err
	})
	if err := reads.Wait(); err != nil {
		return nil, notFound(key, err)
	}
	for settled := false; ; {
		events, newest, err := s.readEvents(ctx, key, request, page)
		if err != nil {
			return nil, notFound(key, err)
		}
		if newest == stored.header.Events || settled {
			stored.app, stored.user = app, user
			read, err := newSession(key, stored, events)
			if err != nil {
				return nil, err
			}
			return &session.GetResponse{Session: read}, nil
		}
		// The reads are of different instants, or another program removed messages. If the header stays the same while the
		// messages are read, both are of one instant.
		if page, err = s.client.ListMessages(ctx, pageRequest(key, request)); err != nil {
			return nil, notFound(key, err)
		}
		now, err := s.readRecords(ctx, key.conversation)
		if err != nil {
			return nil, notFound(key, err)
		}
		settled = now.nonce == stored.nonce && now.revision == stored.revision
		stored = now
	}
}

// pageRequest returns the request of the newest messages of a session.
func pageRequest(key identity, request *session.GetRequest) *parleyv1.ListMessagesRequest {
	size := maxPageSize
	if request.NumRecentEvents > 0 && request.After.IsZero() {
		size = min(size, request.NumRecentEvents)
	}
	return &parleyv1.ListMessagesRequest{ConversationId: key.conversation, PageSize: int32(size)}
}

// readRecords returns the header and the state of a session.
func (s *service) readRecords(ctx context.Context, conversation string) (states, error) {
	for {
		read, state := states{own: values{}}, (*parleyv1.Record)(nil)
		records := s.client.Records(conversation).List(ctx, &parleyv1.ListRecordsRequest{Prefix: recordPrefix})
		for record, err := range records {
			if err != nil {
				return states{}, err
			}
			if nonce, ok := strings.CutPrefix(record.GetKey(), headerKey); ok {
				read.nonce, read.revision = nonce, record.GetRevision()
				if err := json.Unmarshal(record.GetValue(), &read.header); err != nil {
					return states{}, fmt.Errorf("record %q: %w", record.GetKey(), err)
				}
			} else if record.GetKey() == stateKey {
				state = record
			}
		}
		if read.nonce == "" {
			return states{}, errNoSession
		}
		if state.GetRevision() > read.revision {
			continue // A large state is on a page of its own, which may be of a later instant.
		}
		if state != nil {
			if err := json.Unmarshal(state.GetValue(), &read.own); err != nil {
				return states{}, fmt.Errorf("record %q: %w", stateKey, err)
			}
		}
		return read, nil
	}
}

// readEvents returns the events that a request selects, oldest first, and the number of the newest event of the
// session; 0 if there is none. page has the newest messages.
func (s *service) readEvents(
	ctx context.Context, key identity, request *session.GetRequest, page *parleyv1.ListMessagesResponse,
) (events []*session.Event, newest int, err error) {
	for next := pageRequest(key, request); ; {
		decoded, number, err := s.decode(ctx, key, page.GetMessages())
		if err != nil {
			return nil, 0, err
		}
		newest = cmp.Or(newest, number)
		for _, event := range decoded {
			if !request.After.IsZero() && event.Timestamp.Before(request.After) {
				continue
			}
			if events = append(events, event); len(events) == request.NumRecentEvents {
				break
			}
		}
		next.PageToken = page.GetNextPageToken()
		if next.GetPageToken() == "" || len(events) > 0 && len(events) == request.NumRecentEvents {
			slices.Reverse(events)
			return events, newest, nil
		}
		next.PageSize = maxPageSize // Other programs may have appended any number of messages since.
		if page, err = s.client.ListMessages(ctx, next); err != nil {
			return nil, 0, err
		}
	}
}

// decode returns the events of messages, in the same order, and the number of the first one. It skips messages that are
// no events.
func (s *service) decode(
	ctx context.Context, key identity, messages []*parleyv1.Message,
) (events []*session.Event, first int, err error) {
	references := map[*parleyv1.Message]eventReference{}
	var keys []string
	for _, message := range messages {
		if message.GetNative().GetType() != nativeRecords {
			continue
		}
		var reference eventReference
		if err := json.Unmarshal(message.GetNative().GetValue(), &reference); err != nil {
			return nil, 0, fmt.Errorf("message %d: %w", message.GetSequence(), err)
		}
		references[message], keys = reference, append(keys, reference.Keys...)
	}
	parts := map[string][]byte{}
	for record, err := range s.client.Records(key.conversation).GetAll(ctx, keys) {
		if err != nil {
			return nil, 0, err
		}
		parts[record.GetKey()] = record.GetValue()
	}
	for _, message := range messages {
		text := message.GetNative().GetValue()
		switch message.GetNative().GetType() {
		case nativeEvent:
		case nativeRecords:
			text = nil
			for _, key := range references[message].Keys {
				part, ok := parts[key]
				if !ok {
					return nil, 0, fmt.Errorf("message %d: the record %q of its event is missing", message.GetSequence(), key)
				}
				text = append(text, part...)
			}
		default:
			continue
		}
		event, err := decodeEvent(text)
		if err != nil {
			return nil, 0, fmt.Errorf("message %d: %w", message.GetSequence(), err)
		}
		if events = append(events, event); len(events) == 1 {
			first, _ = strconv.Atoi(message.GetMetadata()[eventNumber]) // 0 if another program left it out.
		}
	}
	return events, first, nil
}

// List returns the sessions of an app, or of one of its users, with their states and without their events.
func (s *service) List(ctx context.Context, request *session.ListRequest) (*session.ListResponse, error) {
	if request.AppName == "" {
		return nil, errors.New(`app_name is required, got app_name: ""`)
	}
	conversations, err := s.listConversations(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("list the sessions of app %q: %w", request.AppName, err)
	}
	listed, err := s.readListed(ctx, request, conversations)
	if err != nil {
		return nil, fmt.Errorf("list the sessions of app %q: %w", request.AppName, err)
	}
	users := make([]string, len(listed))
	for i, one := range listed {
		users[i] = one.header.User
	}
	tenant, err := s.readStates(ctx, request.AppName, users...)
	if err != nil {
		return nil, err
	}
	sessions := make([]session.Session, len(listed))
	for i, one := range listed {
		one.app, one.user = tenant.app, tenant.users[one.header.User]
		key := identity{one.header.App, one.header.User, one.header.ID, one.conversation}
		if sessions[i], err = newSession(key, one.states, nil); err != nil {
			return nil, err
		}
	}
	return &session.ListResponse{Sessions: sessions}, nil
}

// listConversations returns the ids of the conversations that have the labels of a request.
func (s *service) listConversations(ctx context.Context, request *session.ListRequest) ([]string, error) {
	var ids []string
	next := &parleyv1.ListConversationsRequest{PageSize: maxPageSize, Labels: labels(request.AppName, request.UserID)}
	for {
		page, err := s.client.ListConversations(ctx, next)
		if err != nil {
			return nil, err
		}
		for _, entry := range page.GetConversations() {
			ids = append(ids, entry.GetConversation().GetId())
		}
		if next.PageToken = page.GetNextPageToken(); next.GetPageToken() == "" {
			return ids, nil
		}
	}
}

// listedSession is a session without its events and without the states of its app and user.
type listedSession struct {
	states

	conversation string
}

// readListed returns the sessions in conversations that a request selects, last updated last. It skips conversations
// that were deleted in the meantime, and those that only have the same labels.
func (s *service) readListed(
	ctx context.Context, request *session.ListRequest, conversations []string,
) ([]listedSession, error) {
	all := make([]listedSession, len(conversations))
	reads, ctx := errgroup.WithContext(ctx)
	reads.SetLimit(maxReads)
	for i, id := range conversations {
		reads.Go(func() error {
			read, err := s.readRecords(ctx, id)
			if status.Code(err) == codes.NotFound || errors.Is(err, errNoSession) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("conversation %q: %w", id, err)
			}
			if read.header.App == request.AppName && (request.UserID == "" || read.header.User == request.UserID) {
				all[i] = listedSession{read, id}
			}
			return nil
		})
	}
	if err := reads.Wait(); err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(one listedSession) bool { return one.conversation == "" })
	slices.SortFunc(all, func(a, b listedSession) int {
		return cmp.Or(time.Time(a.header.Updated).Compare(time.Time(b.header.Updated)),
			cmp.Compare(a.conversation, b.conversation))
	})
	return all, nil
}
