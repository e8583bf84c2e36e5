package main

import (
	"io"
	"regexp"
	"strings"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	matched colour = "\x1b[1;31m" // The colour that grep uses.
	// logIndent precedes the second and further lines of a message.
	logIndent = "    "
)

// logWriter prints entries of the interaction log.
type logWriter struct {
	*app

	match *regexp.Regexp // The text to highlight; nil for none.
}

// show prints an entry as JSON, or as text for people.
func (l *logWriter) show(i *parleyv1.Interaction) error {
	if l.output == "json" {
		return l.printLine(i)
	}
	line := l.coloured(dim, i.GetTimestamp().AsTime().Format(time.RFC3339)) + " " +
		l.coloured(bold, oneLine(i.GetConversationId())) + " " + l.coloured(colourOf(i.GetRole()), author(i)+":")
	if content := strings.TrimRight(i.GetContent(), "\n"); content != "" {
		line += " " + l.highlighted(content)
	}
	_, err := io.WriteString(l.out, line+"\n")
	return err
}

// author returns the author of an entry, such as "user", "user Mary" or "assistant writer, incomplete".
func author(i *parleyv1.Interaction) string {
	name := roleName(i.GetRole())
	unnamed := i.GetRole() == parleyv1.Role_ROLE_USER && i.GetAgent() == "User"
	if agent := oneLine(i.GetAgent()); agent != "" && !unnamed {
		name += " " + agent
	}
	if i.GetMetadata().GetFields()["status"].GetStringValue() == "incomplete" {
		name += ", incomplete"
	}
	return name
}

// highlighted returns content with the matched text in colour.
func (l *logWriter) highlighted(content string) string {
	if l.match == nil {
		return l.indented(content)
	}
	var text strings.Builder
	end := 0
	for _, found := range l.match.FindAllStringIndex(content, -1) {
		text.WriteString(l.indented(content[end:found[0]]))
		text.WriteString(l.coloured(matched, l.indented(content[found[0]:found[1]])))
		end = found[1]
	}
	text.WriteString(l.indented(content[end:]))
	return text.String()
}

// indented returns text with its further lines indented.
func (l *logWriter) indented(text string) string {
	return strings.ReplaceAll(l.printable(text), "\n", "\n"+logIndent)
}
