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
	// discarded, leftChanged and storedPartly end the fault of a conversation that failed after its first commit.
	discarded    = "the part that was imported was deleted"
	leftChanged  = storedPartly + "; it was not deleted, because others have changed it in the meantime"
	storedPartly = "the conversation is stored with a part of its records"
)

// errChangedByOthers means that a conversation is not deleted because it has changes of other clients.
var errChangedByOthers = errors.New("others have changed the conversation")

// discard deletes a conversation that is stored without all of its records, because of its fault or because err ends
// the import. It adds to the fault or to err what became of the conversation, and returns err. The end of ctx does not
// end the deletion: it may be the reason of err.
func (i *importing) discard(ctx context.Context, c *incoming, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), discardTimeout)
	defer cancel()
	outcome := discarded
	switch err := retryOverloaded(ctx, func() error { return i.deleteStored(ctx, c) }); {
	case errors.Is(err, errChangedByOthers):
		outcome = leftChanged
	case err != nil:
		outcome = fmt.Sprintf("%s, which cannot be deleted: %v", storedPartly, err)
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

// deleteStored deletes the conversation that the import stored, but no other one with the same id. It returns
// errChangedByOthers if the conversation has changes that are not of the import: messages of other clients must not be
// lost.
func (i *importing) deleteStored(ctx context.Context, c *incoming) error {
	snapshot, err := i.store.Read(ctx, &store.Read{Tenant: i.tenant, ConversationID: c.header.GetId()})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return err
	case snapshot.Conversation.GetUid() != c.uid:
		return nil
	case c.changed || snapshot.Conversation.GetVersion() != c.version:
		return errChangedByOthers
	}
	err = i.store.Delete(ctx, &store.Delete{Tenant: i.tenant, ConversationID: c.header.GetId(), IfVersion: &c.version})
	if _, changed := errors.AsType[*store.VersionError](err); changed {
		return errChangedByOthers
	}
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}
