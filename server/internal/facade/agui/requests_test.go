package agui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/gateway"
)

// TestBadRequests checks that each fault gets an error in the form of AG-UI that names the field, and that nothing is
// stored.
func TestBadRequests(t *testing.T) {
	f := newFixture(t, nil)
	message := func(fields string) string { return `{"threadId":"t","runId":"r","messages":[{` + fields + `}]}` }
	for body, want := range map[string]string{
		"":                                     "body: is not a JSON object",
		"[]":                                   "body: is not a JSON object",
		`{"threadId":"t"`:                      "body: is not a JSON object",
		"{\"threadId\":\"\xff\"}":              "body: is not UTF-8",
		`{}`:                                   "messages: is required; runId: is required; threadId: is required",
		runInput("t", "r"):                     "messages: is empty",
		runInput(" t", "r", user("u", "hi")):   "threadId: must have",
		runInput("t", "a\nb", user("u", "hi")): "runId: must have",
		runInput("t", "r", user("u", "")):      "messages[0].content: is required",
		runInput("t", "r", "1"):                "messages[0]: must be an object",
		message(`"id":"u","role":"usr","content":"x"`):                                                    "messages[0].role: must be",
		message(`"id":1,"role":"user","content":"x"`):                                                     "messages[0].id: must be a text",
		message(`"id":"","role":"user","content":"x"`):                                                    "messages[0].id: must not be empty",
		message(`"id":"` + strings.Repeat("x", 1025) + `","role":"user","content":"x"`):                   "messages[0].id: is longer",
		message(`"id":"u","role":"user","content":{}`):                                                    "messages[0].content: must be a text",
		message(`"id":"u","role":"user","content":[{"type":"tetx"}]`):                                     "messages[0].content[0].type: must be",
		message(`"id":"u","role":"user","content":[{"type":"image"}]`):                                    "messages[0].content[0].source: must be",
		message(`"id":"u","role":"user","content":[{"type":"image","source":{"type":"url","value":""}}]`): "messages[0].content[0].source.value",
		message(`"id":"u","role":"assistant","content":"x"`):                                              "messages[0].role: must be user or tool",
		message(`"id":"u","role":"tool","content":"x"`):                                                   "messages[0].toolCallId: is required",
		message(`"id":"u","role":"assistant","toolCalls":[{"id":"c"}]`):                                   "messages[0].toolCalls[0].function",
		runInput("t", "r", `{"id":"a","role":"system","content":"x","metadata":[]}`, user("u", "x")):      "messages[0].metadata",
		runInput("t", "r", `{"id":"a","role":"assistant","toolCalls":[{"id":"","function":{"name":"n","arguments":""}}]}`,
			user("u", "x")): "messages[0].toolCalls[0].id",
		runInput("t", "r", user("u", "x"))[:20] + `,"tools":{}}`:                                    "body",
		strings.Replace(runInput("t", "r", user("u", "x")), `"state":{}`, `"state":{"a":1e999}`, 1): "state: has a number",
		strings.Replace(runInput("t", "r", user("u", "x")), `"state":{}`,
			`"state":`+strings.Repeat("[", 40)+"1"+strings.Repeat("]", 40), 1): "state",
	} {
		r := f.open(t, http.MethodPost, PathPrefix+"echo", body)
		if got := failed(t, r, http.StatusBadRequest, "INVALID_REQUEST"); !strings.Contains(got, want) {
			t.Errorf("%.90s: %s\nwant %q", body, got, want)
		}
	}
	for _, other := range []struct {
		method, path, header string
		status               int
		code                 string
	}{
		{http.MethodPost, "nobody", "", http.StatusBadRequest, "UNKNOWN_AGENT"},
		{http.MethodPost, "", "", http.StatusNotFound, "PATH_NOT_FOUND"},
		{http.MethodPost, "a/b", "", http.StatusNotFound, "PATH_NOT_FOUND"},
		{http.MethodPut, "echo", "", http.StatusMethodNotAllowed, "METHOD_NOT_ALLOWED"},
		{http.MethodPost, "echo?onDisconnect=never", "", http.StatusBadRequest, "INVALID_REQUEST"},
		{http.MethodPost, "echo?onDisconect=cancel", "", http.StatusBadRequest, "INVALID_REQUEST"},
		{http.MethodPost, "echo", "Last-Event-ID: 7", http.StatusBadRequest, "INVALID_REQUEST"},
		{http.MethodPost, "echo", "Last-Event-ID: x/7/0/0/0/-", http.StatusNotFound, ""},
		{http.MethodGet, "echo", "", http.StatusBadRequest, "INVALID_REQUEST"},
		{http.MethodGet, "echo?threadId=t&threadId=t", "", http.StatusBadRequest, "INVALID_REQUEST"},
		{http.MethodGet, "echo?threadId=t&runId=r", "", http.StatusNotFound, "TURN_NOT_FOUND"},
		{http.MethodDelete, "echo?threadId=t", "", http.StatusNotFound, "TURN_NOT_FOUND"},
		{http.MethodDelete, "echo", "", http.StatusBadRequest, "INVALID_REQUEST"},
	} {
		header := []string{}
		if other.header != "" {
			header = append(header, other.header)
		}
		r := f.open(t, other.method, PathPrefix+other.path, runInput("t", "r", user("u", "x")), header...)
		if other.code == "" {
			if r.StatusCode != other.status {
				t.Errorf("%s %s %s = %s, want %d", other.method, other.path, other.header, r.Status, other.status)
			}
			continue
		}
		failed(t, r, other.status, other.code)
	}
	f.wantNothing(t)
}

