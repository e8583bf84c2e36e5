package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/parleydtest"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// The benchmark of several servers: conversations of 20 messages, and turns with pieces at a steady pace.
const (
	serversConversations = 1000
	serversTurns         = 50
	serversPieces        = 600
	piecePace            = 5 * time.Millisecond
)

// servers are several parleyd on one engine, each with a client.
type servers struct {
	clients []parleyv1.ConversationServiceClient
	engine  *redistest.Server
	ids     []string // of conversations of 20 messages
	message *parleyv1.Message
}

// openServers starts the servers. They have the agent clock.
func openServers(b *testing.B, n int) *servers {
	b.Helper()
	program := filepath.Join(b.TempDir(), "parleyd")
	must(b, parleydtest.Build(b.Context(), program))
	settings := filepath.Join(b.TempDir(), "parleyd.yaml")
	must(b, os.WriteFile(settings, fmt.Appendf(nil, "agents:\n  clock:\n    kind: remote\n    address: %s\n", serveClock(b)), 0o600))
	s := &servers{engine: redistest.Start(b), message: benchMessage(parleyv1.Role_ROLE_USER)}
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(b, err)
		address := l.Addr().String()
		must(b, l.Close())
		process, err := parleydtest.Start(parleydtest.Command(b.Context(), program, b.TempDir(), "--store=redis",
			"--redis-url="+s.engine.URL(), "--grpc-address="+address, "--advertise-address="+address, "--interaction-log=false",
			"--config="+settings))
		must(b, err)
		b.Cleanup(process.Kill)
		_, err = process.AwaitServing()
		must(b, err)
		s.clients = append(s.clients, parleyv1.NewConversationServiceClient(connect(b, l.Addr())))
	}
	return s
}

