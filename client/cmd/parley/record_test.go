package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// recordFake is a server with records for behaviour that the scripts cannot produce with the real server. Its pages have
// two records.
type recordFake struct {
	parleyv1.UnimplementedRecordServiceServer

	records []*parleyv1.Record
	fails   int // The number of the write that fails, from 1; 0 for none.

	mu     sync.Mutex
	writes []*parleyv1.WriteRecordsRequest
}

// serveRecords serves records with these keys until the test ends. It returns the server and its address.
func serveRecords(t *testing.T, keys ...string) (f *recordFake, address string) {
	t.Helper()
	f = &recordFake{}
	for _, key := range keys {
		f.records = append(f.records, &parleyv1.Record{Key: key, Value: []byte(key + "\x1b"), Revision: 3})
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	parleyv1.RegisterRecordServiceServer(s, f)
	var running sync.WaitGroup
	running.Go(func() { _ = s.Serve(listener) })
	t.Cleanup(func() { s.Stop(); running.Wait() })
	return f, listener.Addr().String()
}

func (f *recordFake) WriteRecords(
	_ context.Context, request *parleyv1.WriteRecordsRequest,
) (*parleyv1.WriteRecordsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes = append(f.writes, request)
	if len(f.writes) == f.fails {
		return nil, status.Error(codes.ResourceExhausted, "no more")
	}
	return &parleyv1.WriteRecordsResponse{TenantRevision: 4}, nil
}

func (f *recordFake) GetRecords(
	_ context.Context, request *parleyv1.GetRecordsRequest,
) (*parleyv1.GetRecordsResponse, error) {
	reply := &parleyv1.GetRecordsResponse{}
	for _, record := range f.records {
		if slices.Contains(request.GetKeys(), record.GetKey()) {
			reply.Records = append(reply.Records, record)
		}
	}
	return reply, nil
}

func (f *recordFake) ListRecords(
	_ context.Context, request *parleyv1.ListRecordsRequest,
) (*parleyv1.ListRecordsResponse, error) {
	from := 0
	_, _ = fmt.Sscan(request.GetPageToken(), &from)
	to := min(from+2, len(f.records))
	reply := &parleyv1.ListRecordsResponse{Records: f.records[from:to]}
	if to < len(f.records) {
		reply.NextPageToken = fmt.Sprint(to)
	}
	return reply, nil
}

// deletedKeys returns the keys that each write deleted.
func (f *recordFake) deletedKeys() (keys []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, request := range f.writes {
		batch := request.GetConversationId() + ":"
		for _, write := range request.GetWrites() {
			if write.GetDelete() {
				batch += " " + write.GetKey()
			}
		}
		keys = append(keys, batch)
	}
	return keys
}

func TestRecordPutFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "value")
	if err := os.WriteFile(file, []byte(" [1]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		args []string
		want *parleyv1.WriteRecordsRequest
	}{
		{
			[]string{"-c", "shop", "k", "v", "--media-type", "x/y", "--if-revision", "0", "--request-id", "r"},
			&parleyv1.WriteRecordsRequest{ConversationId: "shop", RequestId: "r", Writes: []*parleyv1.RecordWrite{
				{Key: "k", Value: []byte("v"), MediaType: "x/y", IfRevision: new(int64(0))},
			}},
		},
		{
			[]string{"--tenant-scope", "k", "--ttl", "7d", "--label", "a=\"1\",2", "--label", "b=c=", "--request-id", "r"},
			&parleyv1.WriteRecordsRequest{RequestId: "r", Writes: []*parleyv1.RecordWrite{{
				Key: "k", Value: []byte("\ninput\n"), Ttl: durationpb.New(7 * 24 * time.Hour),
				Labels: map[string]string{"a": `"1",2`, "b": "c="},
			}}},
		},
		{
			[]string{"-c", "shop", "k", "--json", "--from", file, "--request-id", "r"},
			&parleyv1.WriteRecordsRequest{ConversationId: "shop", RequestId: "r", Writes: []*parleyv1.RecordWrite{
				{Key: "k", Value: []byte(" [1]\n"), MediaType: "application/json"},
			}},
		},
	}
	f, address := serveRecords(t)
	for _, test := range tests {
		f.writes = nil
		stdout, stderr, code := runOnce(t.Context(), "\ninput\n",
			append([]string{"--address", address, "record", "put"}, test.args...)...)
		if stdout != "KEY  REVISION\nk    4\n" || code != 0 {
			t.Errorf("%v: standard output %q, standard error %q, exit code %d, want revision 4", test.args, stdout, stderr, code)
		}
		if diff := cmp.Diff([]*parleyv1.WriteRecordsRequest{test.want}, f.writes, protocmp.Transform()); diff != "" {
			t.Errorf("%v: requests (-want +got):\n%s", test.args, diff)
		}
	}
	s := openTerminal(t.Context(), t, "--address", address, "record", "put", "-c", "shop", "k")
	s.expect("parley: no value: write VALUE, set --from, or pass a value on standard input; see 'parley record put --help'\n")
	s.expectEnd(64)
}

