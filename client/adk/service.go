// Package adk keeps the sessions of Google's Agent Development Kit in a Parley server.
//
// A session is a conversation, and each of its events a message. Programs with the ADK for Python and the adapter of
// the Python client read and write the same sessions:
//
//   - The id of the conversation is [ConversationID] of app, user and session. Its labels adk.app and adk.user have the
//     ids; for an id of more than 1024 bytes, "~" and its SHA-256.
//   - Message.native has the event in the JSON of the framework, type "google.adk.event". A larger event than 32 KiB
//     is in records of the conversation, type "google.adk.event.records". Message.content, tool calls and so on are
//     for people and other agents. Messages of others, without such a native part, are not events.
//   - The record adk/session/NONCE of the conversation has the ids, the time of the newest event and the number of
//     events. Every append writes it. The record adk/state has the state of the session.
//   - The records adk/app/APP and adk/user/APP/USER of the tenant have the state of an app and of a user; the keys are
//     made like the id.
//
// An event and the changes of all states are written in one commit.
//
// Start at [NewSessionService].
package adk

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/adk/v2/platform"
	"google.golang.org/adk/v2/session"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// The framework has no values for these errors. Each is wrapped together with the error of the server, if there is one.
var (
	// ErrSessionExists is the error of Create for the id of a session that exists.
	ErrSessionExists = errors.New("session already exists")
	// ErrSessionNotFound is the error of Get and AppendEvent if the session does not exist.
	ErrSessionNotFound = errors.New("session not found")
	// ErrStaleSession is the error of AppendEvent if another program appended an event since the session was read.
	// Nothing was stored. Get the session again, and repeat the append or the turn.
	ErrStaleSession = errors.New("stale session: another event was appended since the session was read")
)

const (
	maxLabelBytes = 1024 // The limit of the API for the value of a label.
	maxPageSize   = 1000
)

type service struct {
	client    *client.Client
	retention *parleyv1.Retention
}

// Option changes a service.
type Option func(*service)

// WithRetention sets the retention of sessions that the service creates. Without it, sessions live until they are
// deleted, and no event is dropped: keep_all, no_expiry and no_eviction are set.
func WithRetention(retention *parleyv1.Retention) Option {
	return func(s *service) { s.retention = retention }
}

// NewSessionService returns the service of the sessions in the server that c is connected to. It is safe for concurrent
// use. Closing c ends it.
//
// The service acts as the framework's database service: partial events and keys with the prefix temp: are not stored,
// and AppendEvent refuses a stale session. It differs in these points:
//
//   - The order of the events is that in which they were appended, not that of their times.
//   - Two events of a session may have the same id.
//   - If AppendEvent fails, the session of the caller is unchanged. After UNAVAILABLE or another error that leaves open
//     whether the event was stored, the same call may be repeated: the event is stored once.
//   - List returns the sessions in the order of their last updates, oldest first.
//
// A state, with all its keys, has at most 3 MiB of JSON. The messages of a session have at most the
// --max-conversation-bytes of the server, 3 MiB unless it is set; AppendEvent then fails with RESOURCE_EXHAUSTED,
// reason CONVERSATION_FULL.
func NewSessionService(c *client.Client, opts ...Option) session.Service {
	s := &service{client: c, retention: &parleyv1.Retention{KeepAll: true, NoExpiry: true, NoEviction: true}}
	for _, opt := range opts {
		opt(s)
	}
	return s
}

// newIdentity returns the identity of a session.
func newIdentity(app, user, id string) (identity, error) {
	if app == "" || user == "" || id == "" {
		return identity{}, fmt.Errorf(
			"app_name, user_id, session_id are required, got app_name: %q, user_id: %q, session_id: %q", app, user, id)
	}
	conversation, err := ConversationID(app, user, id)
	return identity{app, user, id, conversation}, err
}

// label returns the value of a label for an id.
func label(id string) string {
	if len(id) <= maxLabelBytes {
		return id
	}
	digest := sha256.Sum256([]byte(id))
	return "~" + hex.EncodeToString(digest[:])
}

// labels returns the labels of the sessions of an app, or of one of its users if user is not empty.
func labels(app, user string) map[string]string {
	all := map[string]string{"adk.app": label(app)}
	if user != "" {
		all["adk.user"] = label(user)
	}
	return all
}

