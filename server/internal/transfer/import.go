package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/server/internal/rules/ids"
	"github.com/parleyhq/parley/store"
)

const (
	// MaxImports is the maximum number of concurrent imports over all tenants. While an import waits for
	// its client, it uses up to 9 MiB of one conversation: 6 MiB of messages and 3 MiB of records with about 200 bytes
	// for each. While it waits for the store, it uses as much for each
	// of 8 others, and up to 4 MiB for a request that has arrived: 85 MiB, and 6 MiB while it joins messages.
	MaxImports = 16
	// maxLarge is the maximum number of conversations with more than maxSmallBytes of messages that all imports collect
	// and store at a time. If the server's limit of a conversation is above manyBytes, it is 1. While it is stored, each
	// takes about four times the size of its messages: they are joined, copied and encoded, and bbolt copies them into
	// pages.
	maxLarge  = 2
	manyBytes = 64 << 20
	// maxLargeWait is the maximum time that an import waits for a slot for a large conversation.
	maxLargeWait = 30 * time.Second
	// maxFailures is the maximum number of failures in the reply of an import.
	maxFailures = 100
	// maxFailureID and maxFailureReason are the maximum lengths of the texts of a failure in bytes.
	maxFailureID     = ids.MaxBytes
	maxFailureReason = 512
	// maxConcurrentStores is the maximum number of conversations that an import stores concurrently, so
	// that they share commits.
	maxConcurrentStores = 8
	// If the store is overloaded, an import retries after firstWait. Each wait is twice as long as the
	// one before. After a wait of lastWait it gives up.
	firstWait = 10 * time.Millisecond
	lastWait  = 640 * time.Millisecond
)

// ErrTooManyImports means that MaxImports imports are running, or that too many of them collect a large conversation.
var ErrTooManyImports = errors.New("too many imports")

// Importer imports conversations into a store. Its methods may be called from many goroutines.
type Importer struct {
	store      store.Store
	now        func() time.Time
	retentions rules.Retentions
	limit      int           // of the messages of a conversation, in bytes
	slots      chan struct{} // one element for each running import
	large      *largeSlots
}

// NewImporter returns an Importer for a store. limit is the maximum size of the messages of a conversation in the
// store, in bytes. now is the clock. Conversations whose retention is forbidden fail.
func NewImporter(s store.Store, limit int, now func() time.Time, forbidden rules.Retentions) *Importer {
	large := maxLarge
	if limit > manyBytes {
		large = 1
	}
	return &Importer{
		store: s, limit: limit, now: now, retentions: forbidden,
		slots: make(chan struct{}, MaxImports), large: newLargeSlots(large),
	}
}

// Running returns the number of running imports.
func (i *Importer) Running() int { return len(i.slots) }

// Imported is the result of an import.
type Imported struct {
	// Reply counts the imported and skipped conversations, and lists the first 100 failures.
	Reply *parleyv1.ImportConversationsResponse
	// Failed is the number of conversations that failed.
	Failed int64
}

// Import stores complete conversations of a tenant, which it receives until io.EOF. It stores a
// conversation when all its requests have arrived. If a conversation has more than 3 MiB of records, Import
// stores it when as many have arrived, and the others after that in commits of their own. Such a
// conversation replaces none. If it fails after it was stored, Import deletes it, unless others have changed it.
//
// A conversation fails if it is invalid, has a running turn, or is damaged in the store. The others are
// still imported. If the store itself fails, Import returns the store's error as a ConversationError. The
// conversations imported before stay stored, and the result counts them. If MaxImports imports are
// running, Import returns ErrTooManyImports and receives nothing. Errors of receive are returned
// unchanged, unless Import deleted a conversation of which not all records have arrived: then they are
// ConversationErrors.
func (i *Importer) Import(
	ctx context.Context, tenant string, receive func() (*parleyv1.ImportConversationsRequest, error),
) (Imported, error) {
	select {
	case i.slots <- struct{}{}:
		defer func() { <-i.slots }()
	default:
		return Imported{}, ErrTooManyImports
	}
	running := &importing{Importer: i, tenant: tenant, reply: new(parleyv1.ImportConversationsResponse)}
	err := running.run(ctx, receive)
	return Imported{Reply: running.reply, Failed: running.failed}, err
}

// importing is a running import. The goroutine of the call owns the fields before mu.
type importing struct {
	*Importer
	tenant   string
	incoming *incoming // the conversation that is being received; nil if there is none
	// storing are the conversations that were passed to the store since the last call of wait.
	storing []*incoming
	group   errgroup.Group

	mu     sync.Mutex // guards the fields below
	failed int64
	reply  *parleyv1.ImportConversationsResponse
}

