package anthropic

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// nativeType is the Native.type of a message whose value is the content of an answer: a JSON array of its blocks.
const nativeType = "anthropic.content"

// Types of blocks.
const (
	blockText             = "text"
	blockToolUse          = "tool_use"
	blockThinking         = "thinking"
	blockRedactedThinking = "redacted_thinking"
)

// content collects the blocks of an answer as the API sends them. The zero value is ready for use.
type content struct {
	blocks   []*contentBlock
	bytes    int
	tooLarge bool // There are more than agent.MaxNativeBytes; blocks is nil.
	isOpaque bool // A block is neither text nor a call.
	unknown  bool // A part cannot be added to its block, because this version does not know it.
}

// contentBlock is a block that is being received.
type contentBlock struct {
	index     agent.Index
	kind      string
	fields    map[string]json.RawMessage // As they were at the start.
	text      strings.Builder            // Of text blocks.
	thinking  strings.Builder            // The inside of a JSON string.
	input     strings.Builder            // The inside of a JSON string that contains JSON.
	signature json.RawMessage
	citations []json.RawMessage
}

// add processes an event, which was decoded from data.
func (c *content) add(e *event, data []byte) {
	if c.tooLarge || c.unknown {
		return
	}
	switch e.Type {
	case "content_block_start":
		var start struct {
			Block map[string]json.RawMessage `json:"content_block"`
		}
		c.unknown = json.Unmarshal(data, &start) != nil || start.Block == nil
		b := &contentBlock{index: e.Index, kind: e.ContentBlock.Type, fields: start.Block}
		b.text.WriteString(e.ContentBlock.Text)
		c.blocks, c.bytes = append(c.blocks, b), c.bytes+len(data)
		c.isOpaque = c.isOpaque || b.kind != blockText && b.kind != blockToolUse
	case "content_block_delta":
		c.addTo(e)
	}
	if c.bytes > agent.MaxNativeBytes {
		c.tooLarge, c.blocks = true, nil
	}
}

// addTo adds a part to the newest block with its index.
func (c *content) addTo(e *event) {
	i := len(c.blocks) - 1
	for i >= 0 && c.blocks[i].index != e.Index {
		i--
	}
	if i < 0 {
		c.unknown = true
		return
	}
	b, d := c.blocks[i], &e.Delta
	switch d.Type {
	case "text_delta":
		b.text.WriteString(d.Text)
	case "thinking_delta":
		b.thinking.WriteString(inside(d.Thinking))
	case "input_json_delta":
		b.input.WriteString(inside(d.PartialJSON))
	case "signature_delta":
		b.signature = d.Signature
	case "citations_delta":
		b.citations = append(b.citations, d.Citation)
	default:
		c.unknown = true
	}
	c.bytes += len(d.Text) + len(d.Thinking) + len(d.PartialJSON) + len(d.Signature) + len(d.Citation)
}

// inside returns a JSON string without its quotes, or "" if the value is not a string.
func inside(value json.RawMessage) string {
	if len(value) < 2 || value[0] != '"' {
		return ""
	}
	return string(value[1 : len(value)-1])
}

// pieces returns the native form of a complete answer, if the other fields of a message do not say the same: if it
// has thinking, or the calls and results of tools that the provider runs itself.
func (c *content) pieces() []*parleyv1.RespondResponse {
	if !c.isOpaque || c.unknown {
		return nil
	}
	if c.tooLarge {
		return []*parleyv1.RespondResponse{agent.NativePiece(nativeType, nil)}
	}
	value := []byte{'['}
	for i, b := range c.blocks {
		if !b.complete() {
			return nil
		}
		if i > 0 {
			value = append(value, ',')
		}
		value = agent.AppendJSON(value, b.fields)
	}
	value = append(value, ']')
	if nativeBlocks(value, nil) == nil {
		return nil
	}
	return []*parleyv1.RespondResponse{agent.NativePiece(nativeType, value)}
}

// complete sets the fields of a block to what was received. It reports false if the answer ended within its input.
func (b *contentBlock) complete() bool {
	if b.kind == blockText {
		b.fields["text"] = agent.Quote(b.text.String())
	}
	if b.thinking.Len() > 0 {
		start := inside(b.fields["thinking"])
		b.fields["thinking"] = json.RawMessage(`"` + start + b.thinking.String() + `"`)
	}
	if b.signature != nil {
		b.fields["signature"] = b.signature
	}
	if len(b.citations) > 0 {
		b.fields["citations"] = slices.Concat([]byte{'['}, bytes.Join(rawBytes(b.citations), []byte{','}), []byte{']'})
	}
	if b.kind == blockToolUse && len(b.fields["input"]) == 0 {
		b.fields["input"] = json.RawMessage("{}")
	}
	if b.input.Len() == 0 {
		return true
	}
	input := strings.TrimSpace(agent.Unescape(b.input.String()))
	b.fields["input"] = json.RawMessage(input)
	return json.Valid([]byte(input))
}

func rawBytes(values []json.RawMessage) [][]byte {
	all := make([][]byte, len(values))
	for i, value := range values {
		all[i] = value
	}
	return all
}

// ownBlocks returns the blocks of an answer as the API sent them. It returns nil if the message has none of this kind,
// or if they do not say the same as its other fields.
func ownBlocks(message *parleyv1.Message) []block {
	native := message.GetNative()
	if message.GetRole() != parleyv1.Role_ROLE_ASSISTANT || native.GetType() != nativeType {
		return nil
	}
	return nativeBlocks(native.GetValue(), message)
}

// nativeBlocks returns the blocks in the native form of a message, or nil if the API would refuse them in a request.
// If message is not nil, they must say the same as its other fields.
//
// The API refuses text that contains only white space, so nativeBlocks leaves out such a block. It also refuses
// content that ends with thinking, calls whose ids have other characters than those of toolID, and
// input that is not an object.
func nativeBlocks(value []byte, message *parleyv1.Message) []block {
	var raw []json.RawMessage
	if json.Unmarshal(value, &raw) != nil {
		return nil
	}
	var text strings.Builder
	var calls []*parleyv1.ToolCall
	var blocks []block
	last := ""
	for _, value := range raw {
		var b struct {
			Type, Text, ID, Name string
			Input                json.RawMessage
		}
		if json.Unmarshal(value, &b) != nil || b.Type == "" {
			return nil
		}
		switch b.Type {
		case blockText:
			text.WriteString(b.Text)
			if isBlank(b.Text) {
				continue
			}
		case blockToolUse:
			if toolID(b.ID) != b.ID || !bytes.HasPrefix(b.Input, []byte("{")) {
				return nil
			}
			calls = append(calls, &parleyv1.ToolCall{Id: b.ID, Name: b.Name, Arguments: string(b.Input)})
		}
		last = b.Type
		blocks = append(blocks, block{Type: b.Type, raw: value})
	}
	if last == blockThinking || last == blockRedactedThinking {
		return nil
	}
	if message != nil && !agent.IsWritten(message, text.String(), calls) {
		return nil
	}
	return blocks
}
