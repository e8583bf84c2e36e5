package agent

import "fmt"

const (
	// maxCalls and maxCallBytes bound the calls of one answer: nothing of them is passed
	// on before they are whole, so nobody else can stop them.
	maxCalls     = 1000
	maxCallBytes = 4 << 20
	// maxCallNameBytes is what the API of messages allows.
	maxCallNameBytes = 128
)

// CallBounds counts the tool calls of an answer as a provider streams it. The zero value
// has counted none.
type CallBounds struct{ calls, bytes int }

// Add counts calls that have begun, and bytes of these and earlier ones. It returns an
// *Error when there are more than 1000 calls, or 4 MiB of them.
func (b *CallBounds) Add(calls, bytes int) error {
	b.calls += calls
	b.bytes += bytes
	switch {
	case b.calls > maxCalls:
		return &Error{Message: fmt.Sprintf("the model made more than %d tool calls in one answer", maxCalls)}
	case b.bytes > maxCallBytes:
		return &Error{Message: fmt.Sprintf("the model's tool calls are larger than %d bytes", maxCallBytes)}
	}
	return nil
}

// CheckCallName returns an *Error unless the name of a tool that a model calls has 1 to 128
// bytes.
func CheckCallName(name string) error {
	if name == "" || len(name) > maxCallNameBytes {
		return &Error{
			Message:   fmt.Sprintf("the model called a tool by a name of %d bytes, not 1 to %d", len(name), maxCallNameBytes),
			Retryable: true,
		}
	}
	return nil
}
