package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// startLoggedServers starts servers with their conversations in one engine. Each has a log of its own.
func startLoggedServers(t *testing.T, engine *redistest.Server, n int, flags ...string) []*loggedServer {
	t.Helper()
	servers := make([]*loggedServer, n)
	for i := range servers {
		servers[i] = startLoggedAt(t, engine, t.TempDir(), freeAddress(t), flags...)
	}
	return servers
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func startLoggedAt(t *testing.T, engine *redistest.Server, dir, address string, flags ...string) *loggedServer {
	t.Helper()
	return startLogged(t, dir, append([]string{
		"--store=redis", "--redis-url=" + engine.URL(), "--grpc-address=" + address, "--advertise-address=" + address,
	}, flags...)...)
}

// address returns the address at which other servers call this one.
func (l *loggedServer) address() string { return l.conn.Target() }

// say appends a message to a conversation.
func (l *loggedServer) say(t *testing.T, id, content string) {
	t.Helper()
	_, err := l.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
		ConversationId: id, Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: content}},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// logQuery is a list or a search, with the entries that are expected.
type logQuery struct {
	list   *parleyv1.ListInteractionsRequest
	search *parleyv1.SearchInteractionsRequest
	want   []string
	// skipped is the number of unreadable entries.
	skipped int
}

// logPage is a page of a list or a search.
type logPage interface {
	GetInteractions() []*parleyv1.Interaction
	GetNextPageToken() string
	GetSkippedCount() int32
	GetUnreachable() []string
}

