package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/store"
)

const (
	// maxCommitRecords is the maximum size of the records that are stored with a conversation or in one further commit,
	// as recordSize counts them, unless a single one is larger. An import collects as many in memory.
	maxCommitRecords = 3 << 20
	// recordOverhead is about the memory in bytes that a record uses in addition to its encoded size.
	recordOverhead = 200
	// maxFirstRecords is the maximum number of records that are stored with a conversation.
	maxFirstRecords = 5000
	// maxCommitWrites is the maximum number of records in a further commit, that of WriteRecords.
	maxCommitWrites = 100
)

// recordSize is about the memory in bytes that a record uses.
func recordSize(r *parleyv1.Record) int { return proto.Size(r) + recordOverhead }

// checkRecords adds the faults of the records of a request. An error is a fault of the server.
func (c *incoming) checkRecords(found *faults, records []*parleyv1.Record) error {
	for n, r := range records {
		path := fmt.Sprintf("records[%d].", n)
		broken, err := rules.Check(writeOf(r))
		if err != nil {
			return err
		}
		for _, fault := range broken {
			found.add(path+fault.Field, "%s", fault.Rule)
		}
		if id := r.GetConversationId(); id != "" && id != c.header.GetId() {
			found.add(path+"conversation_id", "must be empty or that of the conversation")
		}
		if key := r.GetKey(); c.lastKey != "" && key <= c.lastKey {
			found.add(path+"key", "must come after %.128q, the key of the record before", c.lastKey)
		}
		c.lastKey = max(c.lastKey, r.GetKey())
	}
	return nil
}

// writeOf returns the write that makes an imported record.
func writeOf(r *parleyv1.Record) *parleyv1.RecordWrite {
	return &parleyv1.RecordWrite{
		Key: r.GetKey(), Value: r.GetValue(), MediaType: r.GetMediaType(), Labels: r.GetLabels(),
	}
}

// storeReceived stores a conversation of which not all records have arrived, with those that have.
func (i *importing) storeReceived(ctx context.Context) error {
	if err := i.wait(); err != nil {
		return err
	}
	i.incoming.checkMessageCount()
	return i.storeConversation(ctx, i.incoming, false)
}

// storeConversation stores a conversation with the records received so far, or only these if the conversation is
// stored already. complete means that all records have arrived. A conversation that cannot be stored gets a fault or is
// skipped. An error ends the import.
func (i *importing) storeConversation(ctx context.Context, c *incoming, complete bool) error {
	defer func() { c.frames, c.size, c.records, c.recordBytes = nil, 0, nil, 0 }()
	if c.fault != "" || c.skipped {
		return nil
	}
	if forbidden := i.retentions.Check(c.header.GetRetention()); forbidden != nil {
		c.fault = "RETENTION_FORBIDDEN: conversation." + forbidden.Error()
		return nil
	}
	if c.uid == "" {
		if err := i.storeFirst(ctx, c, complete); err != nil {
			return c.refuse(err)
		}
	}
	for len(c.records) > 0 && !c.skipped && c.fault == "" {
		if err := i.storeRecords(ctx, c); err != nil {
			return c.refuseRecords(err)
		}
	}
	return nil
}

// storeFirst stores a conversation in its first commit, with as many records as fit. If others must follow, it replaces
// no conversation: the old one would be lost if the new one failed afterwards.
func (i *importing) storeFirst(ctx context.Context, c *incoming, complete bool) error {
	first := c.takeRecords(maxFirstRecords)
	messages := store.Frames(slices.Concat(c.frames...))
	c.frames = nil // Otherwise they would be in memory twice.
	inOneCommit := complete && len(c.records) == 0
	var result *store.Result
	err := retryOverloaded(ctx, func() (err error) {
		result, err = i.store.Import(outlasting(ctx), &store.Import{
			Tenant: i.tenant, Conversation: c.header, Messages: messages, Records: first,
			Overwrite: c.overwrite && inOneCommit,
		})
		return err
	})
	if c.overwrite && errors.Is(err, store.ErrConversationExists) {
		c.fault = "CONVERSATION_EXISTS: the conversation has too many records to be replaced in one commit; " +
			"delete it first, or import without overwrite"
		return nil
	}
	if err != nil {
		return err
	}
	c.uid, c.version = result.Conversation.GetUid(), result.Conversation.GetVersion()
	return nil
}

