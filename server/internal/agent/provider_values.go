package agent

import (
	"bytes"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TokenCount is a number of tokens in JSON, in the range of the messages API. It is 0 if the value is
// not a number.
type TokenCount int64

// UnmarshalJSON decodes any JSON value. It never fails.
func (c *TokenCount) UnmarshalJSON(value []byte) error {
	*c = TokenCount(min(max(number(value), 0), math.MaxInt32))
	return nil
}

// Index is the index of an answer, a block or a call in JSON. It is 0 if the value is not a number.
// Some servers write it as 1.0 or "1".
type Index int64

// UnmarshalJSON decodes any JSON value. It never fails.
func (i *Index) UnmarshalJSON(value []byte) error {
	*i = Index(min(max(number(value), -1), math.MaxInt32))
	return nil
}

// number returns the value of a JSON number, or of a string that contains one.
func number(value []byte) float64 {
	n, err := strconv.ParseFloat(string(bytes.Trim(value, `"`)), 64)
	if err != nil || math.IsNaN(n) {
		return 0
	}
	return n
}

// ID is the id of a tool call in JSON. Some servers write it as a number; it is then the text of the number.
type ID string

// UnmarshalJSON decodes any JSON value. It never fails.
func (i *ID) UnmarshalJSON(value []byte) error {
	var text string
	switch c := value[0]; {
	case c == '-' || '0' <= c && c <= '9':
		text = string(value)
	case c == '"':
		if err := json.Unmarshal(value, &text); err != nil {
			return err // It cannot fail: the value is valid JSON.
		}
	}
	*i = ID(text)
	return nil
}

// MaxNativeBytes is the maximum size of the native form of an answer that an agent collects: no message can be
// larger.
const MaxNativeBytes = 3 << 20

// NativePiece returns the piece with the native form of an answer, or with no value if it is larger than
// MaxNativeBytes.
func NativePiece(kind string, value []byte) *parleyv1.RespondResponse {
	if len(value) > MaxNativeBytes {
		value = nil
	}
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Native{
		Native: &parleyv1.Native{Type: kind, Value: value},
	}}
}

// AppendJSON appends a JSON object to b: the fields in the order of their names, each with its value byte for byte.
func AppendJSON(b []byte, fields map[string]json.RawMessage) []byte {
	b = append(b, '{')
	for i, name := range slices.Sorted(maps.Keys(fields)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, Quote(name)...), ':'), fields[name]...)
	}
	return append(b, '}')
}

// Quote returns the text as a JSON string that is not escaped for HTML.
func Quote(text string) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(text); err != nil {
		return json.RawMessage(`""`) // It cannot fail: every string can be encoded.
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// SumTokens returns the sum of the counts, limited to the range of the messages API.
func SumTokens(counts ...TokenCount) int32 {
	var sum TokenCount
	for _, count := range counts {
		sum += min(max(count, 0), math.MaxInt32)
	}
	return int32(min(sum, math.MaxInt32))
}

// Unescape decodes the inside of a JSON string: the value without its quotes. Each invalid byte becomes
// U+FFFD.
func Unescape(inside string) string {
	if !strings.Contains(inside, `\`) && utf8.ValidString(inside) {
		return inside
	}
	var text string
	if err := json.Unmarshal([]byte(`"`+inside+`"`), &text); err != nil {
		return strings.ToValidUTF8(inside, "\uFFFD") // It cannot fail: the value was decoded as JSON.
	}
	return text
}

// Joiner concatenates text that arrives in the JSON strings of several chunks. Some servers split
// it within a character, others within an escaped surrogate pair. The beginning of such a character
// is retained until the rest arrives. The zero value is ready for use.
type Joiner struct {
	pending string // The retained part, still escaped.
}

// Add processes the inside of the next JSON string and returns the text that is complete.
func (j *Joiner) Add(inside string) string {
	inside = j.pending + inside
	complete := len(inside) - unfinished(inside)
	j.pending = inside[complete:]
	return Unescape(inside[:complete])
}

// Rest returns the retained part, which was never completed.
func (j *Joiner) Rest() string {
	rest := Unescape(j.pending)
	j.pending = ""
	return rest
}

// unfinished returns the number of bytes at the end of s that begin a character.
func unfinished(s string) int {
	for n := 1; n < utf8.UTFMax && n <= len(s); n++ {
		if tail := s[len(s)-n:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRuneInString(tail) {
				return n
			}
			break
		}
	}
	const escape = len(`\ud83d`)
	at := len(s) - escape
	if at < 0 || s[at:at+2] != `\u` {
		return 0
	}
	if backslashes := at + 1 - len(strings.TrimRight(s[:at+1], `\`)); backslashes%2 == 0 {
		return 0 // The backslash itself is escaped, so the text after it is plain.
	}
	if unit, err := strconv.ParseUint(s[at+2:], 16, 16); err != nil || unit < 0xD800 || unit > 0xDBFF {
		return 0
	}
	return escape
}