// page returns a page of the query.
func (q *logQuery) page(t *testing.T, l *loggedServer, size int, token string) logPage {
	t.Helper()
	var page logPage
	var err error
	if q.list != nil {
		r := proto.CloneOf(q.list)
		r.PageSize, r.PageToken = int32(size), token
		page, err = l.ListInteractions(timeLimited(t), r)
	} else {
		r := proto.CloneOf(q.search)
		r.PageSize, r.PageToken = int32(size), token
		page, err = l.SearchInteractions(timeLimited(t), r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// check checks the pages of the query, each at the next server.
func (q *logQuery) check(t *testing.T, size int, servers ...*loggedServer) {
	t.Helper()
	var got []string
	skipped, token := 0, ""
	for n := 0; n == 0 || token != ""; n++ {
		page := q.page(t, servers[n%len(servers)], size, token)
		if found, left := len(page.GetInteractions()), len(q.want)-len(got); size > 0 && found != min(size, left) {
			t.Errorf("page of %v with page size %d has %d entries of %d", q, size, found, left)
		}
		if len(page.GetUnreachable()) > 0 {
			t.Errorf("unreachable servers = %v, want none", page.GetUnreachable())
		}
		got, skipped = append(got, formatInteractions(page.GetInteractions())...), skipped+int(page.GetSkippedCount())
		token = page.GetNextPageToken()
	}
	wantEntries(t, fmt.Sprintf("pages of %d of %v", size, q), got, q.want...)
	if skipped != q.skipped {
		t.Errorf("skipped entries of %v with page size %d = %d, want %d", q, size, skipped, q.skipped)
	}
}

// TestServersListInteractions: lists and searches at any server return the entries of all servers in order, in pages of
// any size, even if each page comes from another server.
func TestServersListInteractions(t *testing.T) {
	t.Parallel()
	servers := startLoggedServers(t, redistest.Start(t), 3)
	var all, shared, old []string
	for n := range 12 {
		// The second server has its entries first, so that it ends before the others do.
		l := servers[[]int{1, 1, 1, 0, 2, 0, 2, 2, 2, 0, 0, 2}[n]]
		l.say(t, "shared", fmt.Sprint("goal ", n))
		l.say(t, fmt.Sprint("own-", n), "else")
		shared = append(shared, fmt.Sprintf("shared %d User: goal %d", n+1, n))
		all = append(all, shared[n], fmt.Sprintf("own-%d 1 User: else", n))
	}
	day := dayBefore(t, today(), 2)
	files := make([][]string, len(servers))
	for n := range 9 {
		text := strings.Replace(handwrittenEntry(day, "old", n, "long ago"), "T12:00:00Z", fmt.Sprintf("T12:00:0%dZ", n), 1)
		files[n*n%3] = append(files[n*n%3], text, "broken\n")
		old = append(old, fmt.Sprintf("old %d User: long ago", n))
	}
	for n, lines := range files {
		servers[n].writeDay(t, day, lines...)
	}
	reversed := func(entries []string) []string {
		entries = slices.Clone(entries)
		slices.Reverse(entries)
		return entries
	}
	within := &parleyv1.ListInteractionsRequest_Within{Within: durationpb.New(time.Hour)}
	for _, q := range []*logQuery{
		{list: &parleyv1.ListInteractionsRequest{}, want: reversed(all)},
		{list: &parleyv1.ListInteractionsRequest{Span: within, ConversationId: "shared"}, want: reversed(shared)},
		{list: &parleyv1.ListInteractionsRequest{ConversationId: "shared"}, want: shared, skipped: 9},
		{list: &parleyv1.ListInteractionsRequest{Span: &parleyv1.ListInteractionsRequest_Date{Date: day}}, want: old, skipped: 9},
		{search: &parleyv1.SearchInteractionsRequest{Query: "GOAL"}, want: reversed(shared), skipped: 9},
		{search: &parleyv1.SearchInteractionsRequest{Query: "goal", ConversationId: "own-1"}, skipped: 9},
	} {
		for _, size := range []int{0, 1, 2, 5} {
			q.check(t, size, servers...)
			q.check(t, size, servers[size%3])
		}
	}
	token := (&logQuery{list: &parleyv1.ListInteractionsRequest{}}).page(t, servers[0], 1, "").GetNextPageToken()
	for _, r := range []*parleyv1.ListInteractionsRequest{
		{ConversationId: "shared", PageToken: token}, {PageToken: "x" + token},
	} {
		_, err := servers[1].ListInteractions(t.Context(), r)
		wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST")
	}
}

// erase erases the conversation c.
func (l *loggedServer) erase(t *testing.T) (int64, error) {
	t.Helper()
	reply, err := l.DeleteInteractions(timeLimited(t), &parleyv1.DeleteInteractionsRequest{ConversationId: "c"})
	return reply.GetDeletedCount(), err
}

// TestServersEraseInteractions: an erasure at one server erases the entries at all servers.
func TestServersEraseInteractions(t *testing.T) {
	t.Parallel()
	servers := startLoggedServers(t, redistest.Start(t), 3)
	for n, l := range servers {
		for range n + 1 {
			l.say(t, "c", "secret")
		}
		l.say(t, "kept", "other")
	}
	for _, want := range []int64{6, 0} {
		if n, err := servers[1].erase(t); n != want || err != nil {
			t.Errorf("DeleteInteractions = %d, %v, want %d", n, err, want)
		}
	}
	for _, l := range servers {
		if text := l.text(t); strings.Contains(text, "secret") || strings.Count(text, "other") != 1 {
			t.Errorf("log of a server after the erasure:\n%s", text)
		}
	}
}

// wantUnreachable checks that a list has entries, and names a server.
func (l *loggedServer) wantUnreachable(t *testing.T, server *loggedServer, want ...string) {
	t.Helper()
	page, err := l.ListInteractions(timeLimited(t), &parleyv1.ListInteractionsRequest{ConversationId: "c"})
	if err != nil || !slices.Equal(page.GetUnreachable(), []string{server.address()}) {
		t.Errorf("unreachable servers = %v, %v, want %s", page.GetUnreachable(), err, server.address())
	}
	wantEntries(t, "list without a server", formatInteractions(page.GetInteractions()), want...)
}

// awaitReached waits until a server lists the entries of all others again. After a failure it waits for up to 1 s before
// it connects again.
func (l *loggedServer) awaitReached(t *testing.T) {
	t.Helper()
	for late := time.Now().Add(timeout); time.Now().Before(late); {
		page, err := l.ListInteractions(timeLimited(t), &parleyv1.ListInteractionsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if len(page.GetUnreachable()) == 0 {
			return
		}
	}
	t.Fatalf("after %v, %s does not reach all servers", timeout, l.address())
}

// wantIncomplete checks that an erasure fails, and that the error names a server and what was erased.
func (l *loggedServer) wantIncomplete(t *testing.T, server *loggedServer, erased int) {
	t.Helper()
	_, err := l.erase(t)
	if named := wantError(t, err, codes.Unavailable, "SERVER_UNREACHABLE")["servers"]; named != server.address() {
		t.Errorf("servers of the error = %q, want %s", named, server.address())
	}
	for _, want := range []string{server.address(), fmt.Sprintf("erased (%d)", erased), "repeat"} {
		if text := status.Convert(err).Message(); !strings.Contains(text, want) {
			t.Errorf("error = %q, want %q in it", text, want)
		}
	}
}

// TestServersInteractionsOfPaused: a server that is paused is named, and an erasure fails until it answers. Its entries
// begin on the first page after it answers again.
func TestServersInteractionsOfPaused(t *testing.T) {
	t.Parallel()
	servers := startLoggedServers(t, redistest.Start(t), 3)
	a, b, paused := servers[0], servers[1], servers[2]
	for _, l := range []*loggedServer{a, paused, b, a, paused, b} {
		l.say(t, "c", "text")
	}
	entries := func(sequences ...int) (want []string) {
		for _, n := range sequences {
			want = append(want, fmt.Sprintf("c %d User: text", n))
		}
		return want
	}
	signal := func(s syscall.Signal) {
		t.Helper()
		if err := paused.process.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	list := &logQuery{list: &parleyv1.ListInteractionsRequest{ConversationId: "c"}}
	signal(syscall.SIGSTOP)
	start := time.Now()
	a.wantUnreachable(t, paused, entries(1, 3, 4, 6)...)
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("a list without a server that is paused took %v, want about 2 s", took)
	}
	first := list.page(t, b, 2, "")
	signal(syscall.SIGCONT)
	a.awaitReached(t)
	wantEntries(t, "first page", formatInteractions(first.GetInteractions()), entries(1, 3)...)
	rest := list.page(t, a, 0, first.GetNextPageToken())
	wantEntries(t, "page after the pause", formatInteractions(rest.GetInteractions()), entries(2, 4, 5, 6)...)
	if len(first.GetUnreachable()) != 1 || len(rest.GetUnreachable()) != 0 {
		t.Errorf("unreachable servers = %v, then %v, want one, then none", first.GetUnreachable(), rest.GetUnreachable())
	}
	signal(syscall.SIGSTOP)
	a.wantIncomplete(t, paused, 4)
	b.wantUnreachable(t, paused)
	signal(syscall.SIGCONT)
	a.awaitReached(t)
	b.awaitReached(t)
	list.want = entries(2, 5)
	list.check(t, 1, servers...)
	if n, err := b.erase(t); n != 2 || err != nil {
		t.Errorf("DeleteInteractions after the pause = %d, %v, want 2", n, err)
	}
}

// TestServersInteractionsOfKilled: a server that was killed is named while it has a lease, and its entries are listed
// and erased when it runs again.
func TestServersInteractionsOfKilled(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	dir, address := t.TempDir(), freeAddress(t)
	killed := startLoggedAt(t, engine, dir, address)
	a := startLoggedServers(t, engine, 1)[0]
	for _, l := range []*loggedServer{killed, a, killed, a} {
		l.say(t, "c", "text")
	}
	list := &logQuery{list: &parleyv1.ListInteractionsRequest{ConversationId: "c"}}
	token := list.page(t, a, 1, "").GetNextPageToken()
	killed.kill()
	a.wantUnreachable(t, killed, "c 2 User: text", "c 4 User: text")
	a.wantIncomplete(t, killed, 2)
	again := startLoggedAt(t, engine, dir, address)
	// The page token has the place of the server, which is the same after its start.
	rest := list.page(t, again, 0, token)
	wantEntries(t, "page after a start", formatInteractions(rest.GetInteractions()), "c 3 User: text")
	a.awaitReached(t)
	n, err := a.erase(t)
	if n != 2 || err != nil {
		t.Errorf("DeleteInteractions when the server runs again = %d, %v, want 2", n, err)
	}
	if text, err := os.ReadFile(again.path(today())); err == nil && strings.Contains(string(text), `"c"`) {
		t.Errorf("log after the erasure = %s", text)
	}
}

// TestServersInteractionsOff: a server without a log counts as one with an empty log, unless none has a log.
func TestServersInteractionsOff(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	off := startLoggedServers(t, engine, 2, "--interaction-log=false")
	for _, l := range off {
		_, err := l.ListInteractions(t.Context(), &parleyv1.ListInteractionsRequest{})
		wantError(t, err, codes.FailedPrecondition, "INTERACTION_LOG_OFF")
		_, err = l.erase(t)
		wantError(t, err, codes.FailedPrecondition, "INTERACTION_LOG_OFF")
	}
	on := startLoggedServers(t, engine, 1)[0]
	for _, l := range []*loggedServer{off[0], on, on} {
		l.say(t, "c", "text")
	}
	list := &logQuery{
		list: &parleyv1.ListInteractionsRequest{ConversationId: "c"}, want: []string{"c 2 User: text", "c 3 User: text"},
	}
	list.check(t, 1, off[0], on, off[1])
	if n, err := off[0].erase(t); n != 2 || err != nil {
		t.Errorf("DeleteInteractions = %d, %v, want 2", n, err)
	}
}

// TestServersIsolateInteractions: servers pass on the credential of the caller, so that a tenant has its own entries
// only, and only an admin erases.
func TestServersIsolateInteractions(t *testing.T) {
	t.Parallel()
	files := newSignIn(t)
	tokens := map[string]string{}
	for _, tenant := range []string{"acme", "globex"} {
		for _, role := range []string{"reader", "writer", "admin"} {
			tokens[tenant+role] = files.createToken(t, "--tenant="+tenant, "--role="+role)
		}
	}
	servers := startServersWith(t, redistest.Start(t), 2, agents(t, testAgents), append(files.ServerFlags(),
		"--peer-ca-file="+files.CAFile)...)
	conns := make([]*grpc.ClientConn, len(servers))
	for n, s := range servers {
		var err error
		security := grpc.WithTransportCredentials(credentials.NewTLS(files.clientTLS(t, false)))
		if conns[n], err = grpc.NewClient(s.conn.Target(), security); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conns[n].Close() })
	}
	as := func(tenant, role string) context.Context {
		return metadata.AppendToOutgoingContext(timeLimited(t), "authorization", "Bearer "+tokens[tenant+role])
	}
	for _, tenant := range []string{"acme", "globex"} {
		writer := as(tenant, "writer")
		for _, conn := range conns {
			_, err := parleyv1.NewConversationServiceClient(conn).AppendMessages(writer, &parleyv1.AppendMessagesRequest{
				ConversationId: "c", Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: tenant}},
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	client := parleyv1.NewInteractionLogServiceClient(conns[0])
	wantList := func(tenant string, want ...string) {
		t.Helper()
		page, err := client.ListInteractions(as(tenant, "reader"), &parleyv1.ListInteractionsRequest{ConversationId: "c"})
		if err != nil {
			t.Fatal(err)
		}
		wantEntries(t, "list of "+tenant, formatInteractions(page.GetInteractions()), want...)
	}
	globex := []string{"c 1 User: globex", "c 2 User: globex"}
	wantList("acme", "c 1 User: acme", "c 2 User: acme")
	wantList("globex", globex...)
	_, err := client.DeleteInteractions(as("acme", "writer"), &parleyv1.DeleteInteractionsRequest{ConversationId: "c"})
	wantError(t, err, codes.PermissionDenied, "PERMISSION_DENIED")
	reply, err := client.DeleteInteractions(as("acme", "admin"), &parleyv1.DeleteInteractionsRequest{ConversationId: "c"})
	if err != nil || reply.GetDeletedCount() != 2 {
		t.Errorf("DeleteInteractions of an admin = %v, %v, want 2", reply, err)
	}
	wantList("acme")
	wantList("globex", globex...)
}
