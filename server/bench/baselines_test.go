package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync/atomic"
	"testing"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/store"
)

// benchCases returns the cases of BenchmarkService, ordered by group.
func (s *benchServer) benchCases(b *testing.B) []*benchCase {
	b.Helper()
	batched, signedIn := openBatched(b, s), s.withSignIn(b)
	id := s.ids[0]
	appended, err := s.client.AppendMessages(s.ctx, &parleyv1.AppendMessagesRequest{
		ConversationId: id, Messages: []*parleyv1.Message{s.message},
	})
	must(b, err)
	loaded, err := s.client.LoadConversation(s.ctx, &parleyv1.LoadConversationRequest{ConversationId: id})
	must(b, err)
	summed, err := s.client.GetRoutingSummary(s.ctx, &parleyv1.GetRoutingSummaryRequest{ConversationId: id})
	must(b, err)
	bounds := s.withBounds(b, appended, loaded, summed)

	var all []*benchCase
	add := func(group string, callers int, name string, caller func() (call, error), comparisons ...comparison) *benchCase {
		c := newBenchCase(group, callers, name, caller, comparisons...)
		all = append(all, c)
		return c
	}
	for _, callers := range []int{64, 1} {
		expect := func(with64, with1 float64) float64 {
			if callers == 1 {
				return with1
			}
			return with64
		}
		than := func(other *benchCase, least, stretch float64) comparison { // The goals are for 64 callers.
			return comparison{other, expect(least, 0), expect(stretch, 0)}
		}
		empty := add("append", callers, "empty call", s.calling(appended))
		batch := add("append", callers, "db.Batch", batched.appending)
		bound := add("append", callers, "bound", bounds.appending(false))
		direct := add("append", callers, "in process", s.appendingInProcess,
			comparison{with: batch, least: expect(1.5, 5)})
		plain := add("append", callers, "gRPC", s.appending(false),
			than(direct, 0, 0), than(batch, 0, 0), than(empty, 0, 0), than(bound, 0.45, 0.6))
		add("append", callers, "gRPC with TLS and token", signedIn.appending(false),
			comparison{with: plain, least: 0.9})
		add("append", callers, "gRPC with request_id", s.appending(true), than(direct, 0, 0), than(empty, 0, 0))
		if callers > 1 {
			streamed := add("append", callers, "AppendStream", s.appendingOverStream(callers), than(plain, 1.6, 2.2))
			streamed.callers = 1 // It has as many requests under way as there are other callers.
		}

		empty = add("load", callers, "empty call", s.calling(loaded))
		bound = add("load", callers, "bound", bounds.loading, than(empty, 0, 0))
		plain = add("load", callers, "gRPC", s.loading, than(empty, 0.65, 0.75), than(bound, 0.85, 0.93))
		add("load", callers, "gRPC with TLS and token", signedIn.loading, comparison{with: plain, least: 0.8})

		empty = add("summary", callers, "empty call", s.calling(summed))
		bound = add("summary", callers, "bound", bounds.readingSummary)
		add("summary", callers, "gRPC", s.readingSummary, than(empty, 0.6, 0.7), than(bound, 0, 0))
		add("summary", callers, "gRPC, same version", s.readingSummaryAgain, than(empty, 0.8, 0.9), than(bound, 0, 0))

		empty = add("not modified", callers, "empty call", s.calling(&parleyv1.GetRoutingSummaryResponse{NotModified: true}))
		bound = add("not modified", callers, "bound", bounds.readingUnmodified)
		add("not modified", callers, "gRPC", s.readingUnmodified, than(empty, 0.92, 1), than(bound, 0, 0))
	}
	return append(all, s.turnCases(b)...)
}

