package entry

import (
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"time"
)

// AppendLoss appends the entry that reports lost entries to b. timestamp is that of the next entry, so that
// both belong to the same day. since is the time of the first loss. cause may be nil.
func AppendLoss(b, timestamp []byte, lost int64, since time.Time, cause error) []byte {
	text := fmt.Sprintf("%d lines could not be written since %s", lost, since.UTC().Format(TimestampLayout))
	if errno, ok := errors.AsType[syscall.Errno](cause); ok {
		text += ": " + errno.Error()
	}
	b = append(append(b, timestampKey...), timestamp...)
	b = append(append(b, conversationKey...), ReservedID...)
	b = append(append(b, tenantKey...), ReservedID...)
	b = appendText(append(b, `","agent":"parley","role":"system","content":"`...), []byte(text))
	b = strconv.AppendInt(append(b, `","metadata":{"turn_number":0,"lost_lines":`...), lost, 10)
	b = AppendTimestamp(append(b, `,"lost_since":"`...), since.UTC())
	return append(b, "\"}}\n"...)
}
