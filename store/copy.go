package store

import (
	"context"
	"strings"
	"time"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
)

// CopySource is a store that is open to be copied. It does not change: no server uses it in the meantime. Its methods
// may be called from many goroutines at the same time.
type CopySource interface {
	// AllTenants returns the names of all tenants that a copy must contain, each once: those of Store.Tenants, and those
	// that have only requests or the counter of their revisions.
	AllTenants(ctx context.Context) ([]string, error)
	// List is that of Store.
	List(ctx context.Context, l *List) (*Page, error)
	// CopyConversation returns a conversation. It returns ErrNotFound if the conversation does not exist or has expired.
	CopyConversation(ctx context.Context, tenant, id string) (*ConversationCopy, error)
	// CopyRecords returns the next records of a conversation, or of the tenant if id is empty, in the order of their keys.
	// after is the key of the last record before, empty at first. It returns about a MiB, but at least one record if there
	// is one. It returns ErrNotFound if the conversation does not exist.
	CopyRecords(ctx context.Context, tenant, id, after string) (*RecordCopies, error)
	// Abandoned is that of Store: it returns all running turns.
	Abandoned(ctx context.Context, after string) (turns []Progress, next string, err error)
	// Close closes the store.
	Close() error
}

// CopyTarget is a store that is being made as a copy of another one. Until Finish no server can open it. It has no
// limits of tenants, and evicts nothing. PutConversation and PutRecords may be called from many goroutines at the same
// time.
type CopyTarget interface {
	// PutConversation stores a conversation without its records. It is after all conversations with the same create time
	// in the order of lists. It returns ErrConversationExists if the target has it.
	PutConversation(ctx context.Context, c *ConversationCopy) error
	// PutRecords stores records of a conversation that was stored before, or of a tenant.
	PutRecords(ctx context.Context, r *RecordCopies) error
	// SaveProgress is that of Store.
	SaveProgress(ctx context.Context, p *Progress) error
	// Stats is that of Store.
	Stats(ctx context.Context) (Stats, error)
	// Finish makes the store one that a server can open, and closes it. After an error it is unknown whether a server can.
	Finish(ctx context.Context) error
	// Discard removes all that was stored, and closes the store. After an error, and if the process ends without Finish
	// and Discard, the next attempt to make a copy at the same place removes it.
	Discard(ctx context.Context) error
}

// ConversationCopy is all that a store keeps of a conversation, except its records. Both the source and the target may
// share its memory until it is stored.
type ConversationCopy struct {
	// Tenant that the conversation belongs to.
	Tenant string
	// Header without what depends on the store: number, applied, chunks, turn_chunks, turns_indexed.
	Header *storev1.Header
	// SystemPrompt of the conversation.
	SystemPrompt []byte
	// Requests is storev1.Requests and Turns is storev1.Turns with all turns, both in wire form.
	Requests, Turns []byte
	// Messages that are retained, oldest first.
	Messages Frames
	// DeleteTime is when the conversation is deleted, if it is ephemeral: all its holds have ended. The zero time means
	// that it is an ordinary one.
	DeleteTime time.Time
}

// RecordCopies are some records of a scope, with their revisions and times.
type RecordCopies struct {
	// Tenant that the records belong to.
	Tenant string
	// ConversationID of the conversation; empty for the records of the tenant.
	ConversationID string
	// Revision is the counter of the revisions of the tenant's records; 0 for those of a conversation.
	Revision int64
	// Records in the order of their keys.
	Records []RecordCopy
	// More reports that records follow the last one.
	More bool
}

// RecordCopy is a record, or a remembered request of the tenant, in the form in which all stores keep it.
type RecordCopy struct {
	// Key of the record. Those of requests begin with a NUL.
	Key string
	// Value is the encoded record with its checksums.
	Value []byte
}

// MaxCopiedPageBytes and MaxCopiedPage are the maximum size and number of the records that CopySource.CopyRecords
// returns, unless a single one is larger.
const (
	MaxCopiedPageBytes = 1 << 20
	MaxCopiedPage      = 256
)

// IsRequest reports whether the copy is that of a request that the store remembers.
func (r *RecordCopy) IsRequest() bool { return strings.HasPrefix(r.Key, "\x00") }
