package anthropic

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/parleyhq/parley/server/internal/agent"
)

// TestNativeMemory: the parts collected for a native form stay within 3 MiB, however long an answer thinks.
func TestNativeMemory(t *testing.T) {
	t.Parallel()
	var c content
	collected := 0
	add := func(data string) {
		var e event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatal(err)
		}
		c.add(&e, []byte(data))
		size := 0
		for _, b := range c.blocks {
			size += b.text.Len() + b.thinking.Len() + b.input.Len()
		}
		collected = max(collected, size)
	}
	part := strings.Repeat("x", 1<<19)
	add(`{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}`)
	for range 20 {
		add(`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"` + part + `"}}`)
		add(`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"` + part + `"}}`)
	}
	if most := agent.MaxNativeBytes + len(part); collected > most || collected < agent.MaxNativeBytes/2 || c.blocks != nil {
		t.Errorf("collected %d bytes and has %d blocks at the end, want at most %d bytes and none", collected, len(c.blocks), most)
	}
}
