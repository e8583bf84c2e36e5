package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// The data of every system: conversations of the newest maxMessages messages with messageBytes each,
// which expire ttl after their last append.
const (
	maxMessages  = 20
	messageBytes = 500
	ttl          = time.Hour
)

// errNoConversation is the error that a conversation does not exist or has expired.
var errNoConversation = errors.New("no such conversation")

// maxCallers is the maximum number of concurrent callers.
const maxCallers = 64

// message returns a text of this size.
func message(bytes int) string {
	const words = "all happy families are alike "
	return strings.Repeat(words, bytes/len(words)+1)[:bytes]
}

// conversationID returns the id of the i-th conversation. It has the form of a UUID. The ids rise, so that
// every system is filled in its best order.
func conversationID(i int) string { return fmt.Sprintf("%08x-0000-4000-8000-%012x", i, i) }

// anyOf returns a function that returns the id of a random one of the first n conversations.
func anyOf(n int) func() string {
	return func() string { return conversationID(rand.N(n)) } //nolint:gosec // The choice is no secret.
}

// clientCounts returns the numbers of concurrent clients that are measured.
func clientCounts() []int { return []int{1, maxCallers} }
