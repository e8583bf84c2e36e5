package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store"
)

const (
	// maxConfirmed is the maximum number of connections to a node on which writes wait for a replica. A write uses a
	// connection for about a millisecond, so far more writes than connections are possible in a second.
	maxConfirmed = 256
	// confirmedGroups is the number of groups of slots of a cluster that share these connections, so that the writes of a
	// node that does not answer leave connections to those of others.
	confirmedGroups = 16
	// confirmedIdle is the time after which connections that no write uses are closed.
	confirmedIdle = time.Minute
	// replyTime is the time between the end of the wait for a replica and the deadline of the command, so that the reply
	// arrives before the deadline. The engine checks only every 100 ms whether a wait is over.
	replyTime = 300 * time.Millisecond
)

// withConfirmed returns options of a client with the connections of a confirmed client.
func withConfirmed(o rueidis.ClientOption) rueidis.ClientOption {
	o.BlockingPoolSize, o.BlockingPoolCleanup = maxConfirmed, confirmedIdle
	return o
}

// confirmed is a client whose commands return when a replica has all writes that the node executed before, and those of
// the command. If no replica confirms that in answerTime, the error is store.ErrUnavailable, and the command may have
// been executed. Each command has a connection of its own from the pool of the driver, because the engine confirms the
// writes of a connection.
type confirmed struct {
	bounded

	// places has one place for each connection: of the only node, or for each group of slots. So the pool never waits for
	// a connection: outside of a cluster it would wait without a limit, and each wait that ends makes it larger.
	places []chan struct{}
}

func newConfirmed(c bounded) confirmed {
	groups := 1
	if c.Mode() == rueidis.ClientModeCluster {
		groups = confirmedGroups
	}
	places := make([]chan struct{}, groups)
	for i := range places {
		places[i] = make(chan struct{}, maxConfirmed/groups)
	}
	return confirmed{bounded: c, places: places}
}

// placesOf returns the places of the connections for a command.
func (c confirmed) placesOf(command rueidis.Completed) chan struct{} {
	if len(c.places) == 1 {
		return c.places[0]
	}
	return c.places[int(command.Slot())%slots*len(c.places)/slots]
}

// Do implements rueidis.Client.
func (c confirmed) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	ctx, cancel := c.within(ctx)
	defer cancel()
	places := c.placesOf(command)
	select {
	case places <- struct{}{}:
		defer func() { <-places }()
	case <-ctx.Done():
		return rueidis.NewErrorResult(ctx.Err())
	}
	connection, release := c.Dedicate()
	defer release()
	most := answerTime
	if end, ok := ctx.Deadline(); ok {
		most = max(time.Millisecond, min(most, time.Until(end)-replyTime)) // With 0, the engine would wait without a limit.
	}
	// A node that does not answer must leave time to ask another one whether the write was made.
	ctx, cancelReply := context.WithTimeout(ctx, most+2*replyTime)
	defer cancelReply()
	wait := connection.B().Wait().Numreplicas(1).Timeout(most.Milliseconds()).Build()
	replies := connection.DoMulti(ctx, command, wait)
	if err := replies[0].Error(); err != nil && !isNil(err) {
		return replies[0]
	}
	switch replicas, err := replies[1].AsInt64(); {
	case err != nil: // Its text must not look like a refusal of the command, which was executed.
		return rueidis.NewErrorResult(fmt.Errorf("%w: no replica has confirmed the write: %s", store.ErrUnavailable,
			err.Error()))
	case replicas < 1:
		return rueidis.NewErrorResult(fmt.Errorf("%w: no replica has confirmed the write within %v", store.ErrUnavailable,
			most.Round(time.Millisecond)))
	}
	return replies[0]
}

// confirm returns when a replica has the data that was read at a key with a revision. Then a call that has found its
// write made, or that refuses it because of this data, can return. The error is errMoved if the revision has changed,
// and also store.ErrUnavailable if no replica confirms it. Without Options.Replicated, confirm does nothing.
func (s *Store) confirm(ctx context.Context, key, revision string) error {
	if !s.replicated {
		return nil
	}
	now, err := s.writer.Do(ctx, s.client.B().Hget().Key(key).Field("v").Build()).ToString()
	switch err = s.fault(err); {
	case errors.Is(err, store.ErrUnavailable):
		return fmt.Errorf("%w: %w", errMoved, err)
	case err != nil && !isNil(err):
		return err
	case now != revision:
		return errMoved
	}
	return nil
}
