// Package migrate copies all data of a store to an empty store of another kind: conversations with their messages,
// turns, events and remembered requests, and the records of conversations and tenants, with uids, versions, revisions
// and times. Start at [Run].
package migrate

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

const (
	// pageSize is the number of conversations that one list returns.
	pageSize = 256
	// maxConcurrent is the maximum number of conversations that are copied at the same time. They share commits of a
	// file and round trips to an engine.
	maxConcurrent = 32
	// maxBytes is about the maximum memory of these conversations. A larger one is copied alone.
	maxBytes = 128 << 20
	// copyFactor is how many times the size of its messages a conversation takes in memory: read, decoded, encoded and
	// sent. copyOverhead is what it takes besides, with its turns and one page of its records.
	copyFactor   = 4
	copyOverhead = 256<<10 + 2*store.MaxCopiedPageBytes
)

// Counts are numbers of what was found or copied.
type Counts struct {
	Tenants, Conversations, Messages, Records int64
	// Bytes is the size of the messages and of the records of conversations.
	Bytes int64
}

// Options are the options of Run.
type Options struct {
	Source store.CopySource
	Target store.CopyTarget
	// MaxConversationBytes is the maximum size of the messages of a conversation in the target; 0 means no limit.
	MaxConversationBytes int
	// Progress is called with what is to be copied and what was copied so far, after each conversation, and once before.
	// It must return quickly. Calls do not overlap.
	Progress func(all, done Counts)
}

// Run copies the source to the target. It first reads all headers of the source, and copies nothing if it finds damaged
// conversations or too large ones. It copies neither conversations nor records that have expired. Ephemeral
// conversations keep their delete time; those that a client held when the server stopped are released. Running turns
// stay running: the next server on the target ends them. Run does not finish the target. Errors: those of the stores
// with tenant and conversation, and the error of ctx.
func Run(ctx context.Context, o Options) (Counts, error) {
	m := &migration{Options: o, bytes: semaphore.NewWeighted(maxBytes)}
	tenants, err := o.Source.AllTenants(ctx)
	if err != nil {
		return Counts{}, fmt.Errorf("source: %w", err)
	}
	m.all.Tenants = int64(len(tenants))
	for _, tenant := range tenants {
		if err := m.count(ctx, tenant); err != nil {
			return Counts{}, fmt.Errorf("source: tenant %q: %w", tenant, err)
		}
	}
	o.Progress(m.all, m.done)
	for _, tenant := range tenants {
		if err := m.copyTenant(ctx, tenant); err != nil {
			return m.done, fmt.Errorf("tenant %q: %w", tenant, err)
		}
		m.done.Tenants++
	}
	if err := m.copyProgress(ctx); err != nil {
		return m.done, err
	}
	return m.done, m.compare(ctx)
}

// migration is a running Run.
type migration struct {
	Options

	bytes *semaphore.Weighted
	all   Counts

	mu    sync.Mutex // guards the fields below while conversations are copied
	done  Counts
	owned int64 // records of tenants that were copied, as Stats counts them
}

// pages calls each with the entries of each page of a tenant's conversations, oldest first.
func (m *migration) pages(
	ctx context.Context, tenant string, each func([]*parleyv1.ConversationEntry) error,
) error {
	list := &store.List{Tenant: tenant, OldestFirst: true, PageSize: pageSize}
	for {
		page, err := m.Source.List(ctx, list)
		switch {
		case err != nil:
			return err
		case page.Damaged > 0:
			return fmt.Errorf("%w: %d conversations: delete them through a server, or restore a backup", store.ErrCorrupt,
				page.Damaged)
		}
		if err := each(page.Entries); err != nil {
			return err
		}
		if list.PageToken = page.NextPageToken; list.PageToken == "" {
			return nil
		}
	}
}

// count adds what a tenant has to m.all, and checks it.
func (m *migration) count(ctx context.Context, tenant string) error {
	return m.pages(ctx, tenant, func(entries []*parleyv1.ConversationEntry) error {
		for _, entry := range entries {
			c := entry.GetConversation()
			if size := int(c.GetSizeBytes()); m.MaxConversationBytes > 0 && size > m.MaxConversationBytes {
				return fmt.Errorf("conversation %q has %d bytes of messages, the target takes at most %d: "+
					"remove some of them through a server, or delete it", c.GetId(), size, m.MaxConversationBytes)
			}
			m.all.add(c)
		}
		return nil
	})
}

// add adds a conversation with its records.
func (c *Counts) add(of *parleyv1.Conversation) {
	c.Conversations++
	c.Messages += int64(of.GetMessageCount())
	c.Records += int64(of.GetRecordCount())
	c.Bytes += int64(of.GetSizeBytes()) + of.GetRecordBytes()
}

// copyTenant copies the conversations and the records of a tenant.
func (m *migration) copyTenant(ctx context.Context, tenant string) error {
	if err := m.copyConversations(ctx, tenant); err != nil {
		return err
	}
	n, err := m.copyRecords(ctx, tenant, "")
	m.owned += n
	return err
}

