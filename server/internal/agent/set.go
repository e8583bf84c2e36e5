package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// maxNameBytes is the limit of the API for an agent's name.
const maxNameBytes = 128

// Entry is a configured agent.
type Entry struct {
	// Name identifies the agent in requests and conversations: 1 to 128 bytes.
	Name string
	// Kind is "echo", "command", "openai", "anthropic", "remote" or "a2a".
	Kind string
	// Description is a text for people. It may be empty.
	Description string
	// SystemPrompt is used if neither the request nor the conversation has one.
	SystemPrompt string
	// Window limits the history that is passed to the agent if the request has no window. If nil,
	// there is no limit.
	Window *parleyv1.ContextWindow
	// Record is the key of the record of the conversation that the agent reads with [Record]. If empty, it reads none.
	Record string
	// Agent answers the requests.
	Agent Agent

	use *use // set by the Set; copies of the Entry share it
}

// use counts the turns that use an agent. Its fields are protected by Set.mu.
type use struct {
	count    int
	replaced bool
}

// Set contains the configured agents and is safe for concurrent use. Callers must not change an Entry that it
// returns.
type Set struct {
	mu      sync.Mutex
	current *configured
	// replaced are the agents that are not configured any more but still answer.
	replaced map[*use]*Entry
	onClosed func(name string, err error) // of the last Replace
}

// configured are the agents of one configuration. It does not change.
type configured struct {
	entries     map[string]*Entry
	names       []string
	defaultName string
}

// NewSet returns a set of the entries. defaultName is the agent that answers if nothing else
// selects one. The error lists all faults: a name that is missing, too long, malformed or
// duplicate, an entry without an agent, or an unknown default. The set closes the agents; after an
// error, the caller must close them.
func NewSet(defaultName string, entries []Entry) (*Set, error) {
	c := &configured{entries: make(map[string]*Entry, len(entries)), defaultName: defaultName}
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
		case c.entries[entry.Name] != nil:
			faults = append(faults, fmt.Errorf("agent %q is configured twice", entry.Name))
		default:
			c.entries[entry.Name] = &entry
		}
		if entry.Agent == nil {
			faults = append(faults, fmt.Errorf("agent %q has no implementation", entry.Name))
		}
		if entry.use == nil {
			entry.use = new(use)
		}
	}
	c.names = slices.Sorted(maps.Keys(c.entries))
	if c.entries[defaultName] == nil {
		faults = append(faults, fmt.Errorf("default agent %q is not configured; configured agents: %s", defaultName,
			strings.Join(c.names, ", ")))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return &Set{current: c, replaced: make(map[*use]*Entry)}, nil
}

// Replace replaces all agents by those of next, which must not be used afterwards. An agent continues if next contains
// a copy of its Entry; the name and the other fields may differ. The other agents are closed when the last turn that
// holds them ends; closed is then called with the result.
func (s *Set) Replace(next *Set, closed func(name string, err error)) {
	continued := make(map[*use]bool, len(next.current.entries))
	for _, entry := range next.current.entries {
		continued[entry.use] = true
	}
	s.mu.Lock()
	var unused []*Entry
	for _, entry := range s.current.entries {
		switch {
		case continued[entry.use]:
		case entry.use.count == 0:
			unused = append(unused, entry)
			entry.use.replaced = true
		default:
			s.replaced[entry.use] = entry
			entry.use.replaced = true
		}
	}
	s.current, s.onClosed = next.current, closed
	s.mu.Unlock()
	for _, entry := range unused {
		closed(entry.Name, entry.Agent.Close())
	}
}

// Hold prevents an agent from being closed until Release is called. It returns false if the agent has been
// replaced; then the caller must choose again.
func (s *Set) Hold(entry *Entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if entry.use.replaced {
		return false
	}
	entry.use.count++
	return true
}

// Release undoes one Hold. If the agent has been replaced and no other turn holds it, Release closes it.
func (s *Set) Release(entry *Entry) {
	s.mu.Lock()
	entry.use.count--
	_, waits := s.replaced[entry.use]
	unused, closed := waits && entry.use.count == 0, s.onClosed
	if unused {
		delete(s.replaced, entry.use)
	}
	s.mu.Unlock()
	if unused {
		closed(entry.Name, entry.Agent.Close())
	}
}

// configured returns the current configuration.
func (s *Set) configured() *configured {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// Get returns the agent with a name, and whether it exists.
func (s *Set) Get(name string) (*Entry, bool) {
	entry, ok := s.configured().entries[name]
	return entry, ok
}

// Default returns the agent that answers if nothing else selects one.
func (s *Set) Default() *Entry {
	c := s.configured()
	return c.entries[c.defaultName]
}

// Names returns a new slice with the names of all agents in byte order.
func (s *Set) Names() []string { return slices.Clone(s.configured().names) }

// Infos returns new messages that describe all agents, in the order of Names.
func (s *Set) Infos() []*parleyv1.AgentInfo {
	c := s.configured()
	infos := make([]*parleyv1.AgentInfo, 0, len(c.names))
	for _, name := range c.names {
		entry := c.entries[name]
		infos = append(infos, &parleyv1.AgentInfo{
			Name:        name,
			Kind:        entry.Kind,
			Description: entry.Description,
			IsDefault:   name == c.defaultName,
		})
	}
	return infos
}

// Close closes all agents in the order of Names, also those that have been replaced, and returns all errors. No
// turn may use them.
func (s *Set) Close() error {
	c := s.configured()
	var faults []error
	closeAgent := func(entry *Entry) {
		if err := entry.Agent.Close(); err != nil {
			faults = append(faults, fmt.Errorf("agent %q: %w", entry.Name, err))
		}
	}
	for _, name := range c.names {
		closeAgent(c.entries[name])
	}
	for _, entry := range s.replaced {
		closeAgent(entry)
	}
	return errors.Join(faults...)
}
