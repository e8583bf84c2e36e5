// Package transfer exports and imports complete conversations.
//
// An export reads one conversation after the other and sends it in responses of limited size. An import
// collects the requests of a conversation, checks them, and stores the conversation when it is complete.
// The errors of this package have no statuses; package rpc makes them. Start at [Export] and [Importer].
package transfer

// ConversationError is an error about one conversation.
type ConversationError struct {
	ID  string
	Err error
}

// Error returns the text of the cause, in which the store names the conversation.
func (e *ConversationError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *ConversationError) Unwrap() error { return e.Err }