// plainService returns a service that answers with the number of bytes in the request. It is served with
// the options and interceptors of the other services.
func plainService() *grpc.ServiceDesc {
	zeros := make([]byte, rules.MaxGRPCBytes)
	answer := func(_ context.Context, request any) (any, error) {
		r, ok := request.(*wrapperspb.Int32Value)
		if !ok {
			return nil, fmt.Errorf("request is a %T", request)
		}
		return &wrapperspb.BytesValue{Value: zeros[:r.GetValue()]}, nil
	}
	return &grpc.ServiceDesc{
		ServiceName: "bench.Plain", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Call", Handler: func(_ any, ctx context.Context, decode func(any) error,
			intercept grpc.UnaryServerInterceptor,
		) (any, error) {
			request := new(wrapperspb.Int32Value)
			if err := decode(request); err != nil {
				return nil, err
			}
			return intercept(ctx, request, &grpc.UnaryServerInfo{FullMethod: plainCall}, answer)
		}}},
	}
}

// plainCall is the name of the method of plainService.
const plainCall = "/bench.Plain/Call"

// sizeRequest returns a request to plainService for a reply as large as this one. Replies of one or two
// bytes do not exist: they have three, because gRPC has a shorter path for empty ones.
func sizeRequest(reply proto.Message) *wrapperspb.Int32Value {
	plain := &wrapperspb.BytesValue{Value: make([]byte, proto.Size(reply))}
	for len(plain.Value) > 1 && proto.Size(plain) > proto.Size(reply) {
		plain.Value = plain.Value[1:]
	}
	return wrapperspb.Int32(int32(len(plain.Value)))
}

// calling returns an empty call with a reply of this reply's size.
func (s *benchServer) calling(reply proto.Message) func() (call, error) {
	request := sizeRequest(reply)
	return func() (call, error) {
		return func(done *atomic.Int64) error {
			err := s.conn.Invoke(s.ctx, plainCall, request, new(wrapperspb.BytesValue))
			done.Add(1)
			return err
		}, nil
	}
}

// batched is a bbolt file without the store. Its values are as large as the store's, in one bucket. An
// append is one call of db.Batch that copies the bytes that an append must copy, and does nothing else.
type batched struct {
	db            *bolt.DB
	conversations int
	header        int // number of bytes before the messages
	frame         store.Frame
}

// openBatched fills a file with the data of s.
func openBatched(b *testing.B, s *benchServer) *batched {
	b.Helper()
	stats, err := s.store.Stats(s.ctx)
	must(b, err)
	snapshot, err := s.store.Read(s.ctx, &store.Read{Tenant: auth.DefaultTenant, ConversationID: s.ids[0], Newest: -1})
	must(b, err)
	d := &batched{conversations: len(s.ids), header: int(stats.Bytes/stats.Conversations) - len(snapshot.Messages)}
	for d.frame = range snapshot.Messages.All() {
		break
	}
	d.db, err = bolt.Open(filepath.Join(s.dir, "batched.db"), 0o600, &bolt.Options{
		FreelistType: bolt.FreelistMapType, InitialMmapSize: 1 << 30,
	})
	must(b, err)
	b.Cleanup(func() { d.db.Close() })
	value := append(make([]byte, d.header), snapshot.Messages...)
	for first := 0; first < d.conversations; first += 256 {
		must(b, d.db.Update(func(tx *bolt.Tx) error {
			bucket, err := tx.CreateBucketIfNotExists([]byte("conversations"))
			for i := first; err == nil && i < min(first+256, d.conversations); i++ {
				err = bucket.Put(batchedKey(i), value)
			}
			return err
		}))
	}
	return d
}

// batchedKey returns a key with the length and order of the store's keys.
func batchedKey(i int) []byte { return binary.BigEndian.AppendUint64(make([]byte, 12), uint64(i)) }

// appending returns a call that removes the oldest message of a random conversation and adds one.
func (d *batched) appending() (call, error) {
	return func(done *atomic.Int64) error {
		key := batchedKey(rand.N(d.conversations))
		err := d.db.Batch(func(tx *bolt.Tx) error {
			bucket := tx.Bucket([]byte("conversations"))
			old := bucket.Get(key)
			value := append(make([]byte, 0, len(old)), old[:d.header]...)
			value = append(append(value, store.Frames(old[d.header:]).Skip(1)...), d.frame...)
			return bucket.Put(key, value)
		})
		done.Add(1)
		return err
	}, nil
}
