package redisstore

import (
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// publishedText is what the script of a commit of a server publishes, see tell in lib.lua.
func publishedText(t *testing.T, number int64, server, id string) string {
	t.Helper()
	return publishedIn(t, numbered{number, "epoch"}, server, id)
}

func publishedIn(t *testing.T, at numbered, server, id string) (text string) {
	t.Helper()
	changes, err := proto.Marshal(&storev1.Changes{Changes: []*storev1.Change{{
		Kind: parleyv1.ChangeKind_CHANGE_KIND_CREATED, ConversationId: id, Version: 1,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		strconv.FormatInt(at.number, 10), at.epoch, server, tenantPart("acme"), stamp(time.Now()), "0", string(changes),
	} {
		text += strconv.Itoa(len(part)) + ":" + part
	}
	return text
}

// TestAwait waits for the changes of a commit whose number is not known. They are told before the wait ends, or a GAP
// is if they do not come.
func TestAwait(t *testing.T) {
	seen := new(watcher)
	l := newTeller(seen.observe, 1)
	defer l.close()
	l.setLast(0, numbered{4, "epoch"})
	l.await(0, 4) // They were told before the store was opened.
	begun := make(chan struct{})
	go func() {
		close(begun)
		l.hear(0, publishedText(t, 5, "own", "a"), "own")
	}()
	<-begun
	l.await(0, 5)
	seen.want(t, "a commit", "CREATED a 1")
	l.await(0, 6)
	if got := seen.take(); len(got) != 1 || got[0] != "GAP  0" {
		t.Errorf("changes of a commit that was not heard of = %q, want a GAP", got)
	}
	l.hear(0, publishedText(t, 7, "own", "b"), "own")
	seen.want(t, "the next commit", "CREATED b 1")
	go l.close()
	l.await(0, 9)
}
