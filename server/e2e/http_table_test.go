package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"google.golang.org/genproto/googleapis/rpc/code"
)

// TestCallTableOverHTTP sends the calls of the table that all client packages use, as requests
// to the paths of http.yaml. The table's "about" describes its format.
func TestCallTableOverHTTP(t *testing.T) {
	var table struct {
		About []string    `json:"about"`
		Steps []tableStep `json:"steps"`
	}
	text, err := os.ReadFile("../../client/testdata/calls.json")
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&table); err != nil || len(table.Steps) == 0 {
		t.Fatalf("table has %d steps, %v; want some", len(table.Steps), err)
	}
	run := &tableRun{
		httpServer: startHTTPServer(t, t.TempDir(), "--store=memory"), paths: readPaths(t), saved: map[string]string{},
	}
	for _, step := range table.Steps {
		t.Run(step.Name, func(t *testing.T) { run.runStep(t, step) })
	}
}

// tableStep is a call and its expected result: one of want, error, turn, changes and answers.
type tableStep struct {
	Name    string          `json:"name"`
	Call    string          `json:"call"`
	Request json.RawMessage `json:"request"`
	tableResult
	Turn    any               `json:"turn"`
	Changes []any             `json:"changes"`
	Answers []tableResult     `json:"answers"`
	Save    map[string]string `json:"save"`
}

// tableResult is the expected reply or error.
type tableResult struct {
	Want  any `json:"want"`
	Error *struct {
		Code   string   `json:"code"`
		Reason string   `json:"reason"`
		Fields []string `json:"fields"`
	} `json:"error"`
}

// text returns the expected error in the form of errorOf. HTTP names the fields as in JSON.
func (r tableResult) text() string {
	fields := []string{}
	for _, field := range r.Error.Fields {
		fields = append(fields, underscore.ReplaceAllStringFunc(field, func(s string) string { return strings.ToUpper(s[1:]) }))
	}
	slices.Sort(fields)
	return fmt.Sprint(r.Error.Code, " ", r.Error.Reason, " ", fields)
}

var underscore = regexp.MustCompile("_[a-z]")

// tableRun runs the steps in order.
type tableRun struct {
	*httpServer
	paths map[string][]httpPath
	saved map[string]string
}

func (r *tableRun) runStep(t *testing.T, step tableStep) {
	t.Helper()
	text := string(step.Request)
	for name, value := range r.saved {
		text = strings.ReplaceAll(text, "${"+name+"}", value)
	}
	var request any
	if err := json.Unmarshal([]byte(text), &request); err != nil || strings.Contains(text, "${") {
		t.Fatalf("request %s: %v; want JSON without unknown variables", text, err)
	}
	reply, err := r.client().Do(r.request(t, step.Call, request))
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()

	var want, got any
	switch {
	case step.Error != nil:
		if reply.StatusCode < 400 {
			t.Fatalf("reply = %s, want an error", reply.Status)
		}
		want, got = step.text(), errorOf(t, reply.Body)
	case reply.StatusCode != http.StatusOK:
		text, _ := io.ReadAll(reply.Body)
		t.Fatalf("%s: %s", reply.Status, text)
	case step.Turn != nil:
		want, got = step.Turn, turnOfStream(t, reply.Body)
	case step.Changes != nil:
		want, got = step.Changes, streamValues(t, reply.Body, "change", len(step.Changes))
	case step.Answers != nil:
		want, got = answersOfStream(t, step.Answers, reply.Body)
	default:
		want = step.Want
		if err := json.NewDecoder(reply.Body).Decode(&got); err != nil {
			t.Fatal(err)
		}
	}
	if faults := differences("", want, got); len(faults) > 0 {
		t.Error(strings.Join(faults, "\n"))
	}
	for name, path := range step.Save {
		value, ok := valueAt(got, path).(string)
		if !ok || value == "" {
			t.Errorf("save %s: no text at %s in the reply", name, path)
		}
		r.saved[name] = value
	}
}