// TestRecordsOnTerminals checks that a value and keys on a terminal have no control characters, and that output to a
// program has them.
func TestRecordsOnTerminals(t *testing.T) {
	_, address := serveRecords(t, "a\u202e", "b", "c")
	tests := []struct {
		args             []string
		terminal, script string
	}{
		{[]string{"get", "b"}, "b\uFFFD\n", "b\x1b"},
		{[]string{"list", "--keys"}, "a\uFFFD\nb\nc\n", "a\u202e\nb\nc\n"},
		{[]string{"list", "--keys", "--limit", "2"}, "a\uFFFD\nb\nthere are more; use --after=b to continue\n", "a\u202e\nb\n"},
	}
	for _, test := range tests {
		args := append([]string{"--address", address, "record", test.args[0], "--tenant-scope"}, test.args[1:]...)
		s := openTerminal(t.Context(), t, args...)
		s.expectEnd(0)
		if s.screen.String() != test.terminal {
			t.Errorf("%v: screen %q, want %q", test.args, s.screen.String(), test.terminal)
		}
		if stdout, stderr, code := runOnce(t.Context(), "", args...); stdout != test.script || code != 0 {
			t.Errorf("%v: standard output %q, standard error %q, exit code %d, want %q", test.args, stdout, stderr, code,
				test.script)
		}
	}
}