// TestLargeRequests checks that a body and a message that are too large are refused.
func TestLargeRequests(t *testing.T) {
	f := newFixture(t, nil)
	for size, code := range map[int]string{5 << 20: "BODY_TOO_LARGE", 1 << 20: "MESSAGE_TOO_LARGE"} {
		for _, earlier := range [][]string{nil, {user("e", "x")}} {
			messages := append(slices.Clone(earlier), user("u", strings.Repeat("x", size)))
			r := f.open(t, http.MethodPost, PathPrefix+"echo", runInput("t", "r", messages...))
			failed(t, r, http.StatusRequestEntityTooLarge, code)
		}
	}
	f.wantNothing(t)
}

// wantNothing fails the test if a conversation exists.
func (f *fixture) wantNothing(tb testing.TB) {
	tb.Helper()
	list, err := f.api.ListConversations(tb.Context(), &parleyv1.ListConversationsRequest{})
	if err != nil || len(list.GetConversations()) > 0 {
		tb.Errorf("ListConversations = %v, %v; want none", list.GetConversations(), err)
	}
}

// TestUnsupportedFields checks that what the protocol has and the server does not do is refused by name.
func TestUnsupportedFields(t *testing.T) {
	f := newFixture(t, nil)
	with := func(field, value string) string {
		return strings.TrimSuffix(runInput("t", "r", user("u", "x")), "}") + `,"` + field + `":` + value + "}"
	}
	message := func(fields string) string { return runInput("t", "r", `{"id":"u",`+fields+`}`) }
	for body, field := range map[string]string{
		strings.Replace(with("x", "1"), `"tools":[]`, `"tools":[{"name":"a"}]`, 1): "tools",
		with("parentRunId", `"p"`):                                                                                         "parentRunId",
		with("resume", `[{"interruptId":"i"}]`):                                                                            "resume",
		message(`"role":"activity","activityType":"a","content":{}`):                                                       "messages[0].role",
		message(`"role":"user","content":"x","encryptedValue":"x"`):                                                        "messages[0].encryptedValue",
		message(`"role":"user","content":"x","subagentRunId":"x"`):                                                         "messages[0].subagentRunId",
		message(`"role":"user","content":"x","metadata":{"a":"` + strings.Repeat("x", 1025) + `"}`):                        "messages[0].metadata",
		message(`"role":"user","content":[{"type":"image","source":{"type":"data","value":"aa","mimeType":"image/png"}}]`): "messages[0].content[0].source.type",
		message(`"role":"user","content":[{"type":"text","text":"x","metadata":{"a":1}}]`):                                 "messages[0].content[0].metadata",
		runInput("t", "r", `{"id":"a","role":"assistant","toolCalls":[{"id":"c","function":{"name":"n","arguments":""},`+
			`"metadata":{}}]}`, user("u", "x")): "messages[0].toolCalls[0].metadata",
	} {
		r := f.open(t, http.MethodPost, PathPrefix+"echo", body)
		if got := failed(t, r, http.StatusNotImplemented, "UNSUPPORTED"); !strings.HasPrefix(got, "not supported: "+field+":") {
			t.Errorf("%.90s: %s\nwant %s", body, got, field)
		}
	}
	f.wantNothing(t)
}

