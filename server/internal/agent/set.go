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

// maxNameBytes is the limit of the API for an agent's name.
const maxNameBytes = 128

// Entry is a configured agent.
type Entry struct {
	// Name identifies the agent in requests and conversations: 1 to 128 bytes.
	Name string
	// Kind is "echo", "command", "openai", "anthropic" or "remote".
	Kind string
	// Description is a text for people. It may be empty.
	Description string
	// SystemPrompt is used if neither the request nor the conversation has one.
	SystemPrompt string
	// Window limits the history that is passed to the agent if the request has no window. If nil,
	// there is no limit.
	Window *parleyv1.ContextWindow
	// Agent answers the requests.
	Agent Agent
}

// Set contains the configured agents. It does not change and is safe for concurrent use. Callers
// must not change an Entry that it returns.
type Set struct {
	entries     map[string]*Entry
	names       []string
	defaultName string
}

// NewSet returns a set of the entries. defaultName is the agent that answers if nothing else
// selects one. The error lists all faults: a name that is missing, too long, malformed or
// duplicate, an entry without an agent, or an unknown default. The set closes the agents; after an
// error, the caller must close them.
func NewSet(defaultName string, entries []Entry) (*Set, error) {
	s := &Set{entries: make(map[string]*Entry, len(entries)), defaultName: defaultName}
	var faults []error
	for i, entry := range entries {
		switch {
		case entry.Name == "":
			faults = append(faults, fmt.Errorf("agent %d of %d has no name", i+1, len(entries)))
		case len(entry.Name) > maxNameBytes:
			faults = append(faults, fmt.Errorf("agent %.32q…: the name has %d bytes, more than the limit of %d", entry.Name,
				len(entry.Name), maxNameBytes))
		case !utf8.ValidString(entry.Name):
			faults = append(faults, fmt.Errorf("agent %q: the name is not valid UTF-8", entry.Name))
		case s.entries[entry.Name] != nil:
			faults = append(faults, fmt.Errorf("agent %q is configured twice", entry.Name))
		default:
			s.entries[entry.Name] = &entry
		}
		if entry.Agent == nil {
			faults = append(faults, fmt.Errorf("agent %q has no implementation", entry.Name))
		}
	}
	s.names = slices.Sorted(maps.Keys(s.entries))
	if s.Default() == nil {
		faults = append(faults, fmt.Errorf("default agent %q is not configured; configured agents: %s", defaultName,
			strings.Join(s.names, ", ")))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return s, nil
}

// Get returns the agent with a name, and whether it exists.
func (s *Set) Get(name string) (*Entry, bool) {
	entry, ok := s.entries[name]
	return entry, ok
}

// Default returns the agent that answers if nothing else selects one.
func (s *Set) Default() *Entry { return s.entries[s.defaultName] }

// Names returns a new slice with the names of all agents in byte order.
func (s *Set) Names() []string { return slices.Clone(s.names) }

// Infos returns new messages that describe all agents, in the order of Names.
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

// Close closes all agents in the order of Names and returns all errors.
func (s *Set) Close() error {
	var faults []error
	for _, name := range s.names {
		if err := s.entries[name].Agent.Close(); err != nil {
			faults = append(faults, fmt.Errorf("agent %q: %w", name, err))
		}
	}
	return errors.Join(faults...)
}