// copyConversations copies conversations at the same time. Those with the same create time follow each other, because
// their order in lists is that of their commits.
func (m *migration) copyConversations(ctx context.Context, tenant string) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(maxConcurrent)
	var job []*parleyv1.Conversation // with the same create time
	start := func() {
		conversations := job
		job = nil
		group.Go(func() error {
			for _, c := range conversations {
				if err := m.copyConversation(groupCtx, tenant, c); err != nil {
					return fmt.Errorf("conversation %q: %w", c.GetId(), err)
				}
			}
			return nil
		})
	}
	err := m.pages(groupCtx, tenant, func(entries []*parleyv1.ConversationEntry) error {
		for _, entry := range entries {
			c := entry.GetConversation()
			if len(job) > 0 && !job[0].GetCreateTime().AsTime().Equal(c.GetCreateTime().AsTime()) {
				start()
			}
			// The copy of a header is small: lists have no system prompts, and labels are not needed.
			job = append(job, &parleyv1.Conversation{
				Id: c.GetId(), CreateTime: c.GetCreateTime(), SizeBytes: c.GetSizeBytes(), RecordCount: c.GetRecordCount(),
			})
		}
		return groupCtx.Err()
	})
	if len(job) > 0 && err == nil {
		start()
	}
	if failed := group.Wait(); failed != nil {
		return failed // It is why the list ended.
	}
	return err
}

// copyConversation copies a conversation with its records. It skips one that has ended in the meantime.
func (m *migration) copyConversation(ctx context.Context, tenant string, entry *parleyv1.Conversation) error {
	size := min(maxBytes, copyFactor*int64(entry.GetSizeBytes())+copyOverhead)
	if err := m.bytes.Acquire(ctx, size); err != nil {
		return err
	}
	defer m.bytes.Release(size)
	c, err := m.Source.CopyConversation(ctx, tenant, entry.GetId())
	if errors.Is(err, store.ErrNotFound) {
		return nil
	} else if err != nil {
		return sourceError(err)
	}
	if err := m.Target.PutConversation(ctx, c); err != nil {
		return targetError(err)
	}
	header := c.Header.GetConversation()
	c.Messages = nil
	if header.GetRecordCount() > 0 {
		n, err := m.copyRecords(ctx, tenant, header.GetId())
		if err != nil {
			return err
		}
		if n != int64(header.GetRecordCount()) {
			return sourceError(fmt.Errorf("%w: it has %d records, its header says %d", store.ErrCorrupt, n,
				header.GetRecordCount()))
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done.add(header)
	m.Progress(m.all, m.done)
	return nil
}

// copyRecords copies the records of a conversation, or of the tenant if id is empty, and returns their number without
// the requests.
func (m *migration) copyRecords(ctx context.Context, tenant, id string) (n int64, err error) {
	for after, more := "", true; more; {
		page, err := m.Source.CopyRecords(ctx, tenant, id, after)
		if err != nil {
			return n, sourceError(err)
		}
		if len(page.Records) > 0 || page.Revision > 0 {
			if err := m.Target.PutRecords(ctx, page); err != nil {
				return n, targetError(err)
			}
		}
		for _, r := range page.Records {
			after = r.Key
			if !r.IsRequest() {
				n++
			}
		}
		more = page.More
	}
	return n, nil
}

// copyProgress copies the saved answers of running turns.
func (m *migration) copyProgress(ctx context.Context) error {
	for after := ""; ; {
		turns, next, err := m.Source.Abandoned(ctx, after)
		if err != nil {
			return sourceError(err)
		}
		for i := range turns {
			err := m.Target.SaveProgress(ctx, &turns[i])
			if err != nil && !errors.Is(err, store.ErrTurnEnded) { // Its conversation has ended.
				return targetError(err)
			}
		}
		if after = next; after == "" {
			return nil
		}
	}
}

// compare checks that the target counts what was copied.
func (m *migration) compare(ctx context.Context) error {
	stats, err := m.Target.Stats(ctx)
	if err != nil {
		return targetError(err)
	}
	want := m.done
	if stats.Conversations != want.Conversations || stats.Messages != want.Messages ||
		stats.Records != want.Records+m.owned {
		return targetError(fmt.Errorf("it has %d conversations, %d messages and %d records, but %d, %d and %d were copied",
			stats.Conversations, stats.Messages, stats.Records, want.Conversations, want.Messages, want.Records+m.owned))
	}
	return nil
}

func sourceError(err error) error { return fmt.Errorf("source: %w", err) }

func targetError(err error) error {
	if errors.Is(err, store.ErrNoSpace) {
		return fmt.Errorf("target: %w: free space on its disk, or raise maxmemory of the engine", err)
	}
	return fmt.Errorf("target: %w", err)
}