// TestEarlierMessages checks that the messages that a conversation lacks are stored once and in order, with their ids and
// all their fields, before the agent answers the last one.
func TestEarlierMessages(t *testing.T) {
	f := newFixture(t, nil)
	long := strings.Repeat("i", 300)
	history := []string{
		`{"id":"s","role":"developer","content":"Be brief.","name":"dev"}`,
		user(long, "one"),
		`{"id":"why","role":"reasoning","content":"Hm."}`,
		`{"id":"a","role":"assistant","name":"cook","content":"two","metadata":{"k":[1]},"toolCalls":[{"id":"c","type":"function",` +
			`"function":{"name":"price","arguments":"{}"}}]}`,
		`{"id":"res","role":"tool","toolCallId":"c","content":"no","error":"no"}`,
		`{"id":"f","role":"user","content":[{"type":"text","text":"see"},{"type":"image","source":{"type":"url","value":"http://x/y"}},` +
			`{"type":"document","source":{"type":"url","value":"http://x/z","mimeType":"application/pdf"}}]}`,
	}
	want := `[{"id":"s","role":"developer","name":"dev","content":"Be brief."},` +
		`{"id":"` + long + `","role":"user","content":"one"},` +
		`{"id":"a-reasoning","role":"reasoning","content":"Hm."},` +
		`{"id":"a","role":"assistant","name":"cook","content":"two","toolCalls":[{"id":"c","type":"function",` +
		`"function":{"name":"price","arguments":"{}"}}],"metadata":{"k":[1]}},` +
		`{"id":"res","role":"tool","content":"no","toolCallId":"c","error":"no"},` +
		`{"id":"f","role":"user","content":[{"type":"text","text":"see"},{"type":"image","source":{"type":"url","value":"http://x/y"}},` +
		`{"type":"document","source":{"type":"url","value":"http://x/z","mimeType":"application/pdf"}}]}`
	for run := range 3 { // The client sends all messages with each run.
		history = append(history, user(fmt.Sprint("u", run), fmt.Sprint("question ", run)))
		if _, err := show(f.run(t, "echo", "t", fmt.Sprint("r", run), history...)); err != nil {
			t.Fatal(err)
		}
		want += fmt.Sprintf(`,{"id":"u%d","role":"user","content":"question %d"}`, run, run)
		stored := f.stored(t)
		all, _ := fromStored(stored)
		answer := all[len(all)-1]
		text, err := jsonText(all[:len(all)-1])
		if err != nil || text != want+"]" || answer.Content != fmt.Sprint("question ", run) {
			t.Fatalf("after run %d the thread has\n%s, %v\nwant\n%s]", run, text, answer, want)
		}
		text, _ = jsonText(answer)
		want += "," + text
		history = append(history, text)
	}
}

