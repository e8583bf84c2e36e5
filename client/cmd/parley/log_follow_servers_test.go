package main

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestFollowServersThatDoNotAnswer checks that entries of a server that did not answer are printed when it answers, also
// if they are older than many known ones.
func TestFollowServersThatDoNotAnswer(t *testing.T) {
	f, address := serveLog(t)
	f.append("a", 1, 0, "first")
	s := openTerminal(t.Context(), t, "--address", address, "log", "recent", "--follow")
	f.changes <- heartbeat()
	s.expect("first")
	f.mu.Lock()
	f.unreachable = []string{"10.0.0.3:50051"}
	f.mu.Unlock()
	f.append("away", 1, 1, "from away")
	want := []string{"first"}
	for i := range 2 * followPage {
		want = append(want, fmt.Sprintf("number %03d", i))
		f.append("a", 2+i, 2+float64(i)/10, want[i+1])
	}
	f.changes <- heartbeat()
	s.expect("entries of servers that did not answer are missing: 10.0.0.3:50051")
	f.changes <- f.append("a", 1000, 61, "without it")
	s.expect("without it")
	f.mu.Lock()
	f.unreachable = nil
	f.mu.Unlock()
	f.changes <- heartbeat()
	s.expect("from away")
	s.interrupt()
	s.expectEnd(0)
	if diff := cmp.Diff(append(want, "without it", "from away"), s.contents()); diff != "" {
		t.Errorf("entries on the screen (-want +got):\n%s", diff)
	}
}

// TestFollowSpan checks that a poll begins at the last poll that all servers have answered, but at most maxOutage
// earlier.
func TestFollowSpan(t *testing.T) {
	server, address := serveLog(t)
	c, err := client.Dial(address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	now := noon()
	f := &logFollower{
		app: &app{console: console{now: func() time.Time { return now }, err: io.Discard}}, client: c, lastPoll: now,
		request: &parleyv1.ListInteractionsRequest{}, seen: map[entryKey]time.Time{},
	}
	for _, test := range []struct {
		unreachable []string
		after, want time.Duration
	}{
		{nil, time.Minute, time.Minute},
		{[]string{"10.0.0.3:50051"}, time.Minute, time.Minute},
		{[]string{"10.0.0.3:50051"}, time.Minute, 2 * time.Minute},
		{nil, time.Minute, 3 * time.Minute},
		{[]string{"10.0.0.3:50051"}, maxOutage + 1, maxOutage + 1},
		{nil, time.Minute, time.Minute},
	} {
		now, server.unreachable = now.Add(test.after), test.unreachable
		if err := f.poll(t.Context(), func(*parleyv1.Interaction) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if server.within != test.want+overlap {
			t.Errorf("span of a poll = %v, want %v", server.within, test.want+overlap)
		}
	}
}
