package entry

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"github.com/parleyhq/parley/store"
)

// appendRemoval appends the entry of a CLEARED change to b and returns the time of the entry. Its metadata has
// no sequences if all messages after a sequence were removed.
func appendRemoval(b []byte, c *store.Change) (line []byte, at time.Time) {
	at = c.Time.UTC()
	b = AppendTimestamp(append(b, timestampKey...), at)
	b = appendText(append(b, conversationKey...), []byte(c.ConversationID))
	b = appendText(append(b, tenantKey...), []byte(cmp.Or(c.Tenant, DefaultTenant)))
	b = append(b, agentKey+"parley"+roleKey+"system"+contentKey...)
	b = append(b, describeRemoval(c)...)
	b = append(b, `","metadata":{"turn_number":0,`...)
	if sequences := c.Removal.Sequences; len(sequences) > 0 {
		key := `"removed_sequences":[`
		for _, s := range sequences {
			b = strconv.AppendInt(append(b, key...), int64(s), 10)
			key = ","
		}
		b = append(b, "],"...)
	} else {
		b = strconv.AppendInt(append(b, `"removed_after":`...), int64(c.Removal.After), 10)
		b = append(b, ',')
	}
	b = strconv.AppendInt(append(b, `"removed_count":`...), int64(c.Count), 10)
	return append(b, "}}\n"...), at
}

// describeRemoval returns the content of the entry of a removal. It needs no escapes.
func describeRemoval(c *store.Change) string {
	messages := "messages"
	if c.Count == 1 {
		messages = "message"
	}
	if len(c.Removal.Sequences) == 0 {
		return fmt.Sprintf("%d %s removed after message %d", c.Count, messages, c.Removal.After)
	}
	return fmt.Sprintf("%d %s removed", c.Count, messages)
}
