package config

import (
	"cmp"
	"errors"
	"math"
	"net/url"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/parleyhq/parley/server/internal/agent"
)

// addModelFields adds the keys of agents that call a model's HTTP API. n is the agent's mapping.
func (f *file) addModelFields(fields map[string]field, a *Agent, n *yaml.Node) {
	fields["structured_blocks"] = f.value(boolean(&a.StructuredBlocks, false))
	fields["base_url"] = f.value(baseURL(&a.BaseURL))
	fields["model"] = f.value(text(&a.Model, "", 1, 256, ""))
	f.addKeyFields(fields, a)
	fields["headers"] = f.headers(a, modelHeader(a.Kind, hasKey(n)))
	fields["tools"] = f.tools(&a.Tools)
	fields["max_output_tokens"] = f.value(count(&a.MaxOutputTokens, 0, 1, math.MaxInt32))
	fields["temperature"] = f.value(decimal(&a.Temperature, 0, 2))
	switch a.Kind {
	case KindAnthropic:
		fields["thinking_tokens"] = f.value(count(&a.ThinkingTokens, 0, 0, math.MaxInt32))
	case KindOpenAI:
		fields["reasoning_effort"] = f.value(text(&a.ReasoningEffort, "", 0, 64, ""))
	}
}

// addKeyFields adds the keys for a key of an API.
func (f *file) addKeyFields(fields map[string]field, a *Agent) {
	fields["api_key_env"] = f.secretFromEnv(&a.APIKey, keyText)
	fields["api_key_file"] = f.secretFromFile(&a.APIKey, keyText)
	fields["api_key"] = func(key string, n *yaml.Node) {
		f.fault(key, n, "would put a secret into this file; use api_key_env or api_key_file instead")
	}
}

// checkOneKey reports a fault if an API key has two sources.
func (f *file) checkOneKey(key string, n *yaml.Node) {
	if child(n, "api_key_env") != nil && child(n, "api_key_file") != nil {
		f.fault(key, n, "has both api_key_env and api_key_file; use one of them")
	}
}

func (f *file) checkModel(key string, a *Agent, n *yaml.Node) {
	f.require(key, n, "model", "set the name that the API uses for the model")
	f.checkOneKey(key, n)
	f.checkThinking(key, a, n)
	at := child(n, "base_url")
	switch {
	case at == nil && !hasKey(n) && child(n, "headers") == nil:
		f.fault(key, n, "has neither a key nor a base_url, and the provider's own API requires a key; "+
			"set api_key_env or api_key_file, or the base_url of another API")
	case at != nil && len(a.Headers)+len(a.APIKey.Reveal()) > 0 && isPlainHTTP(a.BaseURL):
		f.warn(key+".base_url", at, "key and headers are sent over the network unencrypted",
			"use https if the API supports it")
	}
}

// checkThinking checks the tokens for thinking against the API and the limit of an answer.
func (f *file) checkThinking(key string, a *Agent, n *yaml.Node) {
	at, most := child(n, "thinking_tokens"), cmp.Or(a.MaxOutputTokens, agent.DefaultMaxTokens)
	switch tokens := a.ThinkingTokens; {
	case tokens == 0:
	case tokens < agent.MinThinkingTokens:
		f.fault(key+".thinking_tokens", at, "is %d; set 0 or at least %d", tokens, agent.MinThinkingTokens)
	case tokens >= most:
		f.fault(key+".thinking_tokens", at,
			"is %d, which is not less than the limit of an answer, %d; raise max_output_tokens", tokens, most)
	}
}

// hasKey reports whether the agent with mapping n has an API key from any source.
func hasKey(n *yaml.Node) bool {
	return child(n, "api_key_env") != nil || child(n, "api_key_file") != nil || child(n, "api_key") != nil
}

// modelHeader returns a function that checks the name, in lower case, of a header for a model's
// API. The function returns what is wrong, or "" if the name is valid. Each kind has its own header
// for the API key.
func modelHeader(kind string, hasAPIKey bool) func(name string) string {
	keyHeader := map[string]string{
		KindOpenAI: "authorization", KindAnthropic: "x-api-key", KindA2A: "authorization",
	}[kind]
	return func(name string) string {
		switch name {
		case keyHeader:
			if hasAPIKey {
				return "is the header of the API key; remove it, or remove the key"
			}
		case "accept", "accept-encoding", "anthropic-version", "content-encoding", "content-length", "content-type",
			"connection", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade":
			return "is set by the agent; remove it"
		}
		if name == "" || strings.Trim(name, headerAlphabet) != "" {
			return "is not a valid header name; use letters, digits and '-'"
		}
		return ""
	}
}

// isPlainHTTP reports whether requests to address leave this machine unencrypted.
func isPlainHTTP(address string) bool {
	u, err := url.Parse(address)
	return err == nil && u.Scheme == "http" && !isLoopback(u.Hostname())
}

// baseURL is a value for the URL of an HTTP API. Users may put a secret into it by mistake, so
// faults do not quote it.
func baseURL(target *string) value[string] {
	return value[string]{target, "url", func(s string) (string, error) {
		u, err := url.Parse(s)
		switch {
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || !isPort(u.Port()):
			return "", errors.New("must be an http or https URL, as in http://127.0.0.1:11434/v1")
		case u.User != nil:
			return "", errors.New("must not contain a user or a password; use api_key_env, api_key_file or headers")
		case strings.ContainsAny(s, "?#"):
			return "", errors.New("must end with the path, without ? and #")
		case len(s) > 2*kib:
			return "", errors.New("is too long; the maximum is 2KiB")
		}
		return s, nil
	}, verbatim}
}

// isPort reports whether s is a port number from 1 to 65535, or empty.
func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return s == "" || err == nil && n > 0
}
