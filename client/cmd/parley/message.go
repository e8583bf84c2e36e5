package main

import (
	"fmt"
	"io"
	"strings"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// printMessages writes messages, separated by empty lines.
func (a *app) printMessages(w io.Writer, messages []*parleyv1.Message) {
	for i, message := range messages {
		if i > 0 {
			fmt.Fprintln(w)
		}
		a.printMessage(w, message)
	}
}

// printMessage writes one message with its sequence, role and agent.
func (a *app) printMessage(w io.Writer, m *parleyv1.Message) {
	head := fmt.Sprintf("[%d] %s", m.GetSequence(), roleName(m.GetRole()))
	if m.GetAgent() != "" {
		head += " " + m.GetAgent()
	}
	if m.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE {
		head += ", incomplete"
	}
	fmt.Fprintln(w, a.printable(head))
	if content := a.printable(m.GetContent()); content != "" {
		fmt.Fprintln(w, strings.TrimRight(content, "\n"))
	}
	for _, data := range m.GetStructuredData() {
		fmt.Fprintln(w, a.printable(describeData(data)))
	}
	for _, call := range m.GetToolCalls() {
		fmt.Fprintln(w, a.printable(describeCall(call)))
	}
	if m.GetToolResult() != nil {
		fmt.Fprintln(w, a.printable(describeResult(m.GetToolResult())))
	}
	for _, file := range m.GetAttachments() {
		fmt.Fprintln(w, a.printable("attachment: "+file.GetUri()))
	}
}

func describeData(data *parleyv1.StructuredData) string {
	value, err := marshal(data.GetValue())
	if err != nil {
		value = []byte(err.Error())
	}
	return fmt.Sprintf("structured data %s: %s", data.GetType(), value)
}

func describeCall(call *parleyv1.ToolCall) string {
	return toolLine("tool call", call.GetName(), call.GetId(), call.GetArguments())
}

func describeResult(result *parleyv1.ToolResult) string {
	what := "tool result"
	if result.GetIsError() {
		what = "tool failure"
	}
	return toolLine(what, result.GetName(), result.GetCallId(), result.GetContent())
}

// toolLine describes a call or a result. The name of a result is optional.
func toolLine(what, name, id, text string) string {
	for _, word := range []string{name, id} {
		if word != "" {
			what += " " + word
		}
	}
	return what + ": " + text
}

func roleName(role parleyv1.Role) string {
	return strings.ToLower(strings.TrimPrefix(role.String(), "ROLE_"))
}
