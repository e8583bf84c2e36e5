package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestCallTable executes the steps of testdata/calls.json. The file explains its format. The steps are executed again
// with an appender instead of AppendMessages, which must return the same.
func TestCallTable(t *testing.T) {
	text, err := os.ReadFile("testdata/calls.json")
	if err != nil {
		t.Fatal(err)
	}
	var table struct {
		About []string   `json:"about"`
		Steps []callStep `json:"steps"`
	}
	if err := decodeStrictly(text, &table); err != nil || len(table.Steps) == 0 {
		t.Fatalf("calls.json has %d steps, error = %v", len(table.Steps), err)
	}
	for _, streamed := range []bool{false, true} {
		t.Run(fmt.Sprint("appender=", streamed), func(t *testing.T) {
			run := &tableRun{client: dialServer(t), saved: map[string]string{}}
			if streamed {
				run.appender = run.client.NewAppender(t.Context())
				defer run.appender.Close()
			}
			for _, step := range table.Steps {
				if err := run.execute(t.Context(), step); err != nil {
					t.Errorf("%s: %v", step.Name, err)
				}
			}
		})
	}
}

type callStep struct {
	Name    string          `json:"name"`
	Call    string          `json:"call"`
	Request json.RawMessage `json:"request"`

	// A step has exactly one of the next five fields.
	Want    any         `json:"want"`
	Error   *wantError  `json:"error"`
	Turn    *wantedTurn `json:"turn"`
	Changes []any       `json:"changes"`
	Answers []struct {
		Want  any        `json:"want"`
		Error *wantError `json:"error"`
	} `json:"answers"`

	Save map[string]string `json:"save"`
}

type wantError struct {
	Code   string   `json:"code"`
	Reason string   `json:"reason"`
	Fields []string `json:"fields"`
}

type wantedTurn struct {
	Text     string `json:"text"`
	State    string `json:"state"`
	Messages []any  `json:"messages"`
}

// tableRun executes steps in order.
type tableRun struct {
	client   *client.Client
	appender *client.Appender // nil if AppendMessages is called.
	saved    map[string]string
}

// execute executes step and returns an error that describes each difference from the expectation.
func (r *tableRun) execute(ctx context.Context, step callStep) error {
	wants := []bool{step.Want != nil, step.Error != nil, step.Turn != nil, step.Changes != nil, step.Answers != nil}
	if count(wants) != 1 {
		return errors.New("a step needs one of want, error, turn, changes and answers")
	}
	if step.Answers != nil {
		return r.append(ctx, step)
	}
	reply, err := r.call(ctx, step)
	if step.Error != nil {
		return step.Error.compare(err)
	}
	if err != nil {
		return fmt.Errorf("reason %q: %w", client.Reason(err), err)
	}
	want := step.Want
	switch {
	case step.Turn != nil:
		want = map[string]any{"text": step.Turn.Text, "state": step.Turn.State, "messages": step.Turn.Messages}
	case step.Changes != nil:
		want = step.Changes
	}
	if faults := differences("", want, reply); len(faults) > 0 {
		return errors.New(strings.Join(faults, "\n"))
	}
	for name, path := range step.Save {
		value, ok := valueAt(reply, path).(string)
		if !ok || value == "" {
			return fmt.Errorf("save %s: no text at %s", name, path)
		}
		r.saved[name] = value
	}
	return nil
}

// count returns the number of true values.
func count(values []bool) (n int) {
	for _, value := range values {
		if value {
			n++
		}
	}
	return n
}

// append sends the requests of step with an appender and compares their answers.
func (r *tableRun) append(ctx context.Context, step callStep) error {
	text, err := r.fill(step.Request)
	if err != nil {
		return err
	}
	var requests []json.RawMessage
	if err := json.Unmarshal([]byte(text), &requests); err != nil || len(requests) != len(step.Answers) {
		return fmt.Errorf("%d requests, %d answers, error = %w", len(requests), len(step.Answers), err)
	}
	appender := r.appender
	if appender == nil {
		appender = r.client.NewAppender(ctx)
		defer appender.Close()
	}
	var results []*client.AppendResult
	for _, text := range requests {
		request := new(parleyv1.AppendStreamRequest)
		if err := protojson.Unmarshal(text, request); err != nil {
			return err
		}
		results = append(results, appender.Append(ctx, request.GetAppend()))
	}
	var faults []error
	for i, answer := range step.Answers {
		response, err := results[i].Wait(ctx)
		if answer.Error != nil {
			err = answer.Error.compare(err)
		}
		if err != nil || answer.Error != nil {
			faults = append(faults, err)
			continue
		}
		reply, err := messageJSON(response)
		if err != nil {
			return err
		}
		for _, fault := range differences(fmt.Sprint("answer ", i), answer.Want, reply) {
			faults = append(faults, errors.New(fault))
		}
	}
	return errors.Join(faults...)
}

// fill returns a request with the saved values.
func (r *tableRun) fill(request json.RawMessage) (string, error) {
	text := string(request)
	for name, value := range r.saved {
		text = strings.ReplaceAll(text, "${"+name+"}", value)
	}
	if strings.Contains(text, "${") {
		return "", fmt.Errorf("no value was saved for a name in %s", text)
	}
	return text, nil
}

