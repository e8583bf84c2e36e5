package openai

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Keys of the metadata of a user's message, or of a tool result, with what a response has besides its turn.
const (
	ownMetadata     = "openai."
	previousKey     = ownMetadata + "previous_response_id"
	backgroundKey   = ownMetadata + "background"
	instructionsKey = ownMetadata + "instructions"
	inputCountKey   = ownMetadata + "input_count" // Number of messages that the request added.

	maxMetadataValue = 1024

	maxInput = 1000 // Items of the input.
)

// params are the checked parameters of a request for a response.
type params struct {
	model, conversation, previous string
	instructions                  *string
	metadata                      map[string]string
	background, stream, store     bool

	before      []item // Items before the ones that are answered.
	results     []*parleyv1.ToolResult
	content     string // Of the user's message at the end, if hasUser is set.
	attachments []*parleyv1.Attachment
	hasUser     bool
}

// ignoredParams do not change the answer.
func ignoredParams() []string {
	return []string{
		"user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "stream_options",
	}
}

// servedParams are the parameters that have an effect.
func servedParams() []string {
	return []string{
		"model", "input", "conversation", "previous_response_id", "instructions", "metadata", "background", "stream", "store",
	}
}

// neutralParams are the parameters of which only values without an effect are accepted, with these values. The agents
// of the server have their own settings and tools.
func neutralParams() map[string][]string {
	return map[string][]string{
		"tools": {"[]"}, "tool_choice": {`"auto"`}, "parallel_tool_calls": {"true"}, "truncation": {`"auto"`},
		"service_tier": {`"auto"`, `"default"`}, "include": {"[]", `["message.input_image.image_url"]`},
		"reasoning": {"{}"}, "text": {"{}", `{"format":{"type":"text"}}`},
		"temperature": nil, "top_p": nil, "top_logprobs": {"0"}, "max_output_tokens": nil, "max_tool_calls": nil,
		"prompt": nil, "context_management": {"[]"}, "moderation": nil, "image": nil, "access_programs": nil,
		"background_options": nil,
	}
}

// parseParams checks the body of a request for a response.
func parseParams(text []byte) (*params, error) {
	body, err := parseBody(text, false)
	if err != nil {
		return nil, err
	}
	if err := checkNames(body); err != nil {
		return nil, err
	}
	p := &params{store: true}
	for _, field := range []struct {
		name, want string
		into       any
	}{
		{"model", "a string", &p.model},
		{"previous_response_id", "a string", &p.previous},
		{"instructions", "a string", &p.instructions},
		{"background", "a boolean", &p.background},
		{"stream", "a boolean", &p.stream},
		{"store", "a boolean", &p.store},
	} {
		if err := body.decode("", field.name, field.want, field.into); err != nil {
			return nil, err
		}
	}
	if p.metadata, err = parseMetadata(body.get("metadata")); err != nil {
		return nil, err
	}
	for key := range p.metadata {
		if strings.HasPrefix(key, ownMetadata) {
			return nil, invalid(join("metadata", key), "begins with %q, which is reserved", ownMetadata)
		}
	}
	if p.conversation, err = parseConversation(body.get("conversation")); err != nil {
		return nil, err
	}
	switch {
	case p.conversation != "" && p.previous != "":
		return nil, invalid("previous_response_id", "must not be set together with conversation")
	case !p.store && p.background:
		return nil, invalid("background", "requires store: true")
	case !p.store && (p.conversation != "" || p.previous != ""):
		return nil, refuse(codeUnsupported, "store", "must not be false together with a conversation or a previous "+
			"response, which keep what is added to them; leave store out, or send the items")
	}
	err = p.parseInput(body.get("input"))
	return p, err
}

// checkNames refuses parameters that are unknown, and those whose effect this server does not have.
func checkNames(body object) error {
	neutral := neutralParams()
	for _, m := range body {
		values, isNeutral := neutral[m.name]
		switch {
		case slices.Contains(servedParams(), m.name), slices.Contains(ignoredParams(), m.name):
		case !isNeutral:
			return refuse(codeUnknown, m.name, "is unknown")
		case kindOf(m.value) == "null", slices.Contains(values, string(toJSON(withoutNulls(m.value)))):
		case len(values) == 0:
			return refuse(codeUnsupported, m.name, "is not supported by this server: its agents have their own settings")
		default:
			return refuse(codeUnsupported, m.name, "is not supported by this server except as %s: its agents have their own "+
				"settings and tools", strings.Join(values, " or "))
		}
	}
	return nil
}

