package agent_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/parleyhq/parley/server/internal/agent"
)

// readEvents returns the events in a body as "type|data", and the error after them.
func readEvents(body string) (events []string, err error) {
	return eventsIn(strings.NewReader(body))
}

func eventsIn(body io.Reader) (events []string, err error) {
	s := agent.NewEventStream(io.NopCloser(body))
	for {
		event, err := s.Next()
		if err != nil {
			return events, err
		}
		events = append(events, event.Type+"|"+string(event.Data))
	}
}

func TestEventStream(t *testing.T) {
	const notStream, tooLarge = "the body is not an event stream", "an event has more than 4194304 bytes"
	line := strings.Repeat("x", 64<<10)
	many := func(event string, n int) (events []string) {
		for range n {
			events = append(events, event)
		}
		return events
	}
	for name, test := range map[string]struct {
		body string
		want []string
		err  string
	}{
		"events":            {"event: a\ndata: 1\n\ndata:2\n\n", []string{"a|1", "|2"}, "EOF"},
		"CR LF":             {"event: a\r\ndata: 1\r\n\r\ndata: \r\n\r\n", []string{"a|1", "|"}, "EOF"},
		"several lines":     {"data: 1\ndata\ndata:  2\n\n", []string{"|1\n\n 2"}, "EOF"},
		"other fields":      {": comment\nid: 7\nretry: 1\n:\nodd\ndata: 1\n\n", []string{"|1"}, "EOF"},
		"a type alone":      {"event: a\n\ndata: 1\n\n", []string{"|1"}, "EOF"},
		"incomplete event":  {"data: 1\n\ndata: 2\n", []string{"|1"}, "EOF"},
		"incomplete line":   {"data: 1\n\ndata: 2", []string{"|1"}, "EOF"},
		"no final line end": {"event: e\ndata:", nil, "EOF"},
		"large events":      {strings.Repeat("data: "+line+"\ndata: "+line+"\n\n", 40), many("|"+line+"\n"+line, 40), "EOF"},
		"large event": {
			"data: " + strings.Repeat("x", 4<<20-8) + "\n\n", []string{"|" + strings.Repeat("x", 4<<20-8)}, "EOF",
		},
		"too large event":    {"data: " + strings.Repeat("x", 4<<20), nil, tooLarge},
		"too many lines":     {strings.Repeat("data: "+line+"\n", 65), nil, tooLarge},
		"too long comment":   {"data: 1\n\n" + strings.Repeat(": "+line+"\n", 65), []string{"|1"}, tooLarge},
		"leading comments":   {strings.Repeat(": wait\n\n", 1000) + "data: 1\n\n", []string{"|1"}, "EOF"},
		"empty":              {"", nil, notStream},
		"only comments":      {": wait\n\n", nil, notStream},
		"JSON":               {"{\n  \"data:\": 1\n}\n", nil, notStream},
		"similar field name": {"ddata: x\n\ndat\nxyza:\n\n", nil, notStream},
		"long page":          {strings.Repeat("<p>\n\n", 64<<10) + "data: x\n\n", nil, notStream},
		"long line":          {strings.Repeat("x", 1<<20) + "\ndata: x\n\n", nil, notStream},
	} {
		t.Run(name, func(t *testing.T) {
			for _, body := range []io.Reader{strings.NewReader(test.body), iotest.HalfReader(strings.NewReader(test.body)), iotest.DataErrReader(strings.NewReader(test.body))} {
				got, err := eventsIn(body)
				if diff := cmp.Diff(test.want, got); diff != "" || fmt.Sprint(err) != test.err {
					t.Errorf("error = %.100v, want %s; events (-want +got):\n%.1000s", err, test.err, diff)
				}
			}
		})
	}
	broken := errors.New("broken")
	if _, err := eventsIn(iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("Next of a broken body = %v, want its error", err)
	}
}

func TestDecode(t *testing.T) {
	type data struct {
		Text  string           `json:"text"`
		Index agent.Index      `json:"index"`
		ID    agent.ID         `json:"id"`
		Count agent.TokenCount `json:"count"`
	}
	for text, want := range map[string]string{
		`{"text":"a","count":7}`:                              "a 0 7",
		"\n{\"count\":12.0,\"index\":\"x\",\"text\":\"a\"}\n": "a 0 12",
		`{"text":{"a":1},"count":1}`:                          " 0 1",
		`{"count":"many","other":[1]}`:                        " 0 0",
		`{"count":"12","index":"3","id":"a\u00e9"}`:           " 3 12 aé",
		`{"count":"NaN","index":2.0,"id":-4.5}`:               " 2 0 -4.5",
		`{"count":null,"index":true,"id":null}`:               " 0 0",
		`{"index":1e30,"id":{"a":1}}`:                         " 2147483647 0",
		`{"count":-5}`:                                        " 0 0",
		`{"count":1e30}`:                                      " 0 2147483647",
		`{"text":`:                                            "error",
		`[1]`:                                                 "error",
		`7`:                                                   "error",
		`text`:                                                "error",
	} {
		var d data
		got := "error"
		if err := (agent.Event{Data: []byte(text)}).Decode(&d); err == nil {
			got = strings.TrimRight(fmt.Sprint(d.Text, " ", d.Index, " ", d.Count, " ", d.ID), " ")
		}
		if got != want {
			t.Errorf("Decode(%s) = %s, want %s", text, got, want)
		}
	}
	if got := agent.SumTokens(1, -5, 1<<40, 7); got != 1<<31-1 {
		t.Errorf("SumTokens = %d, want the maximum", got)
	}
}
