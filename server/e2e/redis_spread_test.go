package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// TestRedisSpread: the conversations of a tenant that is spread over four buckets survive a restart. A server with
// another spread, or with a capacity that is too small for it, ends with one line that says what to do.
func TestRedisSpread(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t, redistest.Password("correct-horse"))
	dataDir, flags := t.TempDir(), redisFlags(t, engine)
	spread := append(slices.Clone(flags), "--redis-spread=4", "--max-conversations=4000")
	s := startServer(t, dataDir, spread...)
	if answer := ask(t, s, "chat", "hello"); answer != "hello" {
		t.Errorf("answer = %q, want hello", answer)
	}
	add(t, s, "append", &parleyv1.Message{Content: "one"}, &parleyv1.Message{Content: "two"})
	if _, err := parleyv1.NewRecordServiceClient(s.conn).WriteRecords(t.Context(), &parleyv1.WriteRecordsRequest{
		ConversationId: "append", Writes: []*parleyv1.RecordWrite{
			{Key: "city", Value: []byte("Lisbon")}, {Key: "of the tenant", Value: []byte("1"), TenantScope: true},
		},
	}); err != nil {
		t.Error(err)
	}
	var want []string
	for i := range 20 {
		id := fmt.Sprint("c", i)
		add(t, s, id, &parleyv1.Message{Content: "hello"})
		want = append([]string{id}, want...)
	}
	buckets, err := engine.Do("KEYS", "parley:{*}ix:*")
	if n := len(strings.Fields(buckets)); err != nil || n != 4 {
		t.Errorf("the conversations are in %d buckets, %v, want 4", n, err)
	}
	s.terminate()
	s.wantStop(t)

	for _, test := range []struct {
		flags []string
		code  int
		want  string
	}{
		{nil, exitIO, "has a spread of 4, which cannot be changed to 1: set 4"},
		{[]string{"--redis-spread=8", "--max-conversations=0"}, exitIO, "which cannot be changed to 8: set 4"},
		{
			[]string{"--redis-spread=3", "--max-conversations=0", "--redis-prefix=new"},
			exitIO,
			"3 buckets a tenant do not divide the 64 buckets evenly: choose a divisor of 64",
		},
		{[]string{"--redis-spread=17"}, exitUsage, "--redis-spread: 17 is too large; the maximum is 16"},
		{[]string{"--redis-spread=4"}, exitUsage, "--max-conversations: 1000 is too small for a spread of 4; use at least"},
	} {
		code, output := failToStart(t, append(append([]string{"--data-dir=" + t.TempDir()}, flags...), test.flags...)...)
		if code != test.code || !strings.Contains(output, test.want) || test.code != exitUsage &&
			strings.Count(output, "\n") != 1 {
			t.Errorf("server with %v ended with %d, want %d and %q:\n%s", test.flags, code, test.code, test.want, output)
		}
	}

	s = startServer(t, dataDir, spread...)
	wantRedisData(t, s)
	list, err := s.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{PageSize: 20})
	var got []string
	for _, c := range list.GetConversations() {
		got = append(got, c.GetConversation().GetId())
	}
	if err != nil || !slices.Equal(got, want) || list.GetTotalSize() != 22 {
		t.Errorf("ListConversations = %v of %d, %v, want %v of 22", got, list.GetTotalSize(), err, want)
	}
}
