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
	// maxFaults and maxNameBytes limit the reported errors and names of arguments.
	maxFaults    = 16
	maxNameBytes = 64
)

// arguments are the arguments of one call. A tool reads each of them by name and type, then calls check, which
// returns all errors. An argument with the value null counts as missing.
type arguments struct {
	tool   string
	values map[string]json.RawMessage
	names  []string // The names that the tool has read, which are those that it knows.
	faults []fault
}

// fault is an error of one argument.
type fault struct{ argument, problem string }

// readArguments decodes the arguments of a call.
func readArguments(params *sdk.CallToolParamsRaw) (*arguments, error) {
	a := &arguments{tool: params.Name}
	if len(params.Arguments) == 0 {
		return a, nil
	}
	if err := json.Unmarshal(params.Arguments, &a.values); err != nil {
		a.addFault("arguments", "must be an object, not "+kindOf(params.Arguments))
		return nil, a.check()
	}
	return a, nil
}

// required returns a string argument. A missing or empty one is a fault.
func (a *arguments) required(name string) string {
	before := len(a.faults)
	value := a.text(name)
	if value == "" && len(a.faults) == before {
		a.addFault(name, "is required and must not be empty")
	}
	return value
}

// text returns a string argument, or "" if it is missing.
func (a *arguments) text(name string) string {
	var value string
	a.read(name, "a string", &value)
	return value
}

// flag returns a boolean argument, or false if it is missing.
func (a *arguments) flag(name string) bool {
	var value bool
	a.read(name, "true or false", &value)
	return value
}

// number returns an integer argument, or 0 if it is missing.
func (a *arguments) number(name string) int32 {
	var value float64
	a.read(name, "a whole number", &value)
	if value != math.Trunc(value) || math.Abs(value) > math.MaxInt32 {
		a.addFault(name, fmt.Sprintf("must be a whole number of 32 bits, not %g", value))
		return 0
	}
	return int32(value)
}

// read decodes an argument into value. It does not change value if the argument is missing.
func (a *arguments) read(name, want string, value any) {
	a.names = append(a.names, name)
	raw, found := a.values[name]
	if !found {
		return
	}
	if err := json.Unmarshal(raw, value); err != nil {
		a.addFault(name, "must be "+want+", not "+kindOf(raw))
	}
}

// addFault records an error of an argument.
func (a *arguments) addFault(name, problem string) {
	a.faults = append(a.faults, fault{name, problem})
}

// check returns an argumentError with all faults, including arguments that the tool has not read.
func (a *arguments) check() error {
	var unknown []string
	for name := range a.values {
		if !slices.Contains(a.names, name) {
			unknown = append(unknown, shortened(name, maxNameBytes))
		}
	}
	slices.Sort(unknown)
	for _, name := range unknown {
		a.addFault(name, "is unknown, "+a.tool+" accepts "+strings.Join(a.names, ", "))
	}
	if len(a.faults) == 0 {
		return nil
	}
	return &argumentError{a.faults[:min(len(a.faults), maxFaults)]}
}

// kindOf returns the kind of a JSON value for error messages.
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
		return "a number" // Null never gets here, because it is valid for every type.
	}
}
