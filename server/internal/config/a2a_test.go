package config

import (
	"fmt"
	"strings"
	"testing"
)

// TestConfigA2AFaults: faults of agents of kind a2a name the field. No fault contains "marked", which is wherever a
// secret is or may be by mistake.
func TestConfigA2AFaults(t *testing.T) {
	const (
		a2a     = "kind: a2a, url: 'https://h', "
		badURL  = ".url: must be an http or https URL, as in http://127.0.0.1:11434/v1"
		badHost = ".hosts[0]: must be the name of a host without scheme and port, as in api.example.com"
		own     = " is set by the agent; remove it"
		history = ": is not sent to A2A agents, which keep their own history; remove it"
	)
	for _, test := range []struct{ agent, want string }{
		{"kind: a2a", ": has no url; set the URL of the agent, or of its agent card"},
		{"kind: a2a, url: marked", badURL},
		{"kind: a2a, url: 'ftp://marked'", badURL},
		{"kind: a2a, url: 'https://h:99999'", badURL},
		{"kind: a2a, url: 'https://h/?key=marked'", ".url: must end with the path, without ? and #"},
		{
			"kind: a2a, url: 'https://user:marked@h'",
			".url: must not contain a user or a password; use api_key_env, api_key_file or headers",
		},
		{a2a + "hosts: h", ".hosts: must be a list, as in [one, two]"},
		{a2a + "hosts: ['https://marked']", badHost},
		{a2a + "hosts: ['h:443']", badHost},
		{a2a + "hosts: ['']", badHost},
		{a2a + "hosts: ['::1', api.example.com, 127.0.0.1]", ""},
		{a2a + "hosts: [" + strings.Repeat("h,", 17) + "]", ".hosts: has 17 hosts, at most 16 are allowed"},
		{a2a + "api_key: marked", ".api_key: would put a secret into this file; use api_key_env or api_key_file instead"},
		{a2a + "api_key_env: KEY, api_key_file: /dev/null", ".api_key_file: must name a regular file\n" +
			": has both api_key_env and api_key_file; use one of them"},
		{
			a2a + "api_key_env: KEY, headers: {authorization: marked}",
			`.headers: "authorization" is the header of the API key; remove it, or remove the key`,
		},
		{a2a + "headers: {authorization: marked}", ""},
		{a2a + "headers: {A2A-Version: marked}", `.headers: "A2A-Version"` + own},
		{a2a + "headers: {content-type: marked}", `.headers: "content-type"` + own},
		{
			a2a + "headers: {x-bin: marked}",
			`.headers: "x-bin" would have a binary value, but only text is supported; choose a name without -bin`,
		},
		{a2a + "system_prompt: marked", ".system_prompt" + history},
		{a2a + "window: {max_messages: 1}", ".window" + history},
		{a2a + "structured_blocks: true", `: unknown key "structured_blocks"; parleyd --help lists the keys`},
		{a2a + "tls: {ca_file: /none}", ".tls.ca_file: names a file that cannot be read: no such file or directory"},
		{
			"kind: a2a, url: 'http://h', tls: {}",
			".tls: has no effect, because url is not https; change url or remove tls",
		},
	} {
		_, err := load(t, []string{"--config", inFile(t, "agents: {a: {"+test.agent+"}}")}, []string{"KEY=marked"})
		var got []string
		for line := range strings.Lines(strings.TrimPrefix(fmt.Sprint(err), "<nil>")) {
			if _, fault, ok := strings.Cut(strings.TrimSpace(line), ": agents.a"); ok {
				got = append(got, fault)
			}
		}
		if fault := strings.Join(got, "\n"); fault != test.want || (err == nil) != (test.want == "") {
			t.Errorf("%s: %v, want %q", test.agent, err, test.want)
		}
		if strings.Contains(fmt.Sprint(err), "marked") {
			t.Errorf("%s: %v contains a secret", test.agent, err)
		}
	}
}

// TestConfigA2AUnencrypted: a key that would be sent without encryption is reported.
func TestConfigA2AUnencrypted(t *testing.T) {
	for address, want := range map[string]int{"http://h": 1, "https://h": 0, "http://127.0.0.1:1": 0} {
		c, err := load(t, []string{"--config", inFile(t, "agents: {a: {kind: a2a, url: '"+address+"', api_key_env: KEY}}")},
			[]string{"KEY=k"})
		if err != nil || len(c.Warnings) != want {
			t.Errorf("warnings for %s = %v, %v, want %d", address, c.Warnings, err, want)
		}
	}
}
