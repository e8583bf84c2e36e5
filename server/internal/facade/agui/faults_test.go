package agui

import (
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
)

// TestManyFaults checks that a body with a fault in each of its many elements is refused in one pass, with the first
// faults. If all were collected, the test would end with its time limit.
func TestManyFaults(t *testing.T) {
	const bodyBytes = 1 << 20
	for _, element := range []string{
		"0", "{}", `{"role":"user","content":[` + strings.Repeat("0,", 999) + `0]}`,
		`{"role":"assistant","toolCalls":[` + strings.Repeat("{},", 999) + `0]}`,
	} {
		body := `{"threadId":"t","messages":[` + strings.Repeat(element+",", bodyBytes/(len(element)+1)-10) + `0]}`
		_, err := parseInput([]byte(body))
		var fields []*errdetails.BadRequest_FieldViolation
		for _, detail := range status.Convert(err).Details() {
			if bad, ok := detail.(*errdetails.BadRequest); ok {
				fields = bad.GetFieldViolations()
			}
		}
		if len(fields) != maxFaults || !strings.Contains(err.Error(), "messages[0]") {
			t.Errorf("%.20s: %d faults, want %d: %.200v", element, len(fields), maxFaults, err)
		}
	}
}
