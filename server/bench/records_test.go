package bench

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/store"
)

// BenchmarkRecords compares calls of records with calls of messages and with bounds, and calls to conversations of 1000
// messages of 3 KB with those to small ones. All cases run in the same rounds. PARLEY_BENCH_ROUNDS, PARLEY_BENCH_SLICE
// and PARLEY_BENCH_ONLY apply as in BenchmarkService. PARLEY_BENCH_CONVERSATIONS is the number of small conversations,
// 2000 if it is not set: all are in the cache. A tenth as many are large.
func BenchmarkRecords(b *testing.B) {
	rounds, slice := benchRounds(b)
	conversations := benchSetting(b, "CONVERSATIONS", positive, 2000)
	only := benchSetting(b, "ONLY", regexp.Compile, regexp.MustCompile(""))
	s := openBenchServer(b, conversations)
	large := newLargeSet(b, s, max(conversations/10, 1))
	records := newRecordSet(b, s)
	var all []*benchCase
	for _, callers := range []int{64, 1} {
		all = append(append(all, large.cases(callers)...), records.cases(callers)...)
	}
	all = slices.DeleteFunc(all, func(c *benchCase) bool { return !only.MatchString(c.name) })
	measureAll(b, all, rounds, slice)
	report(b, all)
	large.report(b)
}

// The large conversations.
const (
	largeMessages = 1000
	largeContent  = 3000 // bytes of a message
)

// largeSet are servers of the same store with different conversations.
type largeSet struct {
	// small and large are appended to. So the newest messages of large become small.
	small, large *benchServer
	// The others are only read: 20 messages of 500 B, 1000 messages whose newest 20 have 500 B and the others 3 KB,
	// 20 messages of 3 KB, and 1000 messages of 3 KB. The replies with the first two have the same size, and so have
	// those with the last two.
	newest20, newest20OfLarge, newest20Of3KB, newest20OfLarge3KB *benchServer
}

// newLargeSet creates conversations: that number of each kind that is appended to, and a quarter of it of each kind
// that is read.
func newLargeSet(b *testing.B, s *benchServer, conversations int) *largeSet {
	b.Helper()
	small, large := slices.Repeat([]int{benchContent}, benchMessages), slices.Repeat([]int{largeContent}, largeMessages)
	read := max(conversations/4, 1)
	return &largeSet{
		small: s.having(b, conversations, small), large: s.having(b, conversations, large),
		newest20:           s.having(b, read, small),
		newest20OfLarge:    s.having(b, read, slices.Concat(large[benchMessages:], small)),
		newest20Of3KB:      s.having(b, read, large[:benchMessages]),
		newest20OfLarge3KB: s.having(b, read, large),
	}
}

