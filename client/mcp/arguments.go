package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// Of what is wrong with the arguments of a call, this much is told.
	maxFaults    = 16
	maxNameBytes = 64
)

// arguments are those of one call. They are taken one by one, by name and type; then check
// tells of all that was wrong. One that is null counts as left out.
type arguments struct {
	tool   string
	values map[string]json.RawMessage
	names  []string // Taken so far: those that the tool knows.
	faults []fault
}

// fault is what is wrong with one argument.
type fault struct{ argument, problem string }

func readArguments(params *sdk.CallToolParamsRaw) (*arguments, error) {
	a := &arguments{tool: params.Name}
	if len(params.Arguments) == 0 {
		return a, nil
	}
	if err := json.Unmarshal(params.Arguments, &a.values); err != nil {
		a.fault("arguments", "must be an object, not "+kindOf(params.Arguments))
		return nil, a.check()
	}
	return a, nil
}

// required is a string that must be there, and not be empty.
func (a *arguments) required(name string) string {
	before := len(a.faults)
	value := a.text(name)
	if value == "" && len(a.faults) == before {
		a.fault(name, "is required and must not be empty")
	}
	return value
}

// text is a string, empty when left out.
func (a *arguments) text(name string) string {
	var value string
	a.take(name, "a string", &value)
	return value
}

// flag is false when left out.
func (a *arguments) flag(name string) bool {
	var value bool
	a.take(name, "true or false", &value)
	return value
}

// number is a whole number, 0 when left out.
func (a *arguments) number(name string) int32 {
	var value float64
	a.take(name, "a whole number", &value)
	if value != math.Trunc(value) || math.Abs(value) > math.MaxInt32 {
		a.fault(name, fmt.Sprintf("must be a whole number of 32 bits, not %g", value))
		return 0
	}
	return int32(value)
}

// take reads the argument into value, which stays as it is when there is none.
func (a *arguments) take(name, want string, value any) {
	a.names = append(a.names, name)
	raw, found := a.values[name]
	if !found {
		return
	}
	if err := json.Unmarshal(raw, value); err != nil {
		a.fault(name, "must be "+want+", not "+kindOf(raw))
	}
}

func (a *arguments) fault(name, problem string) {
	a.faults = append(a.faults, fault{name, problem})
}

// check returns an argumentError with all that is wrong, names that nobody took included.
func (a *arguments) check() error {
	var unknown []string
	for name := range a.values {
		if !slices.Contains(a.names, name) {
			unknown = append(unknown, shortened(name, maxNameBytes))
		}
	}
	slices.Sort(unknown)
	for _, name := range unknown {
		a.fault(name, "is unknown, "+a.tool+" takes "+strings.Join(a.names, ", "))
	}
	if len(a.faults) == 0 {
		return nil
	}
	return &argumentError{a.faults[:min(len(a.faults), maxFaults)]}
}

// kindOf says what a JSON value is.
func kindOf(raw json.RawMessage) string {
	switch bytes.TrimSpace(raw)[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return "true or false"
	default:
		return "a number" // Null is taken for anything.
	}
}
