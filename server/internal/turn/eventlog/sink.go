package eventlog

import parleyv1 "github.com/parleyhq/parley/gen/parley/v1"

// Sink receives the events of turns. Package watch implements it.
type Sink interface {
	// HasSubscribers reports whether the sink needs events.
	HasSubscribers() bool
	// TurnEvent receives the next event of a turn. The event is not changed afterwards. TurnEvent
	// must not block and must not call the manager.
	TurnEvent(tenant, conversationID string, event *parleyv1.TurnEvent)
}