// client returns an HTTP client that rejects redirections: no path of the API redirects.
func (r *tableRun) client() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("unexpected redirection") },
	}
}

// httpPath is one path of a call. body names the field of the request that is the HTTP body.
type httpPath struct{ method, path, body string }

// readPaths returns the paths of all calls by the name of the call.
func readPaths(t *testing.T) map[string][]httpPath {
	t.Helper()
	text, err := os.ReadFile("../../proto/parley/v1/http.yaml")
	if err != nil {
		t.Fatal(err)
	}
	type rule struct {
		Selector, Get, Put, Post, Patch, Delete, Body string
		Others                                        []rule `yaml:"additional_bindings"`
	}
	var file struct{ HTTP struct{ Rules []rule } }
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	paths := map[string][]httpPath{}
	for _, call := range file.HTTP.Rules {
		name := call.Selector[strings.LastIndex(call.Selector, ".")+1:]
		for _, r := range append([]rule{call}, call.Others...) {
			for method, path := range map[string]string{
				http.MethodGet: r.Get, http.MethodPut: r.Put, http.MethodPost: r.Post, http.MethodPatch: r.Patch,
				http.MethodDelete: r.Delete,
			} {
				if path != "" {
					paths[name] = append(paths[name], httpPath{method, path, r.Body})
				}
			}
		}
	}
	return paths
}

// request puts the fields of a request message into the path, the body and the query. It uses the
// last path of the call whose parameters are all in the message, or else the first path. The messages
// of a list are the lines of the body.
func (r *tableRun) request(t *testing.T, call string, content any) *http.Request {
	t.Helper()
	if len(r.paths[call]) == 0 {
		t.Fatalf("call %s has no path in http.yaml", call)
	}
	message, _ := content.(map[string]any)
	lines, _ := content.([]any)
	param := regexp.MustCompile(`\{[a-z_.]+\}`)
	fieldOf := func(param string) string {
		parts := strings.Split(strings.Trim(param, "{}"), "_")
		for i := range parts[1:] {
			parts[i+1] = strings.ToUpper(parts[i+1][:1]) + parts[i+1][1:]
		}
		return strings.Join(parts, "")
	}
	at := r.paths[call][0]
	for _, p := range r.paths[call] {
		if !slices.ContainsFunc(param.FindAllString(p.path, -1),
			func(p string) bool { return valueAt(message, fieldOf(p)) == nil }) {
			at = p
		}
	}
	var inPath []string
	path := param.ReplaceAllStringFunc(at.path, func(p string) string {
		inPath = append(inPath, fieldOf(p))
		id, _ := valueAt(message, fieldOf(p)).(string)
		return url.PathEscape(id)
	})
	body := any(nil)
	query := url.Values{}
	switch at.body {
	case "*":
		for _, field := range inPath {
			delete(message, field)
		}
		body = message
	case "":
		addParameters(query, "", message)
	default:
		body = message[at.body]
		delete(message, at.body)
		addParameters(query, "", message)
	}
	for _, field := range inPath {
		query.Del(field)
	}
	if message != nil && body != nil {
		lines = []any{body}
	}
	var text bytes.Buffer
	for _, line := range lines {
		if err := json.NewEncoder(&text).Encode(line); err != nil {
			t.Fatal(err)
		}
	}
	request, err := http.NewRequestWithContext(t.Context(), at.method, r.url+path+"?"+query.Encode(), &text)
	if err != nil {
		t.Fatal(err)
	}
	return request
}

// addParameters adds the fields of a message to a query.
func addParameters(query url.Values, path string, value any) {
	switch value := value.(type) {
	case map[string]any:
		for name, inner := range value {
			switch path {
			case "":
				addParameters(query, name, inner)
			case "labels":
				query.Set(path+"["+name+"]", fmt.Sprint(inner))
			default:
				addParameters(query, path+"."+name, inner)
			}
		}
	case []any:
		for _, inner := range value {
			query.Add(path, fmt.Sprint(inner))
		}
	default:
		query.Set(path, fmt.Sprint(value))
	}
}

