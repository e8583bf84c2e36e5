package mcp

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	// textEvery is the minimum time between reports of received text or reasoning. Other events are reported
	// at once.
	textEvery = 200 * time.Millisecond
	// maxTailBytes limits the text in a report to its newest bytes. maxNoteBytes limits a report.
	maxTailBytes = 80
	maxNoteBytes = 512
)

// progress reports the progress of a turn to a client that waits for its answer.
type progress struct {
	notify func(message string) // Sends a report; nil if the client wants none.

	agent      string
	characters int       // The number of received characters of text.
	reasoning  int       // The number of received characters of reasoning.
	tail       string    // The newest text.
	reported   time.Time // The time of the last report of text.
}

// newProgress returns the progress of call, whose context is ctx.
func newProgress(ctx context.Context, call *sdk.CallToolRequest) *progress {
	token := call.Params.GetProgressToken()
	if token == nil {
		return &progress{}
	}
	steps := 0.0 // The protocol requires values that increase with each report.
	return &progress{notify: func(message string) {
		if ctx.Err() != nil {
			return
		}
		steps++
		// An error means that the client has disconnected, and ctx then ends.
		_ = call.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{
			ProgressToken: token, Progress: steps, Message: message,
		})
	}}
}

// report reports an event of a turn.
func (p *progress) report(event *parleyv1.TurnEvent) {
	switch e := event.GetEvent().(type) {
	case *parleyv1.TurnEvent_Queued:
		p.send("queued: %d ahead", e.Queued.GetPosition())
	case *parleyv1.TurnEvent_Started:
		p.agent = e.Started.GetAgent()
		p.send("%s is answering in conversation %s", p.agent, e.Started.GetConversation().GetId())
	case *parleyv1.TurnEvent_TextDelta:
		p.reportText(e.TextDelta.GetText())
	case *parleyv1.TurnEvent_ReasoningDelta:
		p.reportReasoning(e.ReasoningDelta.GetText())
	case *parleyv1.TurnEvent_Progress:
		if note := e.Progress.GetText(); note != "" {
			p.send("%s: %s", p.agent, note)
		} else {
			p.send("%s is still working, %d characters so far", p.agent, p.characters)
		}
	case *parleyv1.TurnEvent_StructuredData:
		p.send("%s sends %s", p.agent, e.StructuredData.GetType())
	case *parleyv1.TurnEvent_ToolCall:
		p.send("%s calls %s", p.agent, e.ToolCall.GetName())
	case *parleyv1.TurnEvent_ToolResult:
		p.send("%s has the result of %s", p.agent, e.ToolResult.GetName())
	case *parleyv1.TurnEvent_AnswerStarted:
		if agent := e.AnswerStarted.GetAgent(); agent != "" && agent != p.agent {
			p.agent = agent
			p.send("%s continues the answer", agent)
		}
	}
}

// reportText adds a piece of text and reports the newest text at most every textEvery.
func (p *progress) reportText(piece string) {
	p.characters += utf8.RuneCountInString(piece)
	p.tail = ending(p.tail+piece, maxTailBytes)
	if time.Since(p.reported) < textEvery {
		return
	}
	p.reported = time.Now()
	mark := ""
	if p.characters > utf8.RuneCountInString(p.tail) {
		mark = "…"
	}
	p.send("%d characters so far: %s%s", p.characters, mark, p.tail)
}

// reportReasoning adds a piece of reasoning and reports its length at most every textEvery. The reasoning
// itself is not for the model that called the tool.
func (p *progress) reportReasoning(piece string) {
	p.reasoning += utf8.RuneCountInString(piece)
	if time.Since(p.reported) < textEvery {
		return
	}
	p.reported = time.Now()
	p.send("%s is reasoning, %d characters so far", p.agent, p.reasoning)
}

// send sends a report in one line of limited length.
func (p *progress) send(format string, values ...any) {
	if p.notify != nil {
		p.notify(shortened(strings.Join(strings.Fields(fmt.Sprintf(format, values...)), " "), maxNoteBytes))
	}
}

// ending returns the end of s, at most limit bytes, from the beginning of a character.
func ending(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	begin := len(s) - limit
	for begin < len(s) && !utf8.RuneStart(s[begin]) {
		begin++
	}
	return s[begin:]
}

// shortened returns s, or its beginning and "…" if s has more than limit bytes. Package rules of the server
// has the same function as Clip.
func shortened(s string, limit int) string {
	const mark = "…"
	if len(s) <= limit {
		return s
	}
	end := limit - len(mark)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + mark
}
