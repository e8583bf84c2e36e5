package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// labelsFlag is a flag value that collects labels. Each occurrence of the flag is one label, so that a value may
// contain any characters. If clearable is true, an empty occurrence removes the labels before it; otherwise it is an
// error.
type labelsFlag struct {
	labels    *map[string]string
	clearable bool
}

// Set adds the label key=value.
func (f labelsFlag) Set(s string) error {
	if s == "" && f.clearable {
		*f.labels = nil
		return nil
	}
	key, value, found := strings.Cut(s, "=")
	if !found || key == "" {
		return errors.New("want key=value")
	}
	if *f.labels == nil {
		*f.labels = map[string]string{}
	}
	(*f.labels)[key] = value
	return nil
}

// String returns "", because the flag has no default.
func (f labelsFlag) String() string { return "" }

// Type returns the name of the value in help texts.
func (f labelsFlag) Type() string { return "key=value" }

// ttlFlag is a flag value for a time to live. It is nil if the flag is not set or empty.
type ttlFlag struct{ ttl **durationpb.Duration }

// Set parses a duration, or unsets the time to live if s is empty.
func (f ttlFlag) Set(s string) error {
	*f.ttl = nil
	if s == "" {
		return nil
	}
	var parsed duration
	err := parsed.Set(s)
	if err == nil {
		*f.ttl = durationpb.New(time.Duration(parsed))
	}
	return err
}

// String returns "", because the flag has no default.
func (f ttlFlag) String() string { return "" }

// Type returns the name of the value in help texts.
func (f ttlFlag) Type() string { return "duration" }

// revisionFlag is a flag value for the revision that a record must have. It is nil if the flag is not set.
type revisionFlag struct{ revision **int64 }

// Set parses a revision.
func (f revisionFlag) Set(s string) error {
	revision, err := strconv.ParseInt(s, 10, 64)
	if err != nil || revision < 0 {
		return errors.New("want a revision, such as parley record get --revision prints; 0 if the record must not exist")
	}
	*f.revision = &revision
	return nil
}

// String returns "", because the flag has no default.
func (f revisionFlag) String() string { return "" }

// Type returns the name of the value in help texts.
func (f revisionFlag) Type() string { return "revision" }

// statesFlag is a flag value that collects states of turns, separated by commas.
type statesFlag struct{ states *[]parleyv1.TurnState }

// Set adds the states that s names, such as "running,failed". Upper and lower case are the same.
func (f statesFlag) Set(s string) error {
	for name := range strings.SplitSeq(s, ",") {
		state, ok := parleyv1.TurnState_value["TURN_STATE_"+strings.ToUpper(name)]
		if !ok || state == 0 {
			return fmt.Errorf("%q is not a state; use %s", name, strings.Join(stateNames(), ", "))
		}
		*f.states = append(*f.states, parleyv1.TurnState(state))
	}
	return nil
}

// stateNames returns the names of all states of turns, as --state accepts them.
func stateNames() []string {
	var names []string
	for state := parleyv1.TurnState(1); parleyv1.TurnState_name[int32(state)] != ""; state++ {
		names = append(names, stateName(state))
	}
	return names
}

// String returns "", because the flag has no default.
func (f statesFlag) String() string { return "" }

// Type returns the name of the value in help texts.
func (f statesFlag) Type() string { return "states" }
