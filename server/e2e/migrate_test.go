package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// migration is the flags of a command that copies the store in dataDir to the engine, or back.
func migration(engine *redistest.Server, from, to, dataDir string) []string {
	return []string{
		"migrate", "--from=" + from, "--to=" + to, "--data-dir=" + dataDir, "--redis-url=" + engine.URL(),
		"--redis-password-file=" + engine.PasswordFile,
	}
}

// wantMigration runs parleyd migrate. The last line of standard error must contain message, and that of standard output
// an end if the code is 0.
func wantMigration(t *testing.T, code int, message string, args ...string) {
	t.Helper()
	gotCode, stdout, stderr := offline(t, args...)
	lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
	if gotCode != code || !strings.Contains(lines[len(lines)-1], message) || (stdout != "") != (code == 0) ||
		strings.Contains(stderr, "correct-horse") {
		t.Errorf("parleyd %q = exit code %d, standard output %q, standard error %q; want %d, %q", args, gotCode, stdout,
			stderr, code, message)
	}
}

// exportBytes returns the bytes of an export of everything.
func exportBytes(t *testing.T, s *server) (all []byte) {
	t.Helper()
	stream, err := s.ExportConversations(t.Context(), &parleyv1.ExportConversationsRequest{IncludeRecords: true})
	if err != nil {
		t.Fatal(err)
	}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(part)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
}

// fillForMigration stores conversations with turns, records and many messages.
func fillForMigration(t *testing.T, s *server) {
	t.Helper()
	for i := range 40 {
		if _, err := s.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
			ConversationId: fmt.Sprint("c", i), RequestId: "r", Messages: []*parleyv1.Message{messageOf("one"), messageOf("two")},
		}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{
		Conversation: &parleyv1.Conversation{Id: "long", Retention: &parleyv1.Retention{MaxMessages: 1000}},
	}); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		var messages []*parleyv1.Message
		for range 50 {
			messages = append(messages, messageOf(strings.Repeat("word ", 200)))
		}
		add(t, s, "long", messages...)
	}
	for range 3 {
		ask(t, s, "chat", "hello")
	}
	records := parleyv1.NewRecordServiceClient(s.conn)
	for i := range 5 {
		w := &parleyv1.WriteRecordsRequest{ConversationId: "chat"}
		for j := range 100 {
			w.Writes = append(w.Writes, &parleyv1.RecordWrite{
				Key: fmt.Sprint(i, "/", j), Value: bytes.Repeat([]byte{byte(j)}, 2000), TenantScope: j%2 == 0,
			})
		}
		if _, err := records.WriteRecords(t.Context(), w); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMigrate: an export of a server on a file, of one on Redis after a migration, and of one on a file after one back
// have the same bytes.
func TestMigrate(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t, redistest.Password("correct-horse"))
	dir, flags := t.TempDir(), redisFlags(t, engine)
	s := startServer(t, dir, agents(t, testAgents))
	fillForMigration(t, s)
	want := exportBytes(t, s)
	turn := history(t, s, "chat").GetMessages()[1].GetTurnId()
	wantMigration(t, exitInUse, "another process", migration(engine, "bolt", "redis", dir)...)
	s.terminate()
	s.wantStop(t)
	before, err := os.ReadFile(filepath.Join(dir, storeName))
	if err != nil {
		t.Fatal(err)
	}
	wantMigration(t, 0, "42 of 42 conversations", migration(engine, "bolt", "redis", dir)...)
	if after, err := os.ReadFile(filepath.Join(dir, storeName)); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the source has changed, %v", err)
	}

	check := func(s *server) {
		t.Helper()
		if got := exportBytes(t, s); !bytes.Equal(got, want) {
			t.Errorf("an export has %d bytes that differ from the %d before", len(got), len(want))
		}
		reply, err := s.GetTurn(t.Context(), &parleyv1.GetTurnRequest{TurnId: turn})
		if err != nil || reply.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_COMPLETED {
			t.Errorf("GetTurn = %v, %v, want COMPLETED", reply, err)
		}
		if list, err := parleyv1.NewRecordServiceClient(s.conn).ListRecords(t.Context(),
			&parleyv1.ListRecordsRequest{PageSize: 300}); err != nil || len(list.GetRecords()) == 0 {
			t.Errorf("records of the tenant = %v, %v, want some", list, err)
		}
	}
	s = startServer(t, t.TempDir(), flags...)
	check(s)
	wantMigration(t, exitInUse, "another server uses the store", migration(engine, "redis", "bolt", t.TempDir())...)
	wantMigration(t, exitInUse, "another server uses the store", migration(engine, "bolt", "redis", dir)...)
	s.terminate()
	s.wantStop(t)
	back := t.TempDir()
	wantMigration(t, 0, "42 of 42 conversations", migration(engine, "redis", "bolt", back)...)
	s = startServer(t, back, agents(t, testAgents))
	check(s)
	again, err := s.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
		ConversationId: "c7", RequestId: "r", Messages: []*parleyv1.Message{messageOf("one"), messageOf("two")},
	})
	if err != nil || !again.GetReplayed() {
		t.Errorf("repeated AppendMessages = %v, %v, want a replay", again, err)
	}
	s.terminate()
	s.wantStop(t)

	wantMigration(t, exitIO, "store is not empty", migration(engine, "bolt", "redis", back)...)
	wantMigration(t, exitIO, "name an empty data directory", migration(engine, "redis", "bolt", back)...)
	missing := filepath.Join(t.TempDir(), "none")
	wantMigration(t, exitIO, "name the data directory of a server", migration(engine, "bolt", "redis", missing)...)
	if _, err := os.Stat(missing); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat of a missing source = %v, want that it does not exist", err)
	}
	wantMigration(t, exitIO, `no store "other"`,
		append(migration(engine, "redis", "bolt", missing), "--redis-prefix=other")...)
	wantMigration(t, exitUsage, "must not be the kind of --from", migration(engine, "bolt", "bolt", dir)...)
	wantMigration(t, exitUsage, "is not a kind of store", migration(engine, "bolt", "memory", dir)...)
	wantMigration(t, exitUsage, "--redis-url: is required", "migrate", "--from=bolt", "--to=redis", "--data-dir="+dir)
}