// storeRecords stores the next records of a conversation that is stored already.
func (i *importing) storeRecords(ctx context.Context, c *incoming) error {
	w := &store.WriteRecords{Tenant: i.tenant, ConversationID: c.header.GetId(), UID: c.uid}
	for _, r := range c.takeRecords(maxCommitWrites) {
		w.Writes = append(w.Writes, writeOf(r))
	}
	return retryOverloaded(ctx, func() error {
		written, err := i.store.WriteRecords(outlasting(ctx), w)
		if err == nil {
			version := written.Conversation.GetVersion()
			c.changed = c.changed || version != c.version+1
			c.version = version
		}
		return err
	})
}

// outlasting returns the context of a commit whose outcome must be known, even if the call ends in the meantime: the
// import deletes only what it has stored itself.
func outlasting(ctx context.Context) context.Context { return context.WithoutCancel(ctx) }

// takeRecords removes and returns the first received records, as many as fit into a commit, and at most limit.
func (c *incoming) takeRecords(limit int) []*parleyv1.Record {
	n, size := 0, 0
	for n < min(len(c.records), limit) {
		if size += recordSize(c.records[n]); n > 0 && size > maxCommitRecords {
			break
		}
		n++
	}
	taken := c.records[:n]
	c.records = c.records[n:]
	return taken
}

// refuse records why the store did not store the conversation: it is skipped, or has a fault. Other errors end the
// import; refuse returns them.
func (c *incoming) refuse(err error) error {
	var (
		busy    *store.BusyError
		header  *store.HeaderTooLargeError
		full    *store.TenantBytesError
		large   *store.ConversationFullError
		records *store.RecordsFullError
	)
	switch {
	case errors.Is(err, store.ErrConversationExists), errors.Is(err, store.ErrExpired):
		c.skipped = true
	case errors.Is(err, store.ErrFull), errors.As(err, &full):
		c.skipped, c.noCapacity = true, true
	case errors.As(err, &busy):
		c.fault = fmt.Sprintf(
			"CONVERSATION_BUSY: turn %s is running on the conversation; retry when it has ended",
			busy.TurnID,
		)
	case errors.As(err, &large):
		c.fault = fmt.Sprintf("CONVERSATION_FULL: %v", large)
	case errors.As(err, &records):
		c.fault = fmt.Sprintf("RECORDS_FULL: %v; raise --max-record-bytes, or import without records", records)
	case errors.As(err, &header):
		c.fault = fmt.Sprintf("conversation: %v", header)
	case errors.Is(err, store.ErrCorrupt):
		c.fault = "RECORD_CORRUPT: the conversation in the store is damaged; overwrite or delete it"
	default:
		return &ConversationError{ID: c.header.GetId(), Err: err}
	}
	return nil
}

// refuseRecords records why the store did not store records of a conversation that is stored already. Other errors end
// the import; refuseRecords returns them.
func (c *incoming) refuseRecords(err error) error {
	var (
		full    *store.TenantBytesError
		records *store.RecordsFullError
	)
	switch {
	case errors.Is(err, store.ErrNotFound):
		c.fault = "CONVERSATION_NOT_FOUND: the conversation ended before all of its records were stored"
	case errors.As(err, &full):
		c.fault = fmt.Sprintf("TENANT_BYTES: %v; delete conversations or records", full)
	case errors.As(err, &records):
		c.fault = fmt.Sprintf("RECORDS_FULL: %v; raise --max-record-bytes, or import without records", records)
	default:
		return &ConversationError{ID: c.header.GetId(), Err: err}
	}
	return nil
}

// retryOverloaded calls write. It retries while the store is overloaded.
func retryOverloaded(ctx context.Context, write func() error) error {
	for wait := firstWait; ; wait *= 2 {
		err := write()
		if !errors.Is(err, store.ErrOverloaded) || wait > lastWait {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
