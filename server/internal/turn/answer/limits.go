package answer

import "fmt"

// TooLargeError is the cause of a turn whose answer exceeded a limit.
type TooLargeError struct{ limit string }

// Error names the limit, for example "is larger than 1048576 bytes".
func (e *TooLargeError) Error() string { return e.limit }

var (
	errTooManyMessages = &TooLargeError{fmt.Sprintf("has more than %d messages", MaxMessages)}
	errTooManyValues   = &TooLargeError{fmt.Sprintf("has more than %d values, calls and results", MaxValues)}
)

// Limits of one answer.
const (
	// MaxMessages is the number of messages that fit in a finished event.
	MaxMessages = 100
	// MaxValues limits structured data, calls and results together: a conversation stores their
	// event indexes for its newest turns.
	MaxValues = 1000
)

// Limits of fields, in bytes unless stated otherwise.
const (
	// MaxNoteBytes is the limit of the text of a progress event.
	MaxNoteBytes    = 1 << 10
	maxSummaryBytes = 500 // of Message.summary
	maxAgentBytes   = 128 // of Message.agent
	// maxMessageValues is the maximum number of values in Message.structured_data.
	maxMessageValues = 64
)