// keysOf returns the keys of an engine.
func keysOf(t *testing.T, engine *redistest.Server) string {
	t.Helper()
	keys, err := engine.Do("KEYS", "*")
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// gate forwards connections to a server until a number of bytes has been sent to it, and the rest after open.
type gate struct {
	address string
	reached chan struct{} // closed when the gate holds bytes back
	opened  chan struct{}
	open    func()
}

// startGate starts a gate that ends with the test.
func startGate(t *testing.T, target string, limit int64) *gate {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{address: listener.Addr().String(), reached: make(chan struct{}), opened: make(chan struct{})}
	g.open = sync.OnceFunc(func() { close(g.opened) })
	var group sync.WaitGroup
	var sent atomic.Int64
	reach := sync.OnceFunc(func() { close(g.reached) })
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { g.open(); cancel(); listener.Close(); group.Wait() })
	forward := func(from, to net.Conn, hold func(n int)) {
		defer to.Close()
		for b := make([]byte, 4<<10); ; {
			n, err := from.Read(b)
			hold(n)
			if _, failed := to.Write(b[:n]); err != nil || failed != nil {
				return
			}
		}
	}
	group.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				client.Close()
				continue
			}
			context.AfterFunc(ctx, func() { client.Close(); server.Close() })
			group.Go(func() {
				forward(client, server, func(n int) {
					if sent.Add(int64(n)) > limit {
						reach()
						<-g.opened
					}
				})
			})
			group.Go(func() { forward(server, client, func(int) {}) })
		}
	})
	return g
}

