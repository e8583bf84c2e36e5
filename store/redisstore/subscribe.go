package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store"
)

// numbered is the number of a change of a bucket, from 1, and the epoch of the number. The engine may assign a number
// again, because it may have an older copy of the data after a failover. See epoch.lua.
type numbered struct {
	number int64
	epoch  string
}

// epochSize is the size of an epoch in characters.
const epochSize = 32

// readNumbered reads what tell in lib.lua returns: a number and an epoch with a space between. A number alone, which is
// not above 0, means that the script has published nothing.
func readNumbered(reply rueidis.RedisMessage) (numbered, error) {
	if reply.IsInt64() {
		return numbered{}, nil
	}
	text, err := reply.ToString()
	if err != nil {
		return numbered{}, err
	}
	number, epoch, _ := strings.Cut(text, " ")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return numbered{}, fmt.Errorf("reply of a script: %w", err)
	}
	return numbered{n, epoch}, nil
}

// readLast returns the number of the last change of a bucket. seen is the last change that this process knows. If the
// engine has lost it, the script makes a new epoch.
func (s *Store) readLast(ctx context.Context, b bucket, seen numbered) (numbered, error) {
	args := []string{b.prefix, randomText(epochSize), seen.epoch, strconv.FormatInt(seen.number, 10)}
	// No replica needs it: one that takes over gets a new epoch.
	reply, err := s.exec(ctx, s.client, s.scripts.epoch, space{bucket: b}, args).ToArray()
	if err != nil {
		return numbered{}, s.fault(err)
	}
	epoch, err := reply[0].ToString()
	if err != nil {
		return numbered{}, err
	}
	number, err := reply[1].AsInt64()
	return numbered{number, epoch}, err
}

// Since implements store.Ordered. With a spread above 1, a tenant has no order.
func (s *Store) Since(tenant string) (bucket int, since store.Place) {
	bucket = s.bucketOf(tenant).index
	if s.spread > 1 {
		return bucket, store.Place{}
	}
	return bucket, s.teller.since(bucket)
}

// awaitTold waits until the observer has received the changes of a commit whose reply, and so whose number, was lost.
// If the number of the bucket's last change cannot be read either, it does not wait: the observer receives the changes
// from the channel, or a GAP.
func (s *Store) awaitTold(ctx context.Context, b bucket) {
	last, err := s.client.Do(ctx, s.client.B().Hget().Key(b.prefix+"st").Field("c").Build()).AsInt64()
	if err == nil {
		s.teller.await(b.index, last)
	}
}

// subscribe subscribes to the changes of all buckets, and returns when all subscriptions exist.
func (s *Store) subscribe(ctx context.Context) error {
	ready := make(chan error, len(s.buckets))
	for i, b := range s.buckets {
		s.hearing.Go(func() { s.hearAll(i, b, ready) })
	}
	for range s.buckets {
		select {
		case err := <-ready:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return fmt.Errorf("%w: no subscription: %w", store.ErrUnavailable, ctx.Err())
		}
	}
	return nil
}

// hearAll receives the changes of a bucket until the store is closed. The driver subscribes again after a broken
// connection, and reports this only by the hook. Changes that were published in between are lost.
func (s *Store) hearAll(index int, b bucket, ready chan<- error) {
	hook := func(sub rueidis.PubSubSubscription) {
		if sub.Kind == "ssubscribe" {
			s.teller.buckets[index].request()
		}
	}
	var once sync.Once
	answer := func(err error) { once.Do(func() { ready <- err }) }
	s.hearing.Go(func() { s.catchUpAll(index, b, answer) })
	ctx := rueidis.WithOnSubscriptionHook(s.running, hook)
	for s.running.Err() == nil {
		subscribe := s.client.B().Ssubscribe().Channel(b.prefix + "ch").Build()
		err := s.client.Receive(ctx, subscribe, func(m rueidis.PubSubMessage) { s.teller.hear(index, m.Message, s.server) })
		if err = s.fault(err); err != nil && !errors.Is(err, store.ErrUnavailable) {
			answer(fmt.Errorf("subscribe to %q: %w", b.prefix+"ch", err)) // Open fails with it.
		}
		select {
		case <-s.running.Done():
		case <-time.After(s.renewTime() / 10): // The engine has refused the subscription, or is unavailable.
		}
	}
}

// catchUpAll reads the number of the last change of a bucket after each subscription, and when the teller asks for it.
// It calls answer after the first time.
func (s *Store) catchUpAll(index int, b bucket, answer func(error)) {
	readAgain := s.teller.buckets[index].readAgain
	for {
		select {
		case <-s.running.Done():
			return
		case <-readAgain:
		}
		last, err := s.readLast(s.running, b, s.teller.seen(index))
		if err == nil {
			s.teller.setLast(index, last)
		}
		answer(err)
		if err != nil {
			s.teller.buckets[index].request()
			select {
			case <-s.running.Done():
			case <-time.After(s.renewTime() / 10):
			}
		}
	}
}