// TestManyEarlierMessages checks that a history of any length is stored, also again after a run that failed.
func TestManyEarlierMessages(t *testing.T) {
	f := newFixture(t, nil)
	if _, err := f.api.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{
		Conversation: &parleyv1.Conversation{Id: "t", Retention: &parleyv1.Retention{KeepAll: true}},
	}); err != nil {
		t.Fatal(err)
	}
	var history []string
	for i := range 251 {
		history = append(history, user(fmt.Sprint("m", i), fmt.Sprint(i)))
	}
	for range 2 {
		if _, err := show(f.run(t, "echo", "t", "r1", history...)); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(f.stored(t)); got != 252 {
		t.Errorf("the conversation has %d messages, want 251 and the answer", got)
	}
	r := f.open(t, http.MethodPost, PathPrefix+"echo", runInput("t", "r2", history...))
	failed(t, r, http.StatusBadRequest, "NOTHING_TO_ANSWER")
	r = f.open(t, http.MethodPost, PathPrefix+"nobody", runInput("n", "r", user("a", "x"), user("b", "y")))
	failed(t, r, http.StatusBadRequest, "UNKNOWN_AGENT")
	if _, err := f.api.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: "n"}); err == nil {
		t.Error("the history of a run with an unknown agent is stored")
	}
}

// TestRetriesOfRuns checks that a run is never answered twice, and that its id cannot be used for another message.
func TestRetriesOfRuns(t *testing.T) {
	f := newFixture(t, nil)
	for range 3 {
		p, err := show(f.run(t, "echo", "t", "r", user("u", "once")))
		if err != nil || p.text() != "once" {
			t.Fatalf("the run shows %s, %v", p, err)
		}
	}
	if len(f.stored(t)) != 2 {
		t.Errorf("the conversation has %v, want a message and its answer", f.stored(t))
	}
	r := f.open(t, http.MethodPost, PathPrefix+"echo", runInput("t", "r", user("v", "twice")))
	failed(t, r, http.StatusConflict, "REQUEST_ID_REUSED")
}

// TestStateOfPage checks that state, context and properties of a page reach the agent with its message, once.
func TestStateOfPage(t *testing.T) {
	f := newFixture(t, nil)
	for run := range 3 {
		body := strings.NewReplacer(`"state":{}`, `"state":{"step":1}`, `"context":[]`,
			`"context":[{"description":"d","value":"v"}]`, `"forwardedProps":{}`, `"forwardedProps":{"p":true}`).Replace(
			runInput("t", fmt.Sprint("r", run), user(fmt.Sprint("u", run), "x")))
		if run == 2 {
			body = strings.Replace(body, `"step":1`, `"step":2`, 1)
		}
		f.all(t, http.MethodPost, PathPrefix+"echo", body)
	}
	var got []string
	for _, m := range f.stored(t) {
		for _, d := range m.GetStructuredData() {
			text, _ := jsonText(d.GetValue().AsInterface())
			got = append(got, fmt.Sprint(m.GetSequence(), d.GetType(), text))
		}
	}
	want := `[1ag-ui.state{"step":1} 1ag-ui.context[{"description":"d","value":"v"}] 1ag-ui.forwardedProps{"p":true} ` +
		`5ag-ui.state{"step":2}]`
	if fmt.Sprint(got) != want {
		t.Errorf("the messages have\n%v\nwant\n%s", got, want)
	}
	if p, err := show(f.connect(t)); err != nil || fmt.Sprint(p.state) != "map[step:2]" {
		t.Errorf("the state after a reload is %v, %v; want step 2", p.state, err)
	}
}

// onlyToken accepts the token "valid".
type onlyToken struct{}

func (onlyToken) Verify(_ context.Context, c auth.Credentials) (auth.Identity, error) {
	if c.Token != "valid" {
		return auth.Identity{}, errors.New("not the token")
	}
	return auth.Identity{Name: "someone", Tenants: []string{"acme", "globex"}, Role: auth.Writer}, nil
}