// call makes the call of step. It returns the reply, the turn or the changes as decoded JSON, in the
// form in which step describes them.
func (r *tableRun) call(ctx context.Context, step callStep) (any, error) {
	text, err := r.fill(step.Request)
	if err != nil {
		return nil, err
	}
	method := reflect.ValueOf(r.client).MethodByName(step.Call)
	if !method.IsValid() {
		return nil, fmt.Errorf("no method %q", step.Call)
	}
	request, ok := reflect.TypeAssert[proto.Message](reflect.New(method.Type().In(1).Elem()))
	if !ok {
		return nil, fmt.Errorf("%s takes no single request", step.Call)
	}
	if err := protojson.Unmarshal([]byte(text), request); err != nil {
		return nil, err
	}
	if appended, ok := request.(*parleyv1.AppendMessagesRequest); ok && r.appender != nil {
		response, err := r.appender.Append(ctx, appended).Wait(ctx)
		if err != nil {
			return nil, err
		}
		return messageJSON(response)
	}
	results := method.Call([]reflect.Value{reflect.ValueOf(ctx), reflect.ValueOf(request)})
	switch result := results[0].Interface().(type) {
	case iter.Seq2[*parleyv1.TurnEvent, error]:
		return turnJSON(result)
	case iter.Seq2[*parleyv1.ConversationChange, error]:
		return changesJSON(result, len(step.Changes))
	case proto.Message:
		if !results[1].IsNil() {
			err, _ := reflect.TypeAssert[error](results[1])
			return nil, err
		}
		return messageJSON(result)
	default:
		return nil, fmt.Errorf("%s returns %T", step.Call, result)
	}
}

// turnJSON reads a turn to its end and returns its text, state and messages.
func turnJSON(events iter.Seq2[*parleyv1.TurnEvent, error]) (any, error) {
	var text strings.Builder
	finished := &parleyv1.TurnFinished{}
	for event, err := range events {
		if err != nil {
			return nil, err
		}
		text.WriteString(event.GetTextDelta().GetText())
		finished = event.GetFinished()
	}
	messages := []any{}
	for _, message := range finished.GetMessages() {
		value, err := messageJSON(message)
		if err != nil {
			return nil, err
		}
		messages = append(messages, value)
	}
	return map[string]any{"text": text.String(), "state": finished.GetTurn().GetState().String(), "messages": messages}, nil
}

// changesJSON returns the first n changes, then leaves the stream.
func changesJSON(changes iter.Seq2[*parleyv1.ConversationChange, error], n int) (any, error) {
	values := []any{}
	for change, err := range changes {
		if err != nil {
			return nil, err
		}
		value, err := messageJSON(change)
		if err != nil {
			return nil, err
		}
		if values = append(values, value); len(values) >= n {
			break
		}
	}
	return values, nil
}

func messageJSON(message proto.Message) (value any, err error) {
	text, err := protojson.Marshal(message)
	if err != nil {
		return nil, err
	}
	err = json.Unmarshal(text, &value)
	return value, err
}

// compare returns nil if err is the wanted error, and otherwise an error that shows the difference.
func (w wantError) compare(err error) error {
	if err == nil {
		return fmt.Errorf("no error, want %s, %s", w.Code, w.Reason)
	}
	s := status.Convert(err)
	got := wantError{Code: code.Code(s.Code()).String(), Reason: client.Reason(err)}
	for _, detail := range s.Details() {
		if bad, ok := detail.(*errdetails.BadRequest); ok {
			for _, violation := range bad.GetFieldViolations() {
				got.Fields = append(got.Fields, violation.GetField())
			}
		}
	}
	slices.Sort(got.Fields)
	slices.Sort(w.Fields)
	if got.Code != w.Code || got.Reason != w.Reason || !slices.Equal(got.Fields, w.Fields) {
		return fmt.Errorf("error %+v, want %+v: %w", got, w, err)
	}
	return nil
}

// differences returns a description of each place where got does not match want.
func differences(path string, want, got any) (faults []string) {
	switch want := want.(type) {
	case map[string]any:
		object, ok := got.(map[string]any)
		if !ok {
			return []string{fmt.Sprintf("%s is %v, want an object", path, got)}
		}
		for name, value := range want {
			inner := strings.TrimPrefix(path+"."+name, ".")
			if field, has := object[name]; !has {
				faults = append(faults, fmt.Sprintf("%s is missing, want %v", inner, value))
			} else {
				faults = append(faults, differences(inner, value, field)...)
			}
		}
		return faults
	case []any:
		list, ok := got.([]any)
		if !ok || len(list) != len(want) {
			return []string{fmt.Sprintf("%s is %v, want %d elements", path, got, len(want))}
		}
		for i, value := range want {
			faults = append(faults, differences(strings.TrimPrefix(fmt.Sprint(path, ".", i), "."), value, list[i])...)
		}
		return faults
	}
	if text, ok := got.(string); ok && text != "" && want == "*" {
		return nil
	}
	if want != got {
		return []string{fmt.Sprintf("%s is %#v, want %#v", path, got, want)}
	}
	return nil
}

// valueAt returns the value at path, or nil if there is none.
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

// decodeStrictly decodes JSON and refuses unknown keys.
func decodeStrictly(text []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}
