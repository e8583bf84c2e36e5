package agent

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
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