// Create creates a session. If the request has no id, the session gets a random one.
func (s *service) Create(ctx context.Context, request *session.CreateRequest) (*session.CreateResponse, error) {
	if request.AppName == "" || request.UserID == "" {
		return nil, fmt.Errorf("app_name and user_id are required, got app_name: %q, user_id: %q",
			request.AppName, request.UserID)
	}
	key, err := newIdentity(request.AppName, request.UserID, cmp.Or(request.SessionID, platform.NewUUID(ctx)))
	if err != nil {
		return nil, err
	}
	delta, err := split(request.State)
	if err != nil {
		return nil, err
	}
	now := states{nonce: rand.Text()}
	first := header{
		App: key.app, User: key.user, ID: key.id,
		Updated: epochSeconds(platform.Now(ctx).Truncate(time.Microsecond)),
	}
	for {
		if now.app, now.user, err = s.readTenant(ctx, key); err != nil {
			return nil, err
		}
		next, writes, err := now.after(delta, first)
		if err != nil {
			return nil, err
		}
		reply, err := s.client.AppendMessages(ctx, &parleyv1.AppendMessagesRequest{
			ConversationId: key.conversation, IfVersion: new(int32(0)), ReplaceAfterSequence: new(int32(0)),
			CreateWith: &parleyv1.Conversation{Labels: labels(key.app, key.user), Retention: s.retention}, Records: writes,
		})
		if mismatch, ok := client.RevisionMismatch(err); ok && mismatch.TenantScope {
			continue // The state of the app or the user has changed: read it again.
		}
		if client.Reason(err) == "VERSION_MISMATCH" {
			return nil, fmt.Errorf("session %q: %w: %w", key.id, ErrSessionExists, err)
		}
		if err != nil {
			return nil, fmt.Errorf("create session %q: %w", key.id, err)
		}
		revision, err := s.revisionAfter(ctx, key, next, reply)
		if err != nil {
			return nil, err
		}
		created, err := newSession(key, next.committed(delta, revision, reply.GetTenantRevision()), nil)
		if err != nil {
			return nil, err
		}
		return &session.CreateResponse{Session: created}, nil
	}
}

// readTenant returns the states of the app and of the user of a session.
func (s *service) readTenant(ctx context.Context, key identity) (app, user scope, err error) {
	of, err := s.readStates(ctx, key.app, key.user)
	return of.app, of.users[key.user], err
}

// tenantStates are the states of an app and of some of its users.
type tenantStates struct {
	app   scope
	users map[string]scope
}

// readStates returns the states of an app and of users.
func (s *service) readStates(ctx context.Context, app string, users ...string) (tenantStates, error) {
	ofApp, err := ConversationID("adk", "app", app)
	if err != nil {
		return tenantStates{}, err
	}
	userOf := map[string]string{}
	read := tenantStates{app: scope{values: values{}}, users: map[string]scope{}}
	for _, user := range users {
		read.users[user] = scope{values: values{}}
		_, key, err := tenantKeys(app, user)
		if err != nil {
			return tenantStates{}, err
		}
		userOf[key] = user
	}
	keys := append(slices.Collect(maps.Keys(userOf)), ofApp)
	for record, err := range s.client.TenantRecords().GetAll(ctx, keys) {
		if err != nil {
			return tenantStates{}, fmt.Errorf("read the state of app %q: %w", app, err)
		}
		decoded, err := decodeScope(record)
		if err != nil {
			return tenantStates{}, err
		}
		if record.GetKey() == ofApp {
			read.app = decoded
		} else {
			read.users[userOf[record.GetKey()]] = decoded
		}
	}
	return read, nil
}

// Delete deletes a session with its events and its state. It returns no error if there is none. The states of the app
// and of the user stay.
func (s *service) Delete(ctx context.Context, request *session.DeleteRequest) error {
	key, err := newIdentity(request.AppName, request.UserID, request.SessionID)
	if err != nil {
		return err
	}
	_, err = s.client.DeleteConversation(ctx, &parleyv1.DeleteConversationRequest{
		ConversationId: key.conversation, AllowMissing: true,
	})
	if err != nil {
		return fmt.Errorf("delete session %q: %w", key.id, err)
	}
	return nil
}

// notFound returns err with ErrSessionNotFound if it is the server's error for a missing conversation.
func notFound(key identity, err error) error {
	if status.Code(err) == codes.NotFound {
		err = fmt.Errorf("%w: %w", ErrSessionNotFound, err)
	}
	return fmt.Errorf("session %q of user %q: %w", key.id, key.user, err)
}
