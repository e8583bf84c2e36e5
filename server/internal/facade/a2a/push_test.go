package a2a

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/rpc/rpctest"
)

// notification is what a target has received.
type notification struct {
	header http.Header
	body   string
	event  a2a.Event
}

// target receives notifications and answers them with the status that answer returns.
type target struct {
	*httptest.Server

	received chan notification
}

func newTarget(t *testing.T, answer func(n int) int) *target {
	t.Helper()
	target := &target{received: make(chan notification, 100)}
	var mu sync.Mutex
	count := 0
	target.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var event a2a.StreamResponse
		if err = errors.Join(err, json.Unmarshal(body, &event)); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		w.WriteHeader(answer(count))
		count++
		target.received <- notification{r.Header, string(body), event.Event}
	}))
	t.Cleanup(target.Close)
	return target
}

func accept(int) int { return http.StatusNoContent }

// next returns the next notification.
func (r *target) next(t *testing.T) notification {
	t.Helper()
	select {
	case n := <-r.received:
		return n
	case <-time.After(rpctest.Timeout):
		t.Fatal("no notification")
		return notification{}
	}
}

// TestPushNotifications: a target gets the task when it waits for input and when it has ended, signed with the token.
func TestPushNotifications(t *testing.T) {
	t.Parallel()
	over(t, func(t *testing.T, f *fixture, c *a2aclient.Client) {
		t.Helper()
		to := newTarget(t, accept)
		f.puppet.scripts <- says(toolCallPiece("call", "{}"))
		result, err := c.SendMessage(t.Context(), &a2a.SendMessageRequest{
			Message: question("", "Find it"),
			Config: &a2a.SendMessageConfig{PushConfig: &a2a.PushConfig{
				ID: "mine", URL: to.URL, Token: "secret", Auth: &a2a.PushAuthInfo{Scheme: "Bearer", Credentials: "abc"},
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		id := result.TaskInfo().TaskID
		got := to.next(t)
		if task, ok := got.event.(*a2a.Task); !ok || task.ID != id || task.Status.State != a2a.TaskStateInputRequired {
			t.Errorf("first notification = %s, want the task that waits", got.body)
		}
		if got.header.Get("Authorization") != "Bearer abc" || got.header.Get("X-A2A-Notification-Token") != "secret" {
			t.Errorf("header = %v, want the credentials and the token", got.header)
		}
		mac := hmac.New(sha256.New, []byte("secret"))
		fmt.Fprintf(mac, "%s.%s.%s", got.header.Get("Webhook-Id"), got.header.Get("Webhook-Timestamp"), got.body)
		if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); got.header.Get("Webhook-Signature") != want {
			t.Errorf("signature = %s, want %s", got.header.Get("Webhook-Signature"), want)
		}

		f.puppet.scripts <- says(text("Found."))
		m := a2a.NewMessageForTask(a2a.MessageRoleUser, result.TaskInfo(), a2a.NewTextPart("here"))
		if _, err := c.SendMessage(t.Context(), &a2a.SendMessageRequest{Message: m}); err != nil {
			t.Fatal(err)
		}
		last := to.next(t)
		if task, ok := last.event.(*a2a.Task); !ok || task.ID != id || !slices.Equal(artifacts(task), []string{"Found."}) ||
			last.header.Get("Webhook-Id") == got.header.Get("Webhook-Id") {
			t.Errorf("second notification = %s, want the completed task", last.body)
		}
	})
}

// TestPushRetries: a notification that its target did not accept is sent again, with the same id, and one that the
// target refuses is not.
func TestPushRetries(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client(t, "puppet", a2a.TransportProtocolJSONRPC)
	send := func(url string) {
		f.puppet.scripts <- says(text("Done."))
		if _, err := c.SendMessage(t.Context(), &a2a.SendMessageRequest{
			Message: question("", "Go"), Config: &a2a.SendMessageConfig{PushConfig: &a2a.PushConfig{URL: url}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	busy := newTarget(t, func(n int) int { return []int{503, 429, 200}[min(n, 2)] })
	send(busy.URL)
	ids := make(map[string]bool)
	for range 3 {
		ids[busy.next(t).header.Get("Webhook-Id")] = true
	}
	if len(ids) != 1 {
		t.Errorf("attempts have the ids %v, want one", ids)
	}
	gone := newTarget(t, func(int) int { return http.StatusGone })
	send(gone.URL)
	gone.next(t)
	f.notifier.Close(t.Context())
	if len(gone.received)+len(busy.received) > 0 {
		t.Error("notifications were sent again after they were accepted or refused")
	}
}

// TestPushNames: configurations are accepted with the names of the protocol over each binding of HTTP.
func TestPushNames(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	to := newTarget(t, accept)
	config := func(id string) string { return fmt.Sprintf(`"id":%q,"url":%q,"token":"secret"`, id, to.URL) }
	message := func(id string) string {
		return fmt.Sprintf(`{"message":{"messageId":%q,"role":"ROLE_USER","parts":[{"text":"x"}]},`+
			`"configuration":{"taskPushNotificationConfig":{%s}}}`, id, config("a"))
	}
	call := func(method, params string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, params)
	}
	do := func(path, body string) {
		t.Helper()
		if code, _, reply := f.request(t, http.MethodPost, path, body, "A2A-Version: 1.0"); code != http.StatusOK ||
			strings.Contains(reply, `"error"`) {
			t.Fatalf("POST %s %s = %d %s", path, body, code, reply)
		}
		got := to.next(t)
		if got.header.Get("X-A2A-Notification-Token") != "secret" || got.event.TaskInfo().TaskID == "" {
			t.Errorf("notification of %s = %v, want one with the token", path, got)
		}
	}
	do("/a2a/echo", call("SendMessage", message("m1")))
	do("/a2a/echo/message:send", message("m2"))
	task := send(t, f.client(t, "echo", a2a.TransportProtocolJSONRPC), question("", "hello")).ID
	do("/a2a/echo", call("CreateTaskPushNotificationConfig", fmt.Sprintf(`{"taskId":%q,%s}`, task, config("b"))))
	do("/a2a/echo/tasks/"+string(task)+"/pushNotificationConfigs", "{"+config("c")+"}")
}

// TestPushesOfRepetitions: a message that is sent again has one configuration, and its receiver knows by the id that it
// has had the notification.
func TestPushesOfRepetitions(t *testing.T) {
	t.Parallel()
	over(t, func(t *testing.T, f *fixture, c *a2aclient.Client) {
		t.Helper()
		to := newTarget(t, accept)
		f.puppet.scripts <- says(text("Done."))
		request := &a2a.SendMessageRequest{
			Message: question("", "Go"), Config: &a2a.SendMessageConfig{PushConfig: &a2a.PushConfig{URL: to.URL}},
		}
		ids := make(map[string]bool)
		var task a2a.TaskID
		for range 2 {
			result, err := c.SendMessage(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			task = result.TaskInfo().TaskID
			ids[to.next(t).header.Get("Webhook-Id")] = true
		}
		all, err := c.ListTaskPushConfigs(t.Context(), &a2a.ListTaskPushConfigRequest{TaskID: task})
		if err != nil || len(all) != 1 || len(ids) != 1 {
			t.Errorf("%d configurations, %v, with the notifications %v, want one", len(all), err, ids)
		}
	})
}

// TestPushConfigs: configurations are created, read, listed and deleted; a deleted one gets no notification.
func TestPushConfigs(t *testing.T) {
	t.Parallel()
	over(t, func(t *testing.T, f *fixture, c *a2aclient.Client) {
		t.Helper()
		to, other := newTarget(t, accept), newTarget(t, accept)
		proceed := make(chan struct{})
		f.puppet.scripts <- func(context.Context, *parleyv1.RespondRequest, func(*parleyv1.RespondResponse) bool) error {
			<-proceed
			return nil
		}
		result, err := c.SendMessage(t.Context(), &a2a.SendMessageRequest{
			Message: question("", "Go"), Config: &a2a.SendMessageConfig{ReturnImmediately: true},
		})
		if err != nil {
			t.Fatal(err)
		}
		id := result.TaskInfo().TaskID
		for _, config := range []*a2a.PushConfig{{TaskID: id, ID: "a", URL: to.URL}, {TaskID: id, ID: "b", URL: other.URL}} {
			created, err := c.CreateTaskPushConfig(t.Context(), config)
			if err != nil || created.ID != config.ID {
				t.Fatalf("CreateTaskPushConfig = %v, %v", created, err)
			}
		}
		got, err := c.GetTaskPushConfig(t.Context(), &a2a.GetTaskPushConfigRequest{TaskID: id, ID: "a"})
		if err != nil || got.URL != to.URL {
			t.Errorf("GetTaskPushConfig = %v, %v, want a", got, err)
		}
		if err := c.DeleteTaskPushConfig(t.Context(), &a2a.DeleteTaskPushConfigRequest{TaskID: id, ID: "b"}); err != nil {
			t.Error(err)
		}
		all, err := c.ListTaskPushConfigs(t.Context(), &a2a.ListTaskPushConfigRequest{TaskID: id})
		if err != nil || len(all) != 1 {
			t.Errorf("ListTaskPushConfigs = %v, %v, want a", all, err)
		}
		_, err = c.GetTaskPushConfig(t.Context(), &a2a.GetTaskPushConfigRequest{TaskID: id, ID: "b"})
		if !errors.Is(err, a2a.ErrTaskNotFound) {
			t.Errorf("GetTaskPushConfig of b = %v, want ErrTaskNotFound", err)
		}
		close(proceed)
		to.next(t)
		f.notifier.Close(t.Context())
		if len(other.received) > 0 {
			t.Error("a deleted configuration got a notification")
		}
	})
}

// TestPushForm: configurations have the form of the protocol over HTTP, in a message, a request and the replies.
func TestPushForm(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const version = "A2A-Version: 1.0"
	to := newTarget(t, accept)
	_, _, body := f.request(t, http.MethodPost, "/a2a/echo/message:send", `{"message": {"messageId": "m", "role": `+
		`"ROLE_USER", "parts": [{"text": "hello"}]}, "configuration": {"taskPushNotificationConfig": `+
		`{"id": "a", "url": "`+to.URL+`"}}}`, version)
	task, ok := to.next(t).event.(*a2a.Task)
	if !ok {
		t.Fatalf("message:send = %s, want a notification with the task", body)
	}
	id := string(task.ID)
	at := "/a2a/echo/tasks/" + id + "/pushNotificationConfigs"
	_, _, body = f.request(t, http.MethodPost, at, `{"id": "b", "url": "`+to.URL+`"}`, version)
	want := func(config string) string {
		return `{"taskId":"` + id + `","id":"` + config + `","url":"` + to.URL + `"}`
	}
	if got := strings.TrimSpace(body); got != want("b") {
		t.Errorf("POST of a configuration = %s, want %s", got, want("b"))
	}
	_, _, body = f.request(t, http.MethodPost, "/a2a/echo", `{"jsonrpc": "2.0", "id": 1, "method": `+
		`"CreateTaskPushNotificationConfig", "params": {"taskId": "`+id+`", "id": "c", "url": "`+to.URL+`"}}`, version)
	if !strings.Contains(body, `"result":`+want("c")) {
		t.Errorf("CreateTaskPushNotificationConfig = %s, want %s", body, want("c"))
	}
	_, _, body = f.request(t, http.MethodGet, at, "", version)
	if all := `{"configs":[` + want("a") + "," + want("b") + "," + want("c") + "]}"; strings.TrimSpace(body) != all {
		t.Errorf("list of configurations = %s, want %s", body, all)
	}
	for _, config := range []string{"a", "b"} {
		code, _, body := f.request(t, http.MethodDelete, at+"/"+config, "", version)
		if code != http.StatusOK || body != "{}" {
			t.Errorf("DELETE of a configuration = %d %s, want an empty message", code, body)
		}
	}
	_, _, body = f.request(t, http.MethodPost, "/a2a/echo", `{"jsonrpc": "2.0", "id": "x", "method": `+
		`"DeleteTaskPushNotificationConfig", "params": {"taskId": "`+id+`", "id": "c"}}`, version)
	if want := `{"jsonrpc":"2.0","id":"x","result":{}}`; body != want {
		t.Errorf("DeleteTaskPushNotificationConfig = %s, want %s", body, want)
	}
	if _, _, body = f.request(t, http.MethodGet, at, "", version); strings.TrimSpace(body) != `{"configs":[]}` {
		t.Errorf("list without configurations = %s, want an empty list", body)
	}
}

// TestRefusedTargets: a target that is no address of the public internet, or no URL for notifications, is refused.
func TestRefusedTargets(t *testing.T) {
	t.Parallel()
	n := NewNotifier(t.Context(), NotifierOptions{})
	defer n.Close(t.Context())
	for url, want := range map[string]string{
		"https://client.example/notify": "", "https://8.8.8.8/": "", "https://[2606:4700::1]:8443/x": "",
		"": "url", "client.example": "url", "ftp://client.example": "https://", "http://client.example": "https://",
		"https://user@client.example": "user", "https://127.0.0.1/": "public", "https://[::1]/": "public",
		"https://10.1.2.3/": "public", "https://192.168.0.1/": "public", "https://169.254.169.254/": "public",
		"https://[fd00::1]/": "public", "https://[::ffff:127.0.0.1]/": "public", "https://0.0.0.0/": "public",
		"https://100.64.0.1/": "public", "https://[64:ff9b::7f00:1]/": "public",
		"https://[fec0::1]/": "public", "https://[::7f00:1]/": "public", "https://[::ffff:0:10.0.0.1]/": "public",
		"https://[5f00::1]/": "public", "https://[3fff::1]/": "public", "https://[fe80::1%25eth0]/": "public", "https://" + strings.Repeat("x", 3000): "url",
	} {
		err := n.check(&a2a.PushConfig{URL: url})
		if err == nil != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("check(%.60q) = %v, want %q", url, err, want)
		}
	}
	for _, c := range []a2a.PushConfig{
		{Token: "a\nb"},
		{Auth: &a2a.PushAuthInfo{Scheme: "a b"}},
		{Auth: &a2a.PushAuthInfo{Scheme: "Bearer", Credentials: "a\r\nb: c"}},
	} {
		if c.URL = "https://client.example"; n.check(&c) == nil {
			t.Errorf("check(%v) = nil, want an error", c)
		}
	}
	if isPublic(netip.Addr{}) {
		t.Error("no address is public")
	}
}

// TestPrivateNamesAreNotDialed: a name whose address is not public is refused when a notification is sent.
func TestPrivateNamesAreNotDialed(t *testing.T) {
	t.Parallel()
	to := newTarget(t, accept)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, strings.Replace(to.URL, "127.0.0.1", "localhost", 1),
		http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	n := NewNotifier(t.Context(), NotifierOptions{})
	defer n.Close(t.Context())
	if reply, err := n.client.Do(r); !errors.Is(err, errPrivate) {
		if err == nil {
			_ = reply.Body.Close()
		}
		t.Errorf("POST to localhost = %v, want errPrivate", err)
	}
}

// TestPushLimits: a task has at most maxPushConfigs configurations, and a message with one is refused, and not stored,
// while the server follows as many turns as it may.
func TestPushLimits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client(t, "echo", a2a.TransportProtocolJSONRPC)
	task := send(t, c, question("", "hello"))
	to := newTarget(t, accept)
	for i := range maxPushConfigs + 1 {
		_, err := c.CreateTaskPushConfig(t.Context(), &a2a.PushConfig{
			TaskID: task.ID, ID: fmt.Sprint(i), URL: to.URL,
		})
		if (err != nil) != (i == maxPushConfigs) {
			t.Errorf("configuration %d: %v, want an error for number %d only", i, err, maxPushConfigs)
		}
	}
	f.notifier.running.Wait()
	if _, ok := f.notifier.reserve(auth.DefaultTenant, maxTenantNotifications); !ok {
		t.Fatal("notifications are reserved after all turns have ended")
	}
	_, err := c.SendMessage(t.Context(), &a2a.SendMessageRequest{
		Message: question("other", "hello"), Config: &a2a.SendMessageConfig{PushConfig: &a2a.PushConfig{URL: to.URL}},
	})
	if !errors.Is(err, a2a.ErrServerError) || !strings.Contains(err.Error(), "limit") {
		t.Errorf("SendMessage at the limit = %v, want ErrServerError", err)
	}
	if _, err := f.api.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: "other"}); err == nil {
		t.Error("a refused message was stored")
	}
}

// TestPushLimitOfManyTenants: a tenant that has no notifications may have one as long as a place is free, and none after
// that.
func TestPushLimitOfManyTenants(t *testing.T) {
	t.Parallel()
	r := reservations{tenants: make(map[string]int)}
	tenants := 0
	for ; r.used < maxNotifications && tenants < 2*maxNotifications; tenants++ {
		tenant := fmt.Sprint(tenants)
		free := maxNotifications - r.used
		for r.add(tenant, 1) {
		}
		if r.tenants[tenant] == 0 {
			t.Fatalf("tenant %d has no notification while %d places are free", tenants, free)
		}
	}
	if r.used != maxNotifications || r.add("late", 1) {
		t.Errorf("%d tenants have %d notifications, want %d, and none for another tenant", tenants, r.used, maxNotifications)
	}
	r.add("0", -1)
	if r.add("late", 2) || !r.add("late", 1) {
		t.Errorf("another tenant has %d notifications, want 1 as one place is free", r.tenants["late"])
	}
}

// anyTenant accepts each caller for two tenants.
type anyTenant struct{}

// Verify returns the caller.
func (anyTenant) Verify(context.Context, auth.Credentials) (auth.Identity, error) {
	return auth.Identity{Name: "someone", Tenants: []string{"acme", "globex"}, Role: auth.Writer}, nil
}

// TestPushLimitOfTenants: a tenant that uses all notifications that it may leaves some for others.
func TestPushLimitOfTenants(t *testing.T) {
	t.Parallel()
	f := newFixtureWith(t, auth.New(time.Now, anyTenant{}))
	used := 0
	for ; ; used++ {
		if _, ok := f.notifier.reserve("acme", 1); !ok {
			break
		}
	}
	if used != maxTenantNotifications {
		t.Errorf("a tenant has %d notifications, want %d", used, maxTenantNotifications)
	}
	to := newTarget(t, accept)
	for tenant, want := range map[string]string{"acme": "the tenant's limit", "globex": "TASK_STATE_COMPLETED"} {
		_, _, body := f.request(t, http.MethodPost, "/a2a/echo/message:send", `{"message": {"messageId": "m", "role": `+
			`"ROLE_USER", "parts": [{"text": "hello"}]}, "configuration": {"taskPushNotificationConfig": `+
			`{"url": "`+to.URL+`"}}}`, "A2A-Version: 1.0", "Authorization: Bearer x", "Parley-Tenant: "+tenant)
		if !strings.Contains(body, want) {
			t.Errorf("message:send of %s = %s, want %s", tenant, body, want)
		}
	}
	to.next(t)
}