// withoutNulls returns a value without the members of objects that are null.
func withoutNulls(value json.RawMessage) any {
	var v any
	_ = json.Unmarshal(value, &v)
	return pruned(v)
}

func pruned(v any) any {
	if o, ok := v.(map[string]any); ok {
		for name, value := range o {
			if value == nil {
				delete(o, name)
				continue
			}
			o[name] = pruned(value)
		}
	}
	return v
}

// parseConversation returns the id in the parameter conversation, which is a string or an object with an id.
func parseConversation(value json.RawMessage) (string, error) {
	id := value
	if kindOf(value) == "an object" {
		o, err := parseObject(value, "conversation")
		if err != nil {
			return "", err
		}
		id = o.get("id")
	}
	if value == nil {
		return "", nil
	}
	if text := textOf(id); text != "" {
		return storedConversationID(text), nil
	}
	return "", invalid("conversation", "must be an id or an object with an id")
}

// parseInput splits the input into the items that are answered and those before them.
func (p *params) parseInput(input json.RawMessage) error {
	const param = "input"
	switch kindOf(input) {
	case "missing":
		return refuse(codeMissing, param, "is required")
	case "a string":
		p.content, p.hasUser = textOf(input), true
		if p.content == "" {
			return invalid(param, "must not be empty")
		}
		return nil
	case "a list":
	default:
		return invalid(param, "must be a string or a list of items, is %s", kindOf(input))
	}
	items, err := parseItems(input, param)
	if err != nil {
		return err
	}
	for i := range items {
		if err := items[i].checkInput(); err != nil {
			return err
		}
	}
	end := len(items)
	if end > 0 && items[end-1].text("role") == "user" {
		end--
		content := items[end].get("content")
		p.hasUser, p.content, p.attachments = true, contentOnly(content), attachmentsOf(content)
		if p.content == "" && len(p.attachments) == 0 {
			return invalid(items[end].param+".content", "must not be empty")
		}
	}
	start := end
	for start > 0 && items[start-1].kind == "function_call_output" {
		start--
	}
	for i := range items[start:end] {
		it := &items[start+i]
		result := &parleyv1.ToolResult{CallId: it.text("call_id"), Content: contentText(it.get("output"))}
		p.results = append(p.results, result)
	}
	if p.before = items[:start]; !p.hasUser && len(p.results) == 0 {
		return invalid(param, "must end with a message of the user or with a function_call_output")
	}
	if len(items) > maxInput {
		return invalid(param, "must have at most %d items, has %d; keep them in a conversation", maxInput, len(items))
	}
	return nil
}

// checkInput refuses content that no agent would get.
func (i *item) checkInput() error {
	name := "content"
	if i.kind == "function_call_output" {
		name = "output"
	}
	content := i.get(name)
	if kindOf(content) != "a list" {
		return nil
	}
	parts, _ := elements(content, "")
	for n, part := range parts {
		at := fmt.Sprintf("%s.%s[%d]", i.param, name, n)
		o, _ := parseObject(part, at)
		switch kind := o.text("type"); kind {
		case "input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text":
		case "input_image", "input_file":
			if i.text("role") != "user" || attachmentOf(o) == nil {
				return refuse(codeUnsupported, at, "is an %s that this server does not support: use an http or https URL of at "+
					"most %d bytes, in a message of the user", kind, maxURI)
			}
		default:
			return refuse(codeUnsupported, at, "is of the type %.64q, which this server does not support", kind)
		}
	}
	return nil
}

// contentOnly returns the text of a content without that of its attachments.
func contentOnly(content json.RawMessage) string {
	if kindOf(content) != "a list" {
		return textOf(content)
	}
	parts, _ := elements(content, "")
	var texts []string
	for _, part := range parts {
		if o, _ := parseObject(part, ""); attachmentOf(o) == nil {
			texts = append(texts, contentText(part))
		}
	}
	return strings.Join(texts, "\n")
}
