package openai

import (
	"fmt"
	"strings"
	"testing"
)

// TestManyMembers: an object that fills a body is parsed in one pass. A search for each member would end with the time
// limit of the test.
func TestManyMembers(t *testing.T) {
	const count = 400_000
	var b strings.Builder
	b.WriteByte('{')
	for i := range count {
		fmt.Fprintf(&b, `"%06d":0,`, i)
	}
	o, err := parseObject([]byte(b.String()+`"last":0}`), "body")
	if err != nil || len(o) != count+1 {
		t.Errorf("parseObject = %d members, %v, want %d", len(o), err, count+1)
	}
	if _, err := parseObject([]byte(b.String()+`"000000":0}`), "body"); err == nil ||
		!strings.Contains(err.Error(), "twice") {
		t.Errorf("parseObject with a member twice = %v, want an error", err)
	}
}