// BenchmarkServers compares the appends of 64 callers of one server with those of callers of three servers on the same
// engine. The reported processor time is that of the callers only.
func BenchmarkServers(b *testing.B) {
	const least = 0.7
	rounds, slice := benchRounds(b)
	only := benchSetting(b, "ONLY", regexp.Compile, regexp.MustCompile(""))
	s := openServers(b, 3)
	for range serversConversations {
		s.ids = append(s.ids, uuid.NewString())
	}
	var filling errgroup.Group
	for caller := range 64 {
		filling.Go(func() error {
			for i := caller; i < len(s.ids); i += 64 {
				for range benchMessages {
					if err := s.appendTo(b.Context(), s.clients[0], s.ids[i]); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	must(b, filling.Wait())
	one := newBenchCase("append", 64, "one server", s.appending(b.Context(), 1))
	three := newBenchCase("append", 64, "three servers", s.appending(b.Context(), 3), comparison{with: one, least: least})
	all := slices.DeleteFunc([]*benchCase{one, three}, func(c *benchCase) bool { return !only.MatchString(c.name) })
	measureAll(b, all, rounds, slice)
	report(b, all)
}

// appending returns callers that append to a random conversation. Each caller uses the next of the given number of
// servers.
func (s *servers) appending(ctx context.Context, servers int64) func() (call, error) {
	var callers atomic.Int64
	return func() (call, error) {
		client := s.clients[callers.Add(1)%servers]
		return func(done *atomic.Int64) error {
			defer done.Add(1)
			return s.appendTo(ctx, client, s.ids[rand.N(len(s.ids))])
		}, nil
	}
}

func (s *servers) appendTo(ctx context.Context, client parleyv1.ConversationServiceClient, id string) error {
	_, err := client.AppendMessages(ctx, &parleyv1.AppendMessagesRequest{
		ConversationId: id, RequestId: uuid.NewString(), Messages: []*parleyv1.Message{s.message},
	})
	return err
}

// BenchmarkResumeElsewhere compares the delay of the pieces of 50 turns at readers of the server that runs them with
// the delay at readers of another server. Both read the same turns at the same time. It also counts the commands of the
// engine, including those for leases, sweeps and saved answers.
func BenchmarkResumeElsewhere(b *testing.B) {
	const maxLater = time.Millisecond
	rounds, _ := benchRounds(b)
	s := openServers(b, 2)
	var own, other, later []float64
	var commands [2][]float64 // without and with readers at another server
	for round := range rounds + 1 {
		for elsewhere := range commands {
			before := s.commands(b)
			took := s.readTurns(b, elsewhere == 1)
			n := float64(s.commands(b)-before) / (serversTurns * serversPieces)
			if round == 0 { // The first round warms up.
				continue
			}
			if commands[elsewhere] = append(commands[elsewhere], n); elsewhere == 0 {
				continue
			}
			middle := [2]float64{medianMillis(took[0]), medianMillis(took[1])}
			own, other, later = append(own, middle[0]), append(other, middle[1]), append(later, middle[1]-middle[0])
		}
	}
	var table strings.Builder
	fmt.Fprintf(&table, "%d turns, a piece each %v, median of %d rounds\n", serversTurns, piecePace, rounds)
	row(&table, "ms until a piece arrives, at its server", own)
	row(&table, "ms until a piece arrives, at another server", other)
	middle := row(&table, "ms later at the other", later)
	row(&table, "commands of the engine for each piece", commands[1])
	row(&table, "the same without readers at another server", commands[0])
	b.Log(table.String())
	b.ReportMetric(middle, "ms-later")
	b.ReportMetric(0, "ns/op")
	if middle > float64(maxLater.Milliseconds()) {
		b.Logf("expected at most %v later: not met", maxLater)
	}
}

// readTurns reads turns at the server that runs them, and at another one if elsewhere is set. It returns the delays of
// their pieces.
func (s *servers) readTurns(b *testing.B, elsewhere bool) (took [2][]time.Duration) {
	b.Helper()
	var readers errgroup.Group
	all := make([][2][]time.Duration, serversTurns)
	for i := range all {
		id := uuid.NewString()
		started := make(chan string, 1)
		readers.Go(func() (err error) {
			defer close(started)
			stream, err := s.clients[0].Chat(b.Context(), &parleyv1.ChatRequest{
				ConversationId: id, Content: "tell the time", Agent: "clock",
			})
			if err != nil {
				return err
			}
			event, err := stream.Recv()
			if err != nil {
				return err
			}
			started <- event.GetEvent().GetTurnId()
			all[i][0], err = readClock(func() (*parleyv1.TurnEvent, error) {
				r, err := stream.Recv()
				return r.GetEvent(), err
			})
			return err
		})
		readers.Go(func() (err error) {
			turnID, ok := <-started
			if !ok || !elsewhere { // Without a turn, the other reader returns the error.
				return nil
			}
			stream, err := s.clients[1].ResumeTurn(b.Context(), &parleyv1.ResumeTurnRequest{ConversationId: id, TurnId: turnID})
			if err != nil {
				return err
			}
			all[i][1], err = readClock(func() (*parleyv1.TurnEvent, error) {
				r, err := stream.Recv()
				return r.GetEvent(), err
			})
			return err
		})
	}
	must(b, readers.Wait())
	for _, turn := range all {
		for i := range took {
			took[i] = append(took[i], turn[i]...)
		}
	}
	return took
}

// readClock reads the events of a turn of the agent clock to the end. It returns the delay of each piece. The first
// pieces may have waited for a reader that resumes the turn, so use the median.
func readClock(next func() (*parleyv1.TurnEvent, error)) (took []time.Duration, err error) {
	for {
		event, err := next()
		if errors.Is(err, io.EOF) {
			return took, nil
		}
		if err != nil {
			return nil, err
		}
		for text := event.GetTextDelta().GetText(); len(text) >= clockDigits; text = text[clockDigits:] {
			sent, err := strconv.ParseInt(text[:clockDigits], 10, 64)
			if err != nil {
				return nil, err
			}
			took = append(took, time.Since(time.Unix(0, sent)))
		}
	}
}

func medianMillis(took []time.Duration) float64 {
	slices.Sort(took)
	return float64(took[len(took)/2].Microseconds()) / 1000
}

// commands returns how many commands the engine has executed.
func (s *servers) commands(b *testing.B) int64 {
	b.Helper()
	info, err := s.engine.Do("INFO", "stats")
	must(b, err)
	_, rest, _ := strings.Cut(info, "total_commands_processed:")
	number, _, _ := strings.Cut(rest, "\r\n")
	n, err := strconv.ParseInt(number, 10, 64)
	must(b, err)
	return n
}

// clockDigits is the length of a piece of the agent clock: the time in nanoseconds since 1970.
const clockDigits = 19

// clock is an agent that sends the time at a steady pace.
type clock struct {
	parleyv1.UnimplementedAgentServiceServer
}

// Respond sends the pieces.
func (clock) Respond(_ *parleyv1.RespondRequest, stream grpc.ServerStreamingServer[parleyv1.RespondResponse]) error {
	pace := time.NewTicker(piecePace)
	defer pace.Stop()
	for range serversPieces {
		select {
		case <-pace.C:
		case <-stream.Context().Done():
			return context.Cause(stream.Context())
		}
		text := strconv.FormatInt(time.Now().UnixNano(), 10)
		if err := stream.Send(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: text}}); err != nil {
			return err
		}
	}
	return nil
}

// serveClock serves the agent clock and returns its address.
func serveClock(b *testing.B) string {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	s := grpc.NewServer()
	parleyv1.RegisterAgentServiceServer(s, clock{})
	go func() { _ = s.Serve(l) }() // It returns after Stop.
	b.Cleanup(s.Stop)
	return l.Addr().String()
}