// TestSignIn checks that all requests need a credential, and that each tenant has its own threads.
func TestSignIn(t *testing.T) {
	f := openFixture(t, &fixture{scripts: new(scripts)}, auth.New(time.Now, onlyToken{}))
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		r := f.open(t, method, PathPrefix+"echo?threadId=t", runInput("t", "r", user("u", "hi")))
		failed(t, r, http.StatusUnauthorized, "UNAUTHENTICATED")
		if r.Header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%s has WWW-Authenticate %q, want Bearer", method, r.Header.Get("WWW-Authenticate"))
		}
	}
	as := []string{"Authorization: Bearer valid", "Parley-Tenant: acme"}
	f.all(t, http.MethodPost, PathPrefix+"echo", runInput("t", "r", user("u", "hi")), as...)
	for tenant, want := range map[string]int{"acme": 2, "globex": 0} {
		p, err := show(f.connect(t, as[0], "Parley-Tenant: "+tenant))
		if err != nil || len(p.messages) != want {
			t.Errorf("the thread of %s has %v, %v; want %d messages", tenant, p.messages, err, want)
		}
	}
}

// FuzzParseInput checks that every body is either refused with a status that names what is wrong, or has messages.
func FuzzParseInput(f *testing.F) {
	for _, body := range []string{
		"", "{}", "null", runInput("t", "r", user("u", "x")), `{"threadId":1,"messages":[{"content":[{"type":"image"}]}]}`,
		runInput("t", "r", `{"id":"a","role":"assistant","toolCalls":[{"id":"c","function":{"name":"n","arguments":""}}]}`),
		runInput("t", "r", `{"id":"a","role":"tool","toolCallId":"c","content":[{"type":"text","text":"x"}],"error":"e"}`),
		`{"threadId":"t","runId":"r","messages":[null,1,{"metadata":{}}],"resume":[0],"tools":null}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		in, err := parseInput(body)
		if err == nil {
			if in.threadID == "" && in.runID == "" && len(in.messages) == 0 {
				t.Errorf("parseInput(%q) = %+v, want an error", body, in)
			}
			for _, m := range in.messages {
				if m.id == "" || m.message == nil {
					t.Errorf("parseInput(%q) has a message without an id", body)
				}
			}
			return
		}
		st := status.Convert(err)
		if code := gateway.Reason(st); code != "INVALID_REQUEST" && code != "UNSUPPORTED" || st.Code() == codes.Unknown {
			t.Errorf("parseInput(%q) = %v, want a status that names a field", body, err)
		}
	})
}

// FuzzParsePosition checks that an id of an event that is accepted is understood in the same way again.
func FuzzParsePosition(f *testing.F) {
	for _, id := range []string{"", "t/1/0/0/0/-", "t/1~/2/3/4/t+!/0,5.=c%2F1/1,0=", "a/b/c/d/e/f", "t/1/0/0/0/-/x"} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		p, ok := parsePosition(id)
		if !ok {
			return
		}
		again, ok := parsePosition(p.String())
		if !ok || again.String() != p.String() {
			t.Errorf("parsePosition(%q) = %v, then %v, %v", id, p, again, ok)
		}
	})
}

// TestSimultaneousRuns checks that several requests for one run with a history, at the same time, store and answer it
// once.
func TestSimultaneousRuns(t *testing.T) {
	f := newFixture(t, nil)
	body := runInput("t", "r", user("a", "one"), user("b", "two"), user("c", "three"))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := show(f.all(t, http.MethodPost, PathPrefix+"echo", body)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	var got []string
	for _, m := range f.stored(t) {
		got = append(got, m.GetContent())
	}
	if want := []string{"one", "two", "three", "three"}; !slices.Equal(got, want) {
		t.Errorf("the conversation has %q, want %q", got, want)
	}
}
