package main

import (
	"io"
	"regexp"
	"strings"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	matched colour = "\x1b[1;31m" // As of grep.
	// What the further lines of a message begin with.
	logIndent = "    "
)

// logLines writes lines of the interaction log.
type logLines struct {
	*app

	match *regexp.Regexp // What was looked for; nil: nothing.
}

// show writes a line: as JSON or, for people, as chats look.
func (l *logLines) show(i *parleyv1.Interaction) error {
	if l.output == "json" {
		return l.printLine(i)
	}
	line := l.painted(dim, i.GetTimestamp().AsTime().Format(time.RFC3339)) + " " +
		l.painted(bold, oneLine(i.GetConversationId())) + " " + l.painted(colourOf(i.GetRole()), author(i)+":")
	if content := strings.TrimRight(i.GetContent(), "\n"); content != "" {
		line += " " + l.marked(content)
	}
	_, err := io.WriteString(l.out, line+"\n")
	return err
}

// author says whose words these are: "user", "user Mary", "assistant writer, incomplete".
func author(i *parleyv1.Interaction) string {
	who := roleName(i.GetRole())
	nameless := i.GetRole() == parleyv1.Role_ROLE_USER && i.GetAgent() == "User"
	if agent := oneLine(i.GetAgent()); agent != "" && !nameless {
		who += " " + agent
	}
	if i.GetMetadata().GetFields()["status"].GetStringValue() == "incomplete" {
		who += ", incomplete"
	}
	return who
}

// marked is the text with what was looked for in colour.
func (l *logLines) marked(content string) string {
	if l.match == nil {
		return l.fitted(content)
	}
	var text strings.Builder
	end := 0
	for _, found := range l.match.FindAllStringIndex(content, -1) {
		text.WriteString(l.fitted(content[end:found[0]]))
		text.WriteString(l.painted(matched, l.fitted(content[found[0]:found[1]])))
		end = found[1]
	}
	text.WriteString(l.fitted(content[end:]))
	return text.String()
}

// fitted is text as it goes into a line and those that follow it.
func (l *logLines) fitted(text string) string {
	return strings.ReplaceAll(l.printable(text), "\n", "\n"+logIndent)
}
