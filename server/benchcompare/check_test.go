package main

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// inMemory is a system that stores conversations in a map. add is its append.
type inMemory struct {
	add func(old []string, message string) []string
	ttl time.Duration // If negative, the expiry is fixed at the first append.

	mu       sync.Mutex
	messages map[string][]string
	ends     map[string]time.Time
}

func (m *inMemory) append(_ context.Context, id, message string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.messages[id] = m.add(m.messages[id], message)
	if m.ttl > 0 || m.ends[id].IsZero() {
		m.ends[id] = time.Now().Add(max(m.ttl, -m.ttl))
	}
	return nil
}

func (m *inMemory) read(_ context.Context, id string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.messages[id]), nil
}

func (m *inMemory) remaining(_ context.Context, id string) (time.Duration, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Until(m.ends[id]), nil
}

func (m *inMemory) fill(context.Context, int) error { return nil }

func (m *inMemory) close() error { return nil }

// TestCheck checks that check finds every fault, and no fault in a right system.
func TestCheck(t *testing.T) {
	limit := func(n int) func([]string, string) []string {
		return func(old []string, message string) []string {
			now := append(slices.Clone(old), message)
			return now[max(0, len(now)-n):]
		}
	}
	right := limit(maxMessages)
	// except calls do for messages with this prefix, and right for all others.
	except := func(prefix string, do func([]string, string) []string) func([]string, string) []string {
		return func(old []string, message string) []string {
			if strings.HasPrefix(message, prefix) {
				return do(old, message)
			}
			return right(old, message)
		}
	}
	for name, c := range map[string]struct {
		add  func([]string, string) []string
		ttl  time.Duration
		want string // part of the error; "" for no error
	}{
		"right": {right, ttl, ""},
		"more":  {limit(maxMessages + 1), ttl, "want the newest"},
		"fewer": {limit(maxMessages - 1), ttl, "want the newest"},
		"backward": {func(old []string, message string) []string {
			return slices.Insert(slices.Clone(old), 0, message)[:min(len(old)+1, maxMessages)]
		}, ttl, "want the newest"},
		"short": {right, ttl / 2, "it expires in 30m0s"},
		"long":  {right, 2 * ttl, "it expires in 2h0m0s"},
		"fixed": {right, -ttl, "it expires in 59m57s"},
		"lost":  {except("writer 2 message 3 ", func(old []string, _ string) []string { return old }), ttl, "= 19 messages"},
		"doubled": {except("writer 2 message 4 ", func(old []string, message string) []string {
			return right(right(old, message), message)
		}), ttl, "in the place"},
		"late": {except("writer 1 message 4 ", func(old []string, message string) []string {
			return slices.Insert(slices.Clone(old), 0, message)
		}), ttl, "in the place"},
		"changed": {except("writer 3 message 1 ", func(old []string, message string) []string {
			return right(old, strings.ToUpper(message))
		}), ttl, "was not written"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := check(t.Context(), &inMemory{
					add: c.add, ttl: c.ttl, messages: make(map[string][]string), ends: make(map[string]time.Time),
				})
				if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("check() = %v, want %q in it", err, c.want)
				}
			})
		})
	}
}
