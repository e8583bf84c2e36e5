package config

import (
	"errors"
	"math"
	"net/url"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// addModelFields adds the keys of the agents that are models behind an HTTP API; n holds
// them all.
func (f *file) addModelFields(fields map[string]field, a *Agent, n *yaml.Node) {
	fields["structured_blocks"] = f.value(boolean(&a.StructuredBlocks, false))
	fields["base_url"] = f.value(baseURL(&a.BaseURL))
	fields["model"] = f.value(text(&a.Model, "", 1, 256, ""))
	fields["api_key_env"] = f.secretFromEnv(&a.APIKey, keyText)
	fields["api_key_file"] = f.secretFromFile(&a.APIKey, keyText)
	fields["api_key"] = func(key string, n *yaml.Node) {
		f.fault(key, n, "would make this file a secret; write api_key_env or api_key_file, and say where the key is")
	}
	fields["headers"] = f.headers(a, modelHeader(a.Kind, hasKey(n)))
	fields["tools"] = f.tools(&a.Tools)
	fields["max_output_tokens"] = f.value(count(&a.MaxOutputTokens, 0, 1, math.MaxInt32))
	fields["temperature"] = f.value(decimal(&a.Temperature, 0, 2))
}

func (f *file) checkModel(key string, a *Agent, n *yaml.Node) {
	f.require(key, n, "model", "write the name by which the API knows it")
	if child(n, "api_key_env") != nil && child(n, "api_key_file") != nil {
		f.fault(key, n, "has both api_key_env and api_key_file; write one of them")
	}
	at := child(n, "base_url")
	switch {
	case at == nil && !hasKey(n) && child(n, "headers") == nil:
		f.fault(key, n, "has neither a key nor a base_url, and the provider's own API takes nobody without a key; "+
			"write api_key_env or api_key_file, or the base_url of another API")
	case at != nil && len(a.Headers)+len(a.APIKey.Reveal()) > 0 && isPlainHTTP(a.BaseURL):
		f.warn(key+".base_url", at, "key and headers go over the network unencrypted", "write https if the API has it")
	}
}

// hasKey tells whether an agent is given a key, by whatever means.
func hasKey(n *yaml.Node) bool {
	return child(n, "api_key_env") != nil || child(n, "api_key_file") != nil || child(n, "api_key") != nil
}

// modelHeader says what is wrong with the name of a header, in lower case, that is to be
// sent to a model's API; "" is nothing. The key has a header of its own in each kind.
func modelHeader(kind string, keyed bool) func(name string) string {
	ofKey := map[string]string{KindOpenAI: "authorization", KindAnthropic: "x-api-key"}[kind]
	return func(name string) string {
		switch name {
		case ofKey:
			if keyed {
				return "is what the key is sent in; leave it out, or leave the key out"
			}
		case "accept", "accept-encoding", "anthropic-version", "content-encoding", "content-length", "content-type",
			"connection", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade":
			return "is set by the agent itself; leave it out"
		}
		if name == "" || strings.Trim(name, headerAlphabet) != "" {
			return "is no name of a header; write letters, digits and '-'"
		}
		return ""
	}
}

// isPlainHTTP tells whether what is sent there leaves this machine as it is.
func isPlainHTTP(address string) bool {
	u, err := url.Parse(address)
	return err == nil && u.Scheme == "http" && !isLoopback(u.Hostname())
}

// baseURL is where an HTTP API is. It may hold a secret where none belongs: faults do not
// quote it.
func baseURL(target *string) value[string] {
	return value[string]{target, "url", func(s string) (string, error) {
		u, err := url.Parse(s)
		switch {
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || !isPort(u.Port()):
			return "", errors.New("must be an http or https URL, as in http://127.0.0.1:11434/v1")
		case u.User != nil:
			return "", errors.New("must not hold a user or a password; api_key_env, api_key_file and headers are for such")
		case strings.ContainsAny(s, "?#"):
			return "", errors.New("must end with the path; nothing may follow it, neither ? nor #")
		case len(s) > 2*kib:
			return "", errors.New("is too long; the most is 2KiB")
		}
		return s, nil
	}, verbatim}
}

// isPort tells whether s is a port to dial, or none.
func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return s == "" || err == nil && n > 0
}