// TestRecordDeleteAsks checks that delete --prefix on a terminal needs the answer yes.
func TestRecordDeleteAsks(t *testing.T) {
	const question = `permanently delete all records whose keys begin with "k/" of conversation shop? [y/N] `
	tests := []struct {
		name    string
		args    []string
		answer  func(s *terminal)
		want    string
		code    int
		deleted []string
	}{
		{
			"yes",
			[]string{"--prefix", "k/"},
			func(s *terminal) { s.enter("y") }, question + "deleted 3 records\n", 0,
			[]string{"shop: k/1 k/2", "shop: k/3"},
		},
		{
			"no", []string{"--prefix", "k/"}, func(s *terminal) { s.enter("no") }, question + "parley: nothing was done\n", 1, nil,
		},
		{
			"all records",
			[]string{"--prefix", ""},
			func(s *terminal) { s.interrupt() },
			"permanently delete all records of conversation shop? [y/N] \nparley: interrupted\n", 1, nil,
		},
		{
			"--yes",
			[]string{"--prefix", "k/", "--yes"},
			nil, "deleted 3 records\n", 0,
			[]string{"shop: k/1 k/2", "shop: k/3"},
		},
		{"keys", []string{"k/1", "k/3"}, nil, "deleted k/1\ndeleted k/3\n", 0, []string{"shop: k/1 k/3"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f, address := serveRecords(t, "k/1", "k/2", "k/3")
			s := openTerminal(t.Context(), t,
				append([]string{"--address", address, "record", "delete", "-c", "shop"}, test.args...)...)
			if test.answer != nil {
				s.expect("[y/N] ")
				test.answer(s)
			}
			s.expectEnd(test.code)
			if s.screen.String() != test.want {
				t.Errorf("screen %q, want %q", s.screen.String(), test.want)
			}
			if diff := cmp.Diff(test.deleted, f.deletedKeys()); diff != "" {
				t.Errorf("deleted keys of each write (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRecordDeleteNeedsYes checks that delete --prefix without a terminal deletes nothing unless --yes is set.
func TestRecordDeleteNeedsYes(t *testing.T) {
	for _, prefix := range []string{"", "k/"} {
		f, address := serveRecords(t, "k/1")
		args := []string{"--address", address, "record", "delete", "--tenant-scope", "--prefix", prefix}
		stdout, stderr, code := runOnce(t.Context(), "y\n", args...)
		if stdout != "" || !strings.Contains(stderr, "set --yes") || code != exitUsage || len(f.deletedKeys()) > 0 {
			t.Errorf("%v: standard output %q, standard error %q, exit code %d, deleted %q, want that it needs --yes", args,
				stdout, stderr, code, f.deletedKeys())
		}
		if stdout, stderr, code := runOnce(t.Context(), "", append(args, "-y")...); code != 0 || len(f.deletedKeys()) != 1 {
			t.Errorf("%v -y: standard output %q, standard error %q, exit code %d, want 1 deleted", args, stdout, stderr, code)
		}
	}
}

// TestRecordDeleteFails checks that a delete that fails in the middle says how many records it has deleted.
func TestRecordDeleteFails(t *testing.T) {
	f, address := serveRecords(t, "k/1", "k/2", "k/3")
	f.fails = 2
	stdout, stderr, code := runOnce(t.Context(), "", "--address", address, "record", "delete", "-c", "shop", "--prefix", "k/", "--yes")
	const want = "deleted 2 records\nparley: no more (ResourceExhausted)\n"
	if stdout != "" || stderr != want || code != 1 {
		t.Errorf("standard output %q, standard error %q, exit code %d, want %q, 1", stdout, stderr, code, want)
	}
}

func TestRecordsWithFullOutput(t *testing.T) {
	_, address := serveRecords(t, "a", "b", "c")
	for _, args := range [][]string{
		{"get", "a"},
		{"get", "a", "--revision"},
		{"list"},
		{"list", "--keys"},
		{"list", "--output", "json"},
		{"delete", "--prefix", "", "--yes"},
		{"put", "k", "v"},
	} {
		var errs strings.Builder
		code := run(t.Context(), append([]string{"--address", address, "record", args[0], "--tenant-scope"}, args[1:]...),
			console{out: fullDisk{}, err: &errs, getenv: func(string) string { return "" }, now: noon})
		if errs.String() != "parley: no space left on device\n" || code != 1 {
			t.Errorf("%v: standard error %q, exit code %d; want 1", args, errs.String(), code)
		}
	}
}

func TestRecordWrites(t *testing.T) {
	file := filepath.Join(t.TempDir(), "value")
	if err := os.WriteFile(file, []byte("\x00\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := &app{}
	got, err := a.recordWrites(t.Context(), []string{"k=v=w", "l=", "m=@" + file, "n=@@v", "o=@@"})
	want := []*parleyv1.RecordWrite{
		{Key: "k", Value: []byte("v=w")},
		{Key: "l"},
		{Key: "m", Value: []byte("\x00\n")},
		{Key: "n", Value: []byte("@v")},
		{Key: "o", Value: []byte("@")},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" || err != nil {
		t.Errorf("recordWrites error %v (-want +got):\n%s", err, diff)
	}
	for _, bad := range []string{"", "k", "=v", "k=@-", "k=@" + file + ".missing"} {
		var usage usageError
		got, err := a.recordWrites(t.Context(), []string{"k=v", bad})
		if err == nil || got != nil || errors.As(err, &usage) == errors.Is(err, os.ErrNotExist) {
			t.Errorf("recordWrites(%q) = %v, %v, want a usage error or that the file does not exist", bad, got, err)
		}
	}
}
