package store

import (
	"errors"
	"fmt"
)

// What a store may answer. Callers tell them apart with errors.Is and errors.As.
var (
	// ErrNotFound: no such conversation in this tenant, or it has expired.
	ErrNotFound = errors.New("conversation not found")
	// ErrConversationExists: the id is taken.
	ErrConversationExists = errors.New("conversation exists")
	// ErrRequestReused: the request id was used for something else.
	ErrRequestReused = errors.New("request_id was used for another request")
	// ErrTurnEnded: the turn is not the running one of its conversation.
	ErrTurnEnded = errors.New("turn is not running")
	// ErrFull: the tenant is at its capacity and nothing can make room: turns run on its
	// conversations, or they are held.
	ErrFull = errors.New("no room for another conversation")
	// ErrExpired: the conversation to import has come to its end already.
	ErrExpired = errors.New("conversation has expired")
	// ErrTooManyHolds: as many ids of the tenant are session memory as may.
	ErrTooManyHolds = errors.New("too much session memory")
	// ErrOverloaded: too many writes are waiting; the same one may succeed in a moment.
	ErrOverloaded = errors.New("store is overloaded")
	// ErrPageToken: made up, damaged, or from another list.
	ErrPageToken = errors.New("page token is not from this list")
	// ErrCorrupt: a record does not match its checksum.
	ErrCorrupt = errors.New("record is corrupt")
	// ErrNoSpace: the disk is full; reads and deletes go on.
	ErrNoSpace = errors.New("no space left for the store")
	// ErrFailed: the store met an error after which it cannot tell what is durable, and
	// takes no more writes.
	ErrFailed = errors.New("store has failed")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store is closed")
)

// VersionError says that a conversation is not at the version that a write asked for.
type VersionError struct {
	// Current version; 0 when the conversation does not exist.
	Current int32
}

// Error says which version there is.
func (e *VersionError) Error() string {
	return fmt.Sprintf("conversation is at version %d", e.Current)
}

// HeaderTooLargeError reports that a header would have more than MaxHeaderBytes.
type HeaderTooLargeError struct {
	// Bytes is the size that the header would have in encoded form, its system prompt included.
	Bytes int
}

// Error returns the size of the header and the limit.
func (e *HeaderTooLargeError) Error() string {
	return fmt.Sprintf("the header has %d bytes in encoded form with its system prompt, the limit is %d", e.Bytes, MaxHeaderBytes)
}

// BusyError says that a turn runs on the conversation.
type BusyError struct {
	// TurnID of the running turn.
	TurnID string
}

// Error names the turn.
func (e *BusyError) Error() string {
	return fmt.Sprintf("turn %s is running", e.TurnID)
}