// run imports the requests that receive returns, until io.EOF. When run returns, none of its goroutines
// is running.
func (i *importing) run(ctx context.Context, receive func() (*parleyv1.ImportConversationsRequest, error)) error {
	defer func() { // Also after a panic, which the server recovers.
		if i.incoming != nil {
			i.releaseLarge(i.incoming)
		}
	}()
	err := i.receiveAll(ctx, receive)
	if waitErr := i.wait(); err == nil {
		err = waitErr
	}
	if c := i.incoming; err != nil && c != nil && c.uid != "" {
		return i.discard(ctx, c, err)
	}
	return err
}

func (i *importing) receiveAll(
	ctx context.Context, receive func() (*parleyv1.ImportConversationsRequest, error),
) error {
	for {
		r, err := receive()
		if errors.Is(err, io.EOF) {
			return i.startStore(ctx)
		}
		if err != nil {
			return err
		}
		if !i.incoming.continuesWith(r) {
			if err := i.startStore(ctx); err != nil {
				return err
			}
			i.incoming = &incoming{header: r.GetConversation(), overwrite: r.GetOverwrite(), limit: i.limit}
		}
		if err := i.incoming.add(r, i.now()); err != nil {
			return err
		}
		if i.incoming.fault != "" {
			i.releaseLarge(i.incoming)
		} else if err := i.acquireLarge(ctx, i.incoming); err != nil {
			return err
		}
		if i.incoming.recordBytes > maxCommitRecords {
			if err := i.storeReceived(ctx); err != nil {
				return err
			}
			i.releaseLarge(i.incoming) // Its messages are stored.
		}
	}
}

// startStore starts to store the received conversation, concurrently with a few others. An error ends
// the import.
func (i *importing) startStore(ctx context.Context) error {
	c := i.incoming
	if i.incoming = nil; c == nil {
		return nil
	}
	// Conversations with the same id are stored one after the other. So are conversations with the same
	// create time, because their order is that of their commits.
	if len(i.storing) == maxConcurrentStores || slices.ContainsFunc(i.storing, c.mustFollow) {
		if err := i.wait(); err != nil {
			return err
		}
	}
	i.storing = append(i.storing, c)
	large := c.large // The goroutine resets it.
	i.group.Go(func() (err error) {
		defer func() { // The server recovers panics only in the goroutine of the call.
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		return i.storeAndCount(ctx, c)
	})
	if large {
		return i.wait() // No other conversation is collected while its messages are in memory.
	}
	return nil
}

// acquireLarge waits for a slot if a conversation needs one. Its errors are those of largeSlots.acquire.
func (i *importing) acquireLarge(ctx context.Context, c *incoming) error {
	if c.large || c.size <= maxSmallBytes {
		return nil
	}
	if err := i.wait(); err != nil {
		return err
	}
	err := i.large.acquire(ctx, i.tenant)
	c.large = err == nil
	return err
}

// releaseLarge releases the slot of a conversation, if it has one.
func (i *importing) releaseLarge(c *incoming) {
	if c.large {
		c.large = false
		i.large.release()
	}
}

// wait waits until all conversations that were passed to the store are stored.
func (i *importing) wait() error {
	err := i.group.Wait()
	i.storing, i.group = i.storing[:0], errgroup.Group{}
	return err
}

// storeAndCount stores a conversation and counts the result. It releases the messages and records, because the
// conversation stays in i.storing until the client sends more.
func (i *importing) storeAndCount(ctx context.Context, c *incoming) error {
	defer func() {
		c.frames, c.records = nil, nil
		i.releaseLarge(c)
	}()
	c.checkCount()
	err := i.storeConversation(ctx, c, true)
	if c.uid != "" && (err != nil || c.fault != "") {
		err = i.discard(ctx, c, err)
	}
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case c.fault != "":
		i.failed++
		if len(i.reply.GetFailures()) < maxFailures {
			i.reply.Failures = append(i.reply.Failures, &parleyv1.ImportFailure{
				ConversationId: rules.Clip(c.header.GetId(), maxFailureID), Reason: rules.Clip(c.fault, maxFailureReason),
			})
		}
	case c.skipped:
		i.reply.SkippedCount++
		if c.noCapacity {
			i.reply.NoRoomCount++
		}
	default:
		i.reply.ImportedCount++
	}
	return nil
}
