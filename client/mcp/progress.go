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
	// textEvery is how often the text that has arrived is told of; all else is told at once.
	textEvery = 200 * time.Millisecond
	// maxTailBytes of that text are shown, its newest.
	maxTailBytes = 80
	maxNoteBytes = 512
)

// progress tells a client that waits for an answer how far it is.
type progress struct {
	notify func(message string) // Nil: nobody wants to know.

	agent      string
	characters int // Of the text that has arrived.
	tail       string
	told       time.Time // When that was told of.
}

// newProgress returns the progress of call, whose context is ctx.
func newProgress(ctx context.Context, call *sdk.CallToolRequest) *progress {
	token := call.Params.GetProgressToken()
	if token == nil {
		return &progress{}
	}
	steps := 0.0 // What rises by one each time always rises.
	return &progress{notify: func(message string) {
		if ctx.Err() != nil {
			return
		}
		steps++
		// A client that is not told has gone, and ctx ends.
		_ = call.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: steps, Message: message})
	}}
}

// show tells of an event of a turn.
func (p *progress) show(event *parleyv1.TurnEvent) {
	switch e := event.GetEvent().(type) {
	case *parleyv1.TurnEvent_Queued:
		p.tell("queued: %d ahead", e.Queued.GetPosition())
	case *parleyv1.TurnEvent_Started:
		p.agent = e.Started.GetAgent()
		p.tell("%s is answering in conversation %s", p.agent, e.Started.GetConversation().GetId())
	case *parleyv1.TurnEvent_TextDelta:
		p.showText(e.TextDelta.GetText())
	case *parleyv1.TurnEvent_Progress:
		if note := e.Progress.GetText(); note != "" {
			p.tell("%s: %s", p.agent, note)
		} else {
			p.tell("%s is still at work, %d characters so far", p.agent, p.characters)
		}
	case *parleyv1.TurnEvent_StructuredData:
		p.tell("%s gives %s", p.agent, e.StructuredData.GetType())
	case *parleyv1.TurnEvent_ToolCall:
		p.tell("%s calls %s", p.agent, e.ToolCall.GetName())
	case *parleyv1.TurnEvent_ToolResult:
		p.tell("%s has the result of %s", p.agent, e.ToolResult.GetName())
	case *parleyv1.TurnEvent_AnswerStarted:
		if agent := e.AnswerStarted.GetAgent(); agent != "" && agent != p.agent {
			p.agent = agent
			p.tell("%s goes on", agent)
		}
	}
}

// showText tells of the newest words of the answer.
func (p *progress) showText(piece string) {
	p.characters += utf8.RuneCountInString(piece)
	p.tail = ending(p.tail+piece, maxTailBytes)
	if time.Since(p.told) < textEvery {
		return
	}
	p.told = time.Now()
	mark := ""
	if p.characters > utf8.RuneCountInString(p.tail) {
		mark = "…"
	}
	p.tell("%d characters so far: %s%s", p.characters, mark, p.tail)
}

func (p *progress) tell(format string, values ...any) {
	if p.notify != nil {
		p.notify(shortened(strings.Join(strings.Fields(fmt.Sprintf(format, values...)), " "), maxNoteBytes))
	}
}

// ending is the end of s from the beginning of a character, so many bytes at most.
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

// shortened is s or, where that has more bytes than limit, its beginning and "…".
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
