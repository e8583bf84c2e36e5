package main

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	// tenant is whose conversations parleyd serves where nobody signs in.
	tenant = "default"
	// storeFile is what it calls the file in its directory.
	storeFile = "parley.db"
	// fillers is how many conversations wait for the writer while a file is filled.
	fillers = 512
)

// bolt is the store alone: its own group commit, called in this process without gRPC.
type bolt struct {
	store *boltstore.Store
}

func openBolt(dir string) (*bolt, error) {
	s, err := boltstore.Open(filepath.Join(dir, storeFile), boltstore.Options{})
	if err != nil {
		return nil, err
	}
	return &bolt{store: s}, nil
}

func (b *bolt) append(ctx context.Context, id, message string) error {
	_, err := b.store.Append(ctx, &store.Append{Tenant: tenant, ConversationID: id, Messages: []*parleyv1.Message{
		{Id: id, Role: parleyv1.Role_ROLE_USER, Content: message}, // As long as the id that a server gives.
	}})
	return err
}

func (b *bolt) read(ctx context.Context, id string) ([]string, error) {
	snapshot, err := b.store.Read(ctx, &store.Read{Tenant: tenant, ConversationID: id, Newest: keep})
	if errors.Is(err, store.ErrNotFound) {
		return nil, errNoConversation
	}
	if err != nil {
		return nil, err
	}
	messages, err := snapshot.Messages.Messages()
	return contents(messages), err
}

// contents are the texts of messages.
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
	return b.importAll(ctx, filling{count: n, messageBytes: messageBytes, end: time.Now().Add(life)})
}

// filling says which conversations importAll makes.
type filling struct {
	first, count int // numbers
	messageBytes int
	end          time.Time
}

// importAll makes conversations that end at one time.
func (b *bolt) importAll(ctx context.Context, f filling) error {
	var messages store.Frames
	last := f.end.Add(-life)
	for i := range keep {
		// Their ids are as long as those that a server gives.
		encoded, err := proto.Marshal(&parleyv1.LoadConversationResponse{Messages: []*parleyv1.Message{{
			Id: conversationID(i), Sequence: int32(i + 1), Role: parleyv1.Role_ROLE_USER, Content: message(f.messageBytes),
			Status: parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE, Exchange: int32(i + 1), CreateTime: timestamppb.New(last),
		}}})
		if err != nil {
			return err
		}
		messages = append(messages, encoded...)
	}
	return fillInSteps(ctx, f.count, 1, fillers, func(ctx context.Context, i, _ int) error {
		_, err := b.store.Import(ctx, &store.Import{Tenant: tenant, Overwrite: true, Messages: messages, Conversation: &parleyv1.Conversation{
			Id: conversationID(f.first + i), Version: keep, LastSequence: keep,
			Retention:  &parleyv1.Retention{MaxMessages: keep, Ttl: durationpb.New(life)},
			CreateTime: timestamppb.New(last.Add(time.Duration(i) * time.Microsecond)), // Keys rise with it.
			UpdateTime: timestamppb.New(last), LastAppendTime: timestamppb.New(last),
		}})
		return err
	})
}

func (b *bolt) close() error { return b.store.Close() }

// fillFile makes the file of a store in dir with these conversations.
func fillFile(ctx context.Context, dir string, f filling) error {
	b, err := openBolt(dir)
	if err != nil {
		return err
	}
	return errors.Join(b.importAll(ctx, f), b.close())
}
