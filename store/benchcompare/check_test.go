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

// inMemory keeps conversations in a map, as add says.
type inMemory struct {
	add  func(old []string, message string) []string
	life time.Duration // from the first append on if it is negative

	mu       sync.Mutex
	messages map[string][]string
	ends     map[string]time.Time
}

func (m *inMemory) append(_ context.Context, id, message string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.messages[id] = m.add(m.messages[id], message)
	if m.life > 0 || m.ends[id].IsZero() {
		m.ends[id] = time.Now().Add(max(m.life, -m.life))
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

// TestCheck finds each fault, and none where there is none.
func TestCheck(t *testing.T) {
	keeping := func(n int) func([]string, string) []string {
		return func(old []string, message string) []string {
			now := append(slices.Clone(old), message)
			return now[max(0, len(now)-n):]
		}
	}
	well := keeping(keep)
	// when does something else with one message of those who write at once.
	when := func(beginning string, do func([]string, string) []string) func([]string, string) []string {
		return func(old []string, message string) []string {
			if strings.HasPrefix(message, beginning) {
				return do(old, message)
			}
			return well(old, message)
		}
	}
	for name, c := range map[string]struct {
		add  func([]string, string) []string
		life time.Duration
		want string // in the error; empty: none
	}{
		"good":  {well, life, ""},
		"more":  {keeping(keep + 1), life, "not the newest"},
		"fewer": {keeping(keep - 1), life, "not the newest"},
		"backward": {func(old []string, message string) []string {
			return slices.Insert(slices.Clone(old), 0, message)[:min(len(old)+1, keep)]
		}, life, "not the newest"},
		"short":   {well, life / 2, "it ends in 30m0s"},
		"endless": {well, 2 * life, "it ends in 2h0m0s"},
		"fixed":   {well, -life, "it ends in 59m57s"},
		"lost":    {when("writer 2 message 3 ", func(old []string, _ string) []string { return old }), life, "has 19 messages"},
		"doubled": {when("writer 2 message 4 ", func(old []string, message string) []string {
			return well(well(old, message), message)
		}), life, "belongs"},
		"late": {when("writer 1 message 4 ", func(old []string, message string) []string {
			return slices.Insert(slices.Clone(old), 0, message)
		}), life, "belongs"},
		"changed": {when("writer 3 message 1 ", func(old []string, message string) []string {
			return well(old, strings.ToUpper(message))
		}), life, "nobody wrote"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := check(t.Context(), &inMemory{add: c.add, life: c.life, messages: make(map[string][]string), ends: make(map[string]time.Time)})
				if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("check: %v, want %q in it", err, c.want)
				}
			})
		})
	}
}