// TestMigrateInterrupted: a migration that fails or is interrupted removes what it has copied. After a kill, a server
// refuses the unfinished copy, and the next migration starts over.
func TestMigrateInterrupted(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t, redistest.Password("correct-horse"))
	dir, flags := t.TempDir(), redisFlags(t, engine)
	s := startServer(t, dir, agents(t, testAgents))
	fillForMigration(t, s)
	want := exportBytes(t, s)
	s.terminate()
	s.wantStop(t)
	toRedis := migration(engine, "bolt", "redis", dir)
	if _, err := engine.Do("SET", "parley:other:{1}c", "kept"); err != nil { // of another program
		t.Fatal(err)
	}

	engine.Config("maxmemory", "2500000") // Of an empty engine and its clients: 1 to 1.6 MB; with the copy 3.4 MB.
	wantMigration(t, exitIO, "raise maxmemory of the engine", toRedis...)
	engine.Config("maxmemory", "0")
	if keys := keysOf(t, engine); keys != "parley:other:{1}c" {
		t.Errorf("keys after a full engine = %q, want only that of another program", keys)
	}

	// interrupt sends a signal to a migration that has copied some conversations and waits for the engine.
	interrupt := func(signal syscall.Signal) (code int, stderr string) {
		t.Helper()
		g := startGate(t, engine.Addr(), 300<<10)
		var output bytes.Buffer
		command := parleyd(t)
		command.Args = append(command.Args[:1], append(toRedis, "--redis-url=redis://"+g.address)...)
		command.Stderr = &output
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-g.reached:
		case <-timeLimited(t).Done():
			t.Fatalf("the migration did not reach the gate: %s", &output)
		}
		if keys := keysOf(t, engine); !strings.Contains(keys, "}m:") {
			t.Errorf("keys = %q, want those of copied conversations", keys)
		}
		if err := command.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		if signal == syscall.SIGKILL {
			_ = command.Wait()
			g.open()
			return 0, ""
		}
		g.open()
		if command.Wait() == nil {
			t.Error("the migration has ended without an error")
		}
		return command.ProcessState.ExitCode(), output.String()
	}
	code, stderr := interrupt(syscall.SIGINT)
	if code != exitIO || !strings.Contains(stderr, "interrupted") || !strings.Contains(stderr, "what was copied is removed") {
		t.Errorf("interrupted migration = %d, %q, want %d and what became of the copy", code, stderr, exitIO)
	}
	if keys := keysOf(t, engine); keys != "parley:other:{1}c" {
		t.Errorf("keys after an interruption = %q, want only that of another program", keys)
	}
	interrupt(syscall.SIGKILL)
	got, output := failToStart(t, append([]string{"--data-dir=" + t.TempDir()}, flags...)...)
	if got != exitIO || !strings.Contains(output, "run parleyd migrate again") {
		t.Errorf("server on an unfinished copy ended with %d and %q, want %d and what to do", got, output, exitIO)
	}
	wantMigration(t, 0, "42 of 42 conversations", toRedis...)
	s = startServer(t, t.TempDir(), flags...)
	if got := exportBytes(t, s); !bytes.Equal(got, want) {
		t.Errorf("an export has %d bytes that differ from the %d before", len(got), len(want))
	}
	s.terminate()
	s.wantStop(t)

	back := t.TempDir()
	if err := os.WriteFile(filepath.Join(back, storeName+".migration"), []byte("unfinished"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, output = failToStart(t, "--data-dir="+back)
	if got != exitIO || !strings.Contains(output, "run parleyd migrate again") {
		t.Errorf("server on an unfinished file ended with %d and %q, want %d and what to do", got, output, exitIO)
	}
	wantMigration(t, 0, "42 of 42 conversations", migration(engine, "redis", "bolt", back)...)
	entries, err := os.ReadDir(back)
	if err != nil || len(entries) != 1 || entries[0].Name() != storeName {
		t.Errorf("the new data directory has %v, %v, want only %s", entries, err, storeName)
	}
}
