package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// What every system keeps: conversations of the newest keep messages of messageBytes each,
// which end life after their last append.
const (
	keep         = 20
	messageBytes = 500
	life         = time.Hour
)

// errNoConversation says that a conversation is missing or has ended.
var errNoConversation = errors.New("no such conversation")

// maxCallers is the most that call at once.
const maxCallers = 64

// message returns the text of a message of that many bytes.
func message(bytes int) string {
	const words = "all happy families are alike "
	return strings.Repeat(words, bytes/len(words)+1)[:bytes]
}

// conversationID names the conversation of a number. All are UUIDs in form; they rise, so
// that every system is filled in its best order.
func conversationID(i int) string { return fmt.Sprintf("%08x-0000-4000-8000-%012x", i, i) }

// anyOf returns a function that names any of the first n conversations, each as likely as
// the others.
func anyOf(n int) func() string {
	return func() string { return conversationID(rand.N(n)) } //nolint:gosec // Nobody is to be kept from guessing.
}

// clientCounts are how many clients call at once.
func clientCounts() []int { return []int{1, maxCallers} }
