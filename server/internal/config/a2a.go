package config

import (
	"errors"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// maxHosts is the maximum number of other hosts of an A2A agent.
const maxHosts = 16

// addA2AFields adds the keys of agents that are called over the A2A protocol. n is the agent's mapping.
func (f *file) addA2AFields(fields map[string]field, a *Agent, n *yaml.Node) {
	fields["url"] = f.value(baseURL(&a.URL))
	fields["hosts"] = func(key string, n *yaml.Node) {
		f.list(&a.Hosts, func(_ int, host *string) pflag.Value { return hostName(host) })(key, n)
		if len(a.Hosts) > maxHosts {
			f.fault(key, n, "has %d hosts, at most %d are allowed", len(a.Hosts), maxHosts)
		}
	}
	f.addKeyFields(fields, a)
	fields["headers"] = f.headers(a, a2aHeader(hasKey(n)))
	fields["tls"] = func(key string, n *yaml.Node) {
		a.TLS = f.tls(key, n)
	}
	for _, name := range []string{"system_prompt", "window"} {
		fields[name] = func(key string, n *yaml.Node) {
			f.fault(key, n, "is not sent to A2A agents, which keep their own history; remove it")
		}
	}
}

func (f *file) checkA2A(key string, a *Agent, n *yaml.Node) {
	f.require(key, n, "url", "set the URL of the agent, or of its agent card")
	f.checkOneKey(key, n)
	at := child(n, "url")
	if tlsAt := child(n, "tls"); tlsAt != nil && strings.HasPrefix(a.URL, "http:") {
		f.fault(key+".tls", tlsAt, "has no effect, because url is not https; change url or remove tls")
	}
	if at != nil && len(a.Headers)+len(a.APIKey.Reveal()) > 0 && isPlainHTTP(a.URL) {
		f.warn(key+".url", at, "key and headers are sent over the network unencrypted", "use https if the agent supports it")
	}
}

// a2aHeader returns a function that checks the name of a header, in lower case, which is also a key of gRPC metadata.
// The function returns what is wrong, or "" if the name is valid.
func a2aHeader(hasAPIKey bool) func(name string) string {
	ofHTTP := modelHeader(KindA2A, hasAPIKey)
	return func(name string) string {
		if strings.HasPrefix(name, "a2a-") {
			return "is set by the agent; remove it"
		}
		if problem := ofHTTP(name); problem != "" {
			return problem
		}
		return remoteHeader(name)
	}
}

// hostName is a value for the name or the IP address of a host, without a port.
func hostName(target *string) value[string] {
	return value[string]{target, "host", func(s string) (string, error) {
		_, err := netip.ParseAddr(s)
		if err != nil && (s == "" || len(s) > 253 || strings.Trim(s, letters+digits+"._-") != "") {
			return "", errors.New("must be the name of a host without scheme and port, as in api.example.com")
		}
		return s, nil
	}, verbatim}
}
