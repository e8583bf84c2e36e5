package main

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore"
)

const (
	// tenant is the tenant of callers that are not authenticated.
	tenant = "default"
	// storeFile is the name of the store's file in the data directory of parleyd.
	storeFile = "parley.db"
	// concurrentImports is how many imports run at once while a file is filled.
	concurrentImports = 512
)

// bolt is the store of this service, called in process without gRPC.
type bolt struct {
	store *boltstore.Store
}

func openBolt(dir string, o boltstore.Options) (*bolt, error) {
	s, err := boltstore.Open(filepath.Join(dir, storeFile), o)
	if err != nil {
		return nil, err
	}
	return &bolt{store: s}, nil
}

func (b *bolt) append(ctx context.Context, id, message string) error {
	_, err := b.store.Append(ctx, &store.Append{Tenant: tenant, ConversationID: id, Messages: []*parleyv1.Message{
		{Id: id, Role: parleyv1.Role_ROLE_USER, Content: message}, // The id is as long as one from a server.
	}})
	return err
}

func (b *bolt) read(ctx context.Context, id string) ([]string, error) {
	snapshot, err := b.store.Read(ctx, &store.Read{Tenant: tenant, ConversationID: id, Newest: maxMessages})
	if errors.Is(err, store.ErrNotFound) {
		return nil, errNoConversation
	}
	if err != nil {
		return nil, err
	}
	messages, err := snapshot.Messages.Messages()
	return contents(messages), err
}

// contents returns the texts of messages.
func contents(messages []*parleyv1.Message) []string {
	texts := make([]string, len(messages))
	for i, m := range messages {
		texts[i] = m.GetContent()
	}
	return texts
}

func (b *bolt) remaining(ctx context.Context, id string) (time.Duration, error) {
	snapshot, err := b.store.Read(ctx, &store.Read{Tenant: tenant, ConversationID: id})
	if err != nil {
		return 0, err
	}
	return time.Until(snapshot.Conversation.GetExpireTime().AsTime()), nil
}

func (b *bolt) fill(ctx context.Context, n int) error {
	return b.importAll(ctx, fillOptions{count: n, messageBytes: messageBytes, end: time.Now().Add(ttl)})
}

// fillOptions describe the conversations that importAll creates.
type fillOptions struct {
	first, count int // number of the first conversation, and the count of conversations
	messageBytes int
	end          time.Time // when they expire
}

// importAll creates conversations that expire at the same time.
func (b *bolt) importAll(ctx context.Context, f fillOptions) error {
	var messages store.Frames
	last := f.end.Add(-ttl)
	for i := range maxMessages {
		// The ids are as long as those from a server.
		encoded, err := proto.Marshal(&parleyv1.LoadConversationResponse{Messages: []*parleyv1.Message{{
			Id: conversationID(i), Sequence: int32(i + 1), Role: parleyv1.Role_ROLE_USER, Content: message(f.messageBytes),
			Status: parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE, Exchange: int32(i + 1), CreateTime: timestamppb.New(last),
		}}})
		if err != nil {
			return err
		}
		messages = append(messages, encoded...)
	}
	return fillInSteps(ctx, f.count, 1, concurrentImports, func(ctx context.Context, i, _ int) error {
		_, err := b.store.Import(ctx, &store.Import{
			Tenant: tenant, Overwrite: true, Messages: messages,
			Conversation: &parleyv1.Conversation{
				Id: conversationID(f.first + i), Version: maxMessages, LastSequence: maxMessages,
				Retention:  &parleyv1.Retention{MaxMessages: maxMessages, Ttl: durationpb.New(ttl)},
				CreateTime: timestamppb.New(last.Add(time.Duration(i) * time.Microsecond)), // Keys are ordered by it.
				UpdateTime: timestamppb.New(last), LastAppendTime: timestamppb.New(last),
			},
		})
		return err
	})
}

func (b *bolt) close() error { return b.store.Close() }

// fillFile creates the file of a store in dir, or adds to it.
func fillFile(ctx context.Context, dir string, f fillOptions) error {
	b, err := openBolt(dir, boltstore.Options{})
	if err != nil {
		return err
	}
	return errors.Join(b.importAll(ctx, f), b.close())
}
