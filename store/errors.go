package store

import (
	"errors"
	"fmt"
	"time"
)

// Errors of a store. Callers distinguish them with errors.Is and errors.As.
var (
	// ErrNotFound means that the tenant has no such conversation or that it has expired.
	ErrNotFound = errors.New("conversation not found")
	// ErrConversationExists means that a conversation already has the id.
	ErrConversationExists = errors.New("conversation already exists")
	// ErrRequestReused means that the request id was already used with different content.
	ErrRequestReused = errors.New("request_id was already used for another request")
	// ErrTurnNotFound means that the turn does not exist or is no longer kept. Without the id of the conversation, it may
	// also mean that the id of the turn is not indexed; see law 20.
	ErrTurnNotFound = errors.New("turn not found")
	// ErrTurnEnded means that the turn is not the running turn of its conversation.
	ErrTurnEnded = errors.New("turn is not running")
	// ErrFull means that the tenant is at its capacity and no conversation can be evicted: all of
	// them have a running turn, are held, or have no_eviction.
	ErrFull = errors.New("tenant is at its capacity and no conversation can be evicted")
	// ErrExpired means that the conversation to import has already expired.
	ErrExpired = errors.New("conversation has expired")
	// ErrTooManyHolds means that the tenant would have more than MaxHolds ephemeral ids.
	ErrTooManyHolds = errors.New("too many ephemeral conversations")
	// ErrOverloaded means that too many writes are waiting. The same write may succeed a moment
	// later.
	ErrOverloaded = errors.New("store is overloaded")
	// ErrUnavailable means that the system that holds the data does not answer. A write may have been made or not; the
	// same write may succeed later. A store without such a system never returns it.
	ErrUnavailable = errors.New("store is unavailable")
	// ErrPageToken means that the token is invalid, damaged or from another list.
	ErrPageToken = errors.New("page token is not from this list")
	// ErrCorrupt means that a record does not match its checksum.
	ErrCorrupt = errors.New("record is corrupt")
	// ErrNoSpace means that the disk is full. Reads and deletes still work.
	ErrNoSpace = errors.New("no space left for the store")
	// ErrFailed means that the store cannot know what is durable after an earlier error. It accepts
	// no more writes.
	ErrFailed = errors.New("store has failed")
	// ErrClosed means that the store was closed.
	ErrClosed = errors.New("store is closed")
)

// ExpiredError is returned by Read if the conversation has expired and no sweep has removed it yet. It wraps
// ErrNotFound. Read does not return it for an ephemeral conversation that has ended.
type ExpiredError struct {
	// At is the expire_time of the conversation.
	At time.Time
}

// Error says when the conversation expired.
func (e *ExpiredError) Error() string {
	return fmt.Sprintf("%v: it expired at %s", ErrNotFound, e.At.UTC().Format(time.RFC3339))
}

// Unwrap returns ErrNotFound.
func (*ExpiredError) Unwrap() error { return ErrNotFound }

// VersionError is returned if a conversation does not have the version that a write requires.
type VersionError struct {
	// Current version of the conversation; 0 if it does not exist.
	Current int32
	// Required is the if_version of the write; 0 if the conversation must not exist.
	Required int32
}

// Error returns the fault.
func (e *VersionError) Error() string { return "conversation " + e.Fault() }

// Fault says which version the conversation has and which one the write requires, as a clause without its subject.
func (e *VersionError) Fault() string {
	current := fmt.Sprintf("is at version %d", e.Current)
	switch {
	case e.Current == 0:
		current = "does not exist"
	case e.Required == 0:
		current = fmt.Sprintf("already exists at version %d", e.Current)
	}
	return fmt.Sprintf("%s, but if_version is %d", current, e.Required)
}

// HeaderTooLargeError is returned if a header would have more than MaxHeaderBytes.
type HeaderTooLargeError struct {
	// Bytes is the encoded size that the header would have, system prompt included.
	Bytes int
}

// Error returns the size of the header and the limit.
func (e *HeaderTooLargeError) Error() string {
	return fmt.Sprintf("the header has %d bytes in encoded form with its system prompt, the limit is %d", e.Bytes,
		MaxHeaderBytes)
}

// ConversationFullError is returned if a conversation that keeps all messages would have more bytes of
// messages than its limit; see law 16.
type ConversationFullError struct {
	// Bytes is the encoded size that its messages would have.
	Bytes int
	// Limit is the maximum.
	Limit int
}

// Error returns the size and the limit.
func (e *ConversationFullError) Error() string {
	return fmt.Sprintf("the conversation keeps all messages, which would have %d bytes; the limit is %d", e.Bytes, e.Limit)
}

// TenantBytesError is returned if a write would exceed a tenant's limit of bytes.
type TenantBytesError struct {
	// Bytes is the size that the tenant's conversations and records would have.
	Bytes int64
	// Limit is the maximum.
	Limit int64
}

// Error returns the size and the limit.
func (e *TenantBytesError) Error() string {
	return fmt.Sprintf("the conversations and records of the tenant would have %d bytes, the limit is %d", e.Bytes,
		e.Limit)
}

// BusyError is returned if a turn is running on the conversation.
type BusyError struct {
	// TurnID of the running turn.
	TurnID string
}

// Error returns the id of the turn.
func (e *BusyError) Error() string {
	return fmt.Sprintf("turn %s is running", e.TurnID)
}

// SeparatedError is returned if a write would remove a tool call without its result, or a result without its
// call.
type SeparatedError struct {
	// CallID is the id of the call.
	CallID string
	// Call and Result are the sequences of the messages with the call and with its result.
	Call, Result int32
	// Replacing is true for an Append with ReplaceAfter, which may add another result. It is false for an
	// Update with Sequences.
	Replacing bool
}

// Error returns both sequences and a remedy.
func (e *SeparatedError) Error() string {
	remedy := "remove both or neither"
	if e.Replacing {
		remedy = "replace both, or append a result for the call"
	}
	return fmt.Sprintf("message %d has the tool call %.128q and message %d has its result; %s", e.Call, e.CallID, e.Result,
		remedy)
}