// errorOf returns the code, the reason and the fields of an error in JSON as one text.
func errorOf(t *testing.T, text io.Reader) string {
	t.Helper()
	var body struct {
		Code    int32
		Details []struct {
			Reason          string
			FieldViolations []struct{ Field string }
		}
	}
	if err := json.NewDecoder(text).Decode(&body); err != nil {
		t.Fatal(err)
	}
	reason, fields := "", []string{}
	for _, detail := range body.Details {
		reason += detail.Reason
		for _, v := range detail.FieldViolations {
			fields = append(fields, v.Field)
		}
	}
	slices.Sort(fields)
	return fmt.Sprint(code.Code(body.Code), " ", reason, " ", fields)
}

// streamValues returns the field name of the stream's lines: of n lines, or of all if n is 0.
func streamValues(t *testing.T, stream io.Reader, name string, n int) (values []any) {
	t.Helper()
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, 8<<20)
	for (n <= 0 || len(values) < n) && lines.Scan() {
		var line map[string]any
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil || line[name] == nil {
			t.Fatalf("line %s: %v; want a field %q", lines.Text(), err, name)
		}
		values = append(values, line[name])
	}
	if lines.Err() != nil {
		t.Fatal(lines.Err())
	}
	return values
}

// answersOfStream returns the expected answers and those in the lines of a stream.
func answersOfStream(t *testing.T, answers []tableResult, stream io.Reader) (want, got []any) {
	t.Helper()
	lines := json.NewDecoder(stream)
	for _, answer := range answers {
		var line struct {
			Response any
			Error    json.RawMessage
		}
		if err := lines.Decode(&line); err != nil {
			t.Fatal(err)
		}
		if answer.Error == nil {
			want, got = append(want, answer.Want), append(got, line.Response)
		} else {
			want, got = append(want, answer.text()), append(got, errorOf(t, bytes.NewReader(line.Error)))
		}
	}
	if lines.More() {
		t.Errorf("more than %d answers", len(answers))
	}
	return want, got
}

func turnOfStream(t *testing.T, stream io.Reader) any {
	t.Helper()
	text, last := "", any(nil)
	for _, last = range streamValues(t, stream, "event", 0) {
		if piece, ok := valueAt(last, "textDelta.text").(string); ok {
			text += piece
		}
	}
	messages, _ := valueAt(last, "finished.messages").([]any)
	return map[string]any{
		"text": text, "state": valueAt(last, "finished.turn.state"), "messages": append([]any{}, messages...),
	}
}

// differences returns the differences between want and got. An object in got may have more fields.
func differences(path string, want, got any) (faults []string) {
	switch want := want.(type) {
	case map[string]any:
		for name, value := range want {
			object, _ := got.(map[string]any)
			faults = append(faults, differences(path+"."+name, value, object[name])...)
		}
		return faults
	case []any:
		list, _ := got.([]any)
		if len(list) != len(want) {
			return []string{fmt.Sprintf("%s is %v, want %d elements", path, got, len(want))}
		}
		for i, value := range want {
			faults = append(faults, differences(fmt.Sprint(path, ".", i), value, list[i])...)
		}
		return faults
	}
	if text, ok := got.(string); want != got && (!ok || text == "" || want != "*") {
		return []string{fmt.Sprintf("%s is %#v, want %#v", path, got, want)}
	}
	return nil
}

// valueAt returns the value at a path, or nil if there is none.
func valueAt(value any, path string) any {
	for step := range strings.SplitSeq(path, ".") {
		switch inner := value.(type) {
		case map[string]any:
			value = inner[step]
		case []any:
			index, err := strconv.Atoi(step)
			if err != nil || index < 0 || index >= len(inner) {
				return nil
			}
			value = inner[index]
		default:
			return nil
		}
	}
	return value
}
