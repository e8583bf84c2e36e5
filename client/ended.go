package client

import "time"

// Ending says how and when a conversation ended.
type Ending struct {
	// Kind is "EVICTED", "EXPIRED" or "DELETED". Later versions of the server may have others.
	Kind string
	// At is when the server removed the conversation, with a resolution of one second.
	At time.Time
}

// Ended returns how the conversation that a call did not find has ended. The server remembers that in memory for an
// hour, and for a limited number of conversations. The bool is false if err is not such an error with the reason
// CONVERSATION_NOT_FOUND, or if the server does not remember an end. err may be wrapped.
func Ended(err error) (Ending, bool) {
	metadata := errorInfo(err).GetMetadata()
	if metadata["ended"] == "" {
		return Ending{}, false
	}
	at, err := time.Parse(time.RFC3339, metadata["at"])
	return Ending{Kind: metadata["ended"], At: at}, err == nil
}
