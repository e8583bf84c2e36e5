package openai

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// maxItemID is the maximum length of the id of a message.
const maxItemID = 256

// encryptedMark is a member of the items that EncryptedSession of the OpenAI Agents SDK stores. They have no type.
const encryptedMark = "__enc__"

// knownItems are the types of items that are stored. Items of other types are refused.
var knownItems = []string{ //nolint:gochecknoglobals // A constant list.
	"message", "function_call", "function_call_output", "reasoning", "file_search_call", "web_search_call",
	"computer_call", "computer_call_output", "tool_search_call", "tool_search_output", "additional_tools", "compaction",
	"image_generation_call", "code_interpreter_call", "local_shell_call", "local_shell_call_output", "shell_call",
	"shell_call_output", "apply_patch_call", "apply_patch_call_output", "mcp_list_tools", "mcp_approval_request",
	"mcp_approval_response", "mcp_call", "custom_tool_call", "custom_tool_call_output", "program", "program_output",
}

// item is a checked item of a request.
type item struct {
	object

	param string // Its name in errors.
	kind  string
	raw   json.RawMessage
}

// parseItems checks the items of a list and returns them.
func parseItems(list json.RawMessage, param string) ([]item, error) {
	values, err := elements(list, param)
	if err != nil {
		return nil, err
	}
	items := make([]item, len(values))
	for i, value := range values {
		if items[i], err = parseItem(value, fmt.Sprintf("%s[%d]", param, i)); err != nil {
			return nil, err
		}
	}
	return items, nil
}

func parseItem(value json.RawMessage, param string) (item, error) {
	o, err := parseObject(value, param)
	if err != nil {
		return item{}, err
	}
	it := item{object: o, param: param, raw: value}
	if err := o.decode(param, "type", "a string", &it.kind); err != nil {
		return item{}, err
	}
	var id string
	if err := o.decode(param, "id", "a string", &id); err != nil {
		return item{}, err
	}
	if len(id) > maxItemID {
		return item{}, invalid(param+".id", "is longer than %d bytes", maxItemID)
	}
	if it.kind == "" && o.get("role") != nil {
		it.kind = "message"
	}
	if it.kind == "" && o.get(encryptedMark) != nil {
		it.kind, id = "encrypted_item", ""
	}
	switch {
	case it.kind == "item_reference", it.kind == "" && id != "":
		return item{}, refuse(codeUnsupported, param, "is an item_reference, which this server does not support: "+
			"send the item itself, or name its conversation or response")
	case it.kind == "":
		return item{}, refuse(codeMissing, param+".type", "is required")
	case it.kind != "encrypted_item" && !slices.Contains(knownItems, it.kind):
		return item{}, invalid(param+".type", "is %.64q, which is no type of an item", it.kind)
	}
	err = it.check()
	return it, err
}

// check checks the fields that are read from an item.
func (i *item) check() error {
	required := func(name string) error {
		var text string
		if i.get(name) == nil {
			return refuse(codeMissing, i.param+"."+name, "is required")
		}
		if err := i.decode(i.param, name, "a string", &text); err != nil {
			return err
		}
		if text == "" && name != "arguments" {
			return invalid(i.param+"."+name, "must not be empty")
		}
		return nil
	}
	switch i.kind {
	case "message":
		if err := required("role"); err != nil {
			return err
		}
		if _, ok := roleOf(i.text("role")); !ok {
			return invalid(i.param+".role", "is %.64q; use user, assistant, system or developer", i.text("role"))
		}
		return checkContent(i.get("content"), i.param+".content")
	case "function_call":
		for _, name := range []string{"call_id", "name", "arguments"} {
			if err := required(name); err != nil {
				return err
			}
		}
	case "function_call_output":
		if err := required("call_id"); err != nil {
			return err
		}
		return checkContent(i.get("output"), i.param+".output")
	}
	return nil
}

// checkContent checks a content, which is a string or a list of parts.
func checkContent(content json.RawMessage, param string) error {
	switch kindOf(content) {
	case "missing":
		return refuse(codeMissing, param, "is required")
	case "a string":
		return nil
	case "a list":
	default:
		return invalid(param, "must be a string or a list of parts, is %s", kindOf(content))
	}
	parts, err := elements(content, param)
	if err != nil {
		return err
	}
	for i, part := range parts {
		at := fmt.Sprintf("%s[%d]", param, i)
		o, err := parseObject(part, at)
		if err != nil {
			return err
		}
		kind := o.text("type")
		if kind == "" {
			return refuse(codeMissing, at+".type", "is required")
		}
		if strings.HasSuffix(kind, "text") && kindOf(o.get("text")) != "a string" {
			return invalid(at+".text", "must be a string, is %s", kindOf(o.raw("text")))
		}
	}
	return nil
}

// roleOf returns the role of a message of OpenAI.
func roleOf(name string) (role parleyv1.Role, ok bool) {
	switch name {
	case "user":
		return parleyv1.Role_ROLE_USER, true
	case "assistant":
		return parleyv1.Role_ROLE_ASSISTANT, true
	case "system", "developer":
		return parleyv1.Role_ROLE_SYSTEM, true
	}
	return parleyv1.Role_ROLE_UNSPECIFIED, false
}

// roleName returns the name that OpenAI has for a role.
func roleName(role parleyv1.Role) string {
	switch role {
	case parleyv1.Role_ROLE_ASSISTANT:
		return "assistant"
	case parleyv1.Role_ROLE_SYSTEM:
		return "system"
	}
	return "user"
}
