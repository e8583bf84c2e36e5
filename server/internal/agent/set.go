package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// maxNameBytes is what the API allows an agent's name to have.
const maxNameBytes = 128

// Entry is one configured agent and what the configuration says of it.
type Entry struct {
	// Name by which requests and conversations call the agent; 1 to 128 bytes.
	Name string
	// Kind of the agent: "echo", "command", "openai", "anthropic" or "remote".
	Kind string
	// Description is for people; may be empty.
	Description string
	// SystemPrompt is used where neither the request nor the conversation has one.
	SystemPrompt string
	// Window bounds the history that the agent is given where the request sets none;
	// nil is unbounded.
	Window *parleyv1.ContextWindow
	// Agent does the work.
	Agent Agent
}

// Set is the configured agents. It never changes, so many goroutines may use it;
// nobody may change an Entry that it has given out.
type Set struct {
	entries     map[string]*Entry
	names       []string
	defaultName string
}

// NewSet makes a set of the entries, of which defaultName names the one that answers
// when nothing else names an agent. Every fault is in the one error that it returns:
// a missing, overlong, malformed or double name, an entry without an agent, a default
// that no entry has. The set closes the agents; without a set, the caller does.
func NewSet(defaultName string, entries []Entry) (*Set, error) {
	s := &Set{entries: make(map[string]*Entry, len(entries)), defaultName: defaultName}
	var faults []error
	for i, entry := range entries {
		switch {
		case entry.Name == "":
			faults = append(faults, fmt.Errorf("agent %d of %d has no name", i+1, len(entries)))
		case len(entry.Name) > maxNameBytes:
			faults = append(faults, fmt.Errorf("agent %.32q…: the name has %d bytes, more than %d", entry.Name, len(entry.Name), maxNameBytes))
		case !utf8.ValidString(entry.Name):
			faults = append(faults, fmt.Errorf("agent %q: the name is not valid UTF-8", entry.Name))
		case s.entries[entry.Name] != nil:
			faults = append(faults, fmt.Errorf("agent %q is there twice", entry.Name))
		default:
			s.entries[entry.Name] = &entry
		}
		if entry.Agent == nil {
			faults = append(faults, fmt.Errorf("agent %q has nothing behind it", entry.Name))
		}
	}
	s.names = slices.Sorted(maps.Keys(s.entries))
	if s.Default() == nil {
		faults = append(faults, fmt.Errorf("default agent %q is not configured; there are: %s", defaultName, strings.Join(s.names, ", ")))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return s, nil
}

// Get returns the agent of that name, and whether there is one.
func (s *Set) Get(name string) (*Entry, bool) {
	entry, ok := s.entries[name]
	return entry, ok
}

// Default returns the agent that answers when nothing else names one.
func (s *Set) Default() *Entry { return s.entries[s.defaultName] }

// Names returns the names of all agents in byte order, in a slice of the caller's own.
func (s *Set) Names() []string { return slices.Clone(s.names) }

// Infos describes all agents in the order of Names, in messages of the caller's own.
func (s *Set) Infos() []*parleyv1.AgentInfo {
	infos := make([]*parleyv1.AgentInfo, 0, len(s.names))
	for _, name := range s.names {
		entry := s.entries[name]
		infos = append(infos, &parleyv1.AgentInfo{
			Name:        name,
			Kind:        entry.Kind,
			Description: entry.Description,
			IsDefault:   name == s.defaultName,
		})
	}
	return infos
}

// Close closes every agent, in the order of Names, and returns all that went wrong.
func (s *Set) Close() error {
	var faults []error
	for _, name := range s.names {
		if err := s.entries[name].Agent.Close(); err != nil {
			faults = append(faults, fmt.Errorf("agent %q: %w", name, err))
		}
	}
	return errors.Join(faults...)
}
