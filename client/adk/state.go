package adk

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"time"

	"google.golang.org/adk/v2/session"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	headerKey    = "adk/session/" // Of the conversation, with the nonce of the session: what header has.
	stateKey     = "adk/state"    // Of the conversation: the state of the session.
	recordPrefix = "adk/s"        // Both of them, the header first.
	mediaType    = "application/json"
)

// values are the values of a state as JSON. They stay as they were written: 1.0 of a Python program does not become 1.
type values map[string]json.RawMessage

// scope is the state of an app or of a user, and the revision of its record; 0 if there is none.
type scope struct {
	values   values
	revision int64
}

// states are what the server has of a session besides its events.
type states struct {
	header   header
	own      values
	app      scope
	user     scope
	nonce    string // Distinguishes the session from an earlier one with the same id.
	revision int64  // Of the header. Every append writes the header, and so makes other copies of the session stale.
}

// header is the value of the record headerKey.
type header struct {
	App     string       `json:"app"`
	User    string       `json:"user"`
	ID      string       `json:"id"`
	Updated epochSeconds `json:"updated"` // The time of the newest event, or of the creation.
	Events  int          `json:"events"`  // The number of events that were ever appended.
}

// epochSeconds is a time in the JSON that the frameworks of all languages read: seconds since 1970, as a number with
// six decimals.
type epochSeconds time.Time

// MarshalJSON returns the number of seconds.
func (e epochSeconds) MarshalJSON() ([]byte, error) {
	micros, sign := time.Time(e).UnixMicro(), ""
	if micros < 0 {
		micros, sign = -micros, "-"
	}
	return fmt.Appendf(nil, "%s%d.%06d", sign, micros/1e6, micros%1e6), nil
}

// UnmarshalJSON reads a number of seconds, rounded to microseconds.
func (e *epochSeconds) UnmarshalJSON(text []byte) error {
	seconds, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return fmt.Errorf("the time %s is not a number of seconds", text)
	}
	*e = epochSeconds(time.UnixMicro(int64(math.Round(seconds * 1e6))).UTC())
	return nil
}

// marshal returns a value as compact JSON, without the escapes for HTML that package json adds by default.
func marshal(value any) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), nil
}

// split divides a change of the state by the prefixes of its keys, which the parts do not have. It leaves out
// temporary keys.
func split(state map[string]any) (stateDelta, error) {
	delta := stateDelta{values{}, values{}, values{}}
	for key, value := range state {
		to, name := delta.own, key
		if after, ok := strings.CutPrefix(key, session.KeyPrefixApp); ok {
			to, name = delta.app, after
		} else if after, ok := strings.CutPrefix(key, session.KeyPrefixUser); ok {
			to, name = delta.user, after
		} else if strings.HasPrefix(key, session.KeyPrefixTemp) {
			continue
		}
		var err error
		if to[name], err = marshal(value); err != nil {
			return stateDelta{}, fmt.Errorf("state %q: %w", key, err)
		}
	}
	return delta, nil
}

// with returns the values after a change.
func (v values) with(delta values) values {
	changed := values{}
	maps.Copy(changed, v)
	maps.Copy(changed, delta)
	return changed
}

// merged returns the state as an agent sees it: all parts in one map, with the prefixes of their keys.
func (s states) merged() (map[string]any, error) {
	all := map[string]any{}
	for _, part := range []struct {
		prefix string
		values values
	}{{"", s.own}, {session.KeyPrefixApp, s.app.values}, {session.KeyPrefixUser, s.user.values}} {
		for key, text := range part.values {
			var value any
			if err := json.Unmarshal(text, &value); err != nil {
				return nil, fmt.Errorf("state %q: %w", part.prefix+key, err)
			}
			all[part.prefix+key] = value
		}
	}
	return all, nil
}

// write returns the write of a record as JSON.
func write(key string, value any, tenant bool) (*parleyv1.RecordWrite, error) {
	text, err := marshal(value)
	if err != nil {
		return nil, err
	}
	return &parleyv1.RecordWrite{Key: key, Value: text, MediaType: mediaType, TenantScope: tenant}, nil
}

// tenantKeys returns the keys of the records of an app and of a user.
func tenantKeys(app, user string) (ofApp, ofUser string, err error) {
	if ofApp, err = ConversationID("adk", "app", app); err != nil {
		return "", "", err
	}
	ofUser, err = ConversationID("adk", "user", app, user)
	return ofApp, ofUser, err
}

// stateDelta is a change of the state, by scope.
type stateDelta struct{ app, user, own values }

// after returns the states after a change, and the writes that store them. The first one is that of the header. A state
// is written if it has changed. revision and those of the scopes are still the old ones.
func (s states) after(delta stateDelta, next header) (states, []*parleyv1.RecordWrite, error) {
	s.header = next
	ofApp, ofUser, err := tenantKeys(next.App, next.User)
	if err != nil {
		return states{}, nil, err
	}
	s.own = s.own.with(delta.own)
	s.app.values, s.user.values = s.app.values.with(delta.app), s.user.values.with(delta.user)
	var writes []*parleyv1.RecordWrite
	for _, record := range []struct {
		key      string
		value    any
		changed  bool
		tenant   bool
		revision *int64
	}{
		{headerKey + s.nonce, next, true, false, &s.revision},
		{stateKey, s.own, len(delta.own) > 0, false, nil}, // The revision of the header guards it.
		{ofApp, s.app.values, len(delta.app) > 0, true, &s.app.revision},
		{ofUser, s.user.values, len(delta.user) > 0, true, &s.user.revision},
	} {
		if !record.changed {
			continue
		}
		w, err := write(record.key, record.value, record.tenant)
		if err != nil {
			return states{}, nil, err
		}
		w.IfRevision = record.revision
		writes = append(writes, w)
	}
	return s, writes, nil
}

// committed returns the states with the revisions of a commit. tenant is 0 if it wrote no state of the app or the user.
func (s states) committed(delta stateDelta, revision, tenant int64) states {
	s.revision = revision
	if len(delta.app) > 0 {
		s.app.revision = tenant
	}
	if len(delta.user) > 0 {
		s.user.revision = tenant
	}
	return s
}

// decodeScope returns the state of an app or of a user. A nil record is an empty state.
func decodeScope(record *parleyv1.Record) (scope, error) {
	decoded := scope{values{}, record.GetRevision()}
	if record == nil {
		return decoded, nil
	}
	if err := json.Unmarshal(record.GetValue(), &decoded.values); err != nil {
		return scope{}, fmt.Errorf("record %q: %w", record.GetKey(), err)
	}
	return decoded, nil
}