// having creates conversations that keep as many messages as there are sizes, with messages of these sizes in bytes,
// oldest first. It returns the server with these conversations in place of its own.
func (s *benchServer) having(b *testing.B, conversations int, sizes []int) *benchServer {
	b.Helper()
	var messages []*parleyv1.Message
	for _, size := range sizes {
		m := sizedMessage(size)
		m.Id = uuid.NewString()
		messages = append(messages, m)
	}
	other := *s
	other.ids = make([]string, conversations)
	with := &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxMessages: int32(len(sizes))}}
	var callers errgroup.Group
	callers.SetLimit(16)
	for i := range other.ids {
		other.ids[i] = uuid.NewString()
		callers.Go(func() error {
			for part := range slices.Chunk(messages, 100) {
				if _, err := s.store.Append(s.ctx, &store.Append{
					Tenant: auth.DefaultTenant, ConversationID: other.ids[i], Messages: part, CreateWith: with,
				}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	must(b, callers.Wait())
	return &other
}

// sizedMessage returns a message with a content of that many bytes.
func sizedMessage(size int) *parleyv1.Message {
	return &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: sizedText(size)}
}

func sizedText(size int) string {
	const text = "all happy families are alike "
	return strings.Repeat(text, size/len(text)+1)[:size]
}

// cases returns the cases of large conversations.
func (l *largeSet) cases(callers int) []*benchCase {
	small := newBenchCase("append", callers, "to 20 of 500 B", l.small.appending(false))
	read := newBenchCase("newest 20", callers, "20 of 500 B", l.newest20.loading)
	read3KB := newBenchCase("newest 20", callers, "20 of 3 KB", l.newest20Of3KB.loading)
	return []*benchCase{
		small,
		newBenchCase("append", callers, "to 1000 of 3 KB", l.large.appending(false), comparison{with: small, least: 0.8}),
		read,
		newBenchCase("newest 20", callers, "1000, newest of 500 B", l.newest20OfLarge.loading,
			comparison{with: read, least: 0.8}),
		read3KB,
		newBenchCase("newest 20", callers, "1000 of 3 KB", l.newest20OfLarge3KB.loading,
			comparison{with: read3KB, least: 0.8}),
	}
}

// report logs how large the large conversations are at the end: appends of 500 B replace messages of 3 KB.
func (l *largeSet) report(b *testing.B) {
	b.Helper()
	var bytes, messages int64
	for _, id := range l.large.ids {
		read, err := l.large.store.Read(b.Context(), &store.Read{Tenant: auth.DefaultTenant, ConversationID: id, Newest: -1})
		must(b, err)
		bytes += int64(len(read.Messages))
		for range read.Messages.All() {
			messages++
		}
	}
	b.Logf("%d conversations that were appended to have %d messages of %d B now, on average",
		len(l.large.ids), messages/int64(len(l.large.ids)), bytes/messages)
}

// recordSet is a server whose conversations have records.
type recordSet struct {
	// small has 20 messages of 500 B in each conversation, kilobyte 20 of 1 KB, and sameSize 20 of 2.5 KB, the size of a
	// message of 500 B and a record of 2 KB.
	small, kilobyte, sameSize *benchServer
	client, bound             parleyv1.RecordServiceClient
	// got is the reply of each GetRecords.
	got *parleyv1.GetRecordsResponse
}

// The keys of the records, and the sizes of their values in bytes.
const (
	stateKey, stateBytes           = "state", 1000
	checkpointKey, checkpointBytes = "checkpoint", 2000
	kilobyteContent                = 1000
)

func putRecord(key string, size int) *parleyv1.RecordWrite {
	return &parleyv1.RecordWrite{Key: key, Value: []byte(sizedText(size)), MediaType: "text/plain"}
}

// newRecordSet writes records of each conversation of s, and serves the bound of GetRecords.
func newRecordSet(b *testing.B, s *benchServer) *recordSet {
	b.Helper()
	r := &recordSet{
		small:    s,
		kilobyte: s.having(b, len(s.ids), slices.Repeat([]int{kilobyteContent}, benchMessages)),
		sameSize: s.having(b, len(s.ids), slices.Repeat([]int{benchContent + checkpointBytes}, benchMessages)),
		client:   parleyv1.NewRecordServiceClient(s.conn),
	}
	r.kilobyte.message, r.sameSize.message = sizedMessage(kilobyteContent), sizedMessage(benchContent+checkpointBytes)
	var callers errgroup.Group
	callers.SetLimit(64)
	for _, id := range slices.Concat(s.ids, r.kilobyte.ids) {
		callers.Go(func() error {
			_, err := s.store.WriteRecords(s.ctx, &store.WriteRecords{
				Tenant: auth.DefaultTenant, ConversationID: id, Writes: []*parleyv1.RecordWrite{
					putRecord(stateKey, stateBytes), putRecord(checkpointKey, checkpointBytes),
				},
			})
			return err
		})
	}
	must(b, callers.Wait())
	var err error
	r.got, err = r.client.GetRecords(s.ctx, &parleyv1.GetRecordsRequest{
		ConversationId: s.ids[0], Keys: []string{stateKey},
	})
	must(b, err)
	reply := constant(b, r.got)
	r.bound = parleyv1.NewRecordServiceClient(s.serveBounds(b, parleyv1.RecordService_ServiceDesc.ServiceName,
		boundMethod("GetRecords", func(*parleyv1.GetRecordsRequest) store.Frames { return reply })))
	return r
}

// cases returns the cases of records.
func (r *recordSet) cases(callers int) []*benchCase {
	alone := newBenchCase("batch", callers, "message", r.small.appending(false))
	sameSize := newBenchCase("batch", callers, "message of 2.5 KB", r.sameSize.appending(false))
	message := newBenchCase("write", callers, "message of 1 KB", r.kilobyte.appending(false))
	empty := newBenchCase("get", callers, "empty call", r.small.calling(r.got))
	bound := newBenchCase("get", callers, "bound", r.getting(r.bound))
	return []*benchCase{
		alone, sameSize,
		newBenchCase("batch", callers, "message and record of 2 KB", r.appending,
			comparison{with: alone, least: 0.8}, comparison{with: sameSize}),
		message,
		newBenchCase("write", callers, "record of 1 KB", r.writing, comparison{with: message, least: 0.95}),
		newBenchCase("write", callers, "record of the tenant", r.writingTenant, comparison{with: message}),
		empty, bound,
		newBenchCase("get", callers, "GetRecords", r.getting(r.client),
			comparison{with: empty, least: 0.85}, comparison{with: bound}),
	}
}

// appending returns a call that appends a message of 500 B and writes a record of 2 KB of the same conversation.
func (r *recordSet) appending() (call, error) {
	q := &parleyv1.AppendMessagesRequest{
		Messages: []*parleyv1.Message{r.small.message},
		Records:  []*parleyv1.RecordWrite{putRecord(checkpointKey, checkpointBytes)},
	}
	return func(done *atomic.Int64) error {
		q.ConversationId = r.small.anyID()
		_, err := r.small.client.AppendMessages(r.small.ctx, q)
		done.Add(1)
		return err
	}, nil
}

// writing returns a call that writes a record of 1 KB of a random conversation.
func (r *recordSet) writing() (call, error) {
	q := &parleyv1.WriteRecordsRequest{Writes: []*parleyv1.RecordWrite{putRecord(stateKey, stateBytes)}}
	return func(done *atomic.Int64) error {
		q.ConversationId = r.kilobyte.anyID()
		_, err := r.client.WriteRecords(r.small.ctx, q)
		done.Add(1)
		return err
	}, nil
}

// writingTenant returns a call that writes a record of 1 KB of the tenant, one of as many as there are conversations.
func (r *recordSet) writingTenant() (call, error) {
	write := putRecord("", stateBytes)
	q := &parleyv1.WriteRecordsRequest{Writes: []*parleyv1.RecordWrite{write}}
	return func(done *atomic.Int64) error {
		write.Key = r.kilobyte.anyID()
		_, err := r.client.WriteRecords(r.small.ctx, q)
		done.Add(1)
		return err
	}, nil
}

// getting returns calls that get a record of 1 KB of a random conversation.
func (r *recordSet) getting(client parleyv1.RecordServiceClient) func() (call, error) {
	return func() (call, error) {
		q := &parleyv1.GetRecordsRequest{Keys: []string{stateKey}}
		return func(done *atomic.Int64) error {
			q.ConversationId = r.small.anyID()
			reply, err := client.GetRecords(r.small.ctx, q)
			if err == nil && (len(reply.GetRecords()) != 1 || len(reply.GetRecords()[0].GetValue()) != stateBytes) {
				err = fmt.Errorf("GetRecords(%s) = %.100v, want 1 record of %d B", q.GetConversationId(), reply, stateBytes)
			}
			done.Add(1)
			return err
		}, nil
	}
}
