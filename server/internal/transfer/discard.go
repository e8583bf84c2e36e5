package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/parleyhq/parley/store"
)

const (
	// discardTimeout is the maximum time for the deletion of a conversation that cannot be imported completely.
	discardTimeout = 10 * time.Second
	// discarded and storedPartly end the fault of a conversation that failed after its first commit.
	discarded    = "the part that was imported was deleted"
	storedPartly = "the conversation is stored with a part of its records"
)

// discard deletes a conversation that is stored without all of its records, because of its fault or because err ends
// the import. It adds to the fault or to err what became of the conversation, and returns err. The end of ctx does not
// end the deletion: it may be the reason of err.
func (i *importing) discard(ctx context.Context, c *incoming, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), discardTimeout)
	defer cancel()
	outcome := discarded
	if deleteErr := retryOverloaded(ctx, func() error { return i.deleteStored(ctx, c) }); deleteErr != nil {
		outcome = fmt.Sprintf("%s, which cannot be deleted: %v", storedPartly, deleteErr)
	}
	if c.fault != "" {
		c.fault += "; " + outcome
	}
	if err == nil {
		return nil
	}
	if about, ok := errors.AsType[*ConversationError](err); ok && about.ID == c.header.GetId() {
		err = about.Err
	}
	return &ConversationError{ID: c.header.GetId(), Err: fmt.Errorf("%w; %s", err, outcome)}
}

// deleteStored deletes the conversation that the import stored, but no other one with the same id.
func (i *importing) deleteStored(ctx context.Context, c *incoming) error {
	for {
		snapshot, err := i.store.Read(ctx, &store.Read{Tenant: i.tenant, ConversationID: c.header.GetId()})
		if err == nil {
			if snapshot.Conversation.GetUid() != c.uid {
				return nil
			}
			version := snapshot.Conversation.GetVersion()
			err = i.store.Delete(ctx, &store.Delete{
				Tenant: i.tenant, ConversationID: c.header.GetId(), IfVersion: &version,
			})
		}
		var changed *store.VersionError
		switch {
		case errors.Is(err, store.ErrNotFound):
			return nil
		case !errors.As(err, &changed):
			return err
		}
	}
}
