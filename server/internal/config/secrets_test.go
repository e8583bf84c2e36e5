package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/parleyhq/parley/server/internal/config/configtest"
)

// TestConfigHidesSecrets prints, logs and encodes a config with secrets in many ways and checks
// that no output contains them.
func TestConfigHidesSecrets(t *testing.T) {
	path, _, environ := configtest.Agents(t)
	c, err := load(t, []string{"--config", path}, environ)
	if err != nil {
		t.Fatal(err)
	}
	c.Agents = append(c.Agents, Agent{Name: "late", APIKey: literal("sk-marked")})
	var seen bytes.Buffer
	for _, value := range []any{c, *c, c.Agents, c.Agents[0], c.Agents[0].APIKey, &c.Agents[0].APIKey, c.Agents[0].Headers, []Secret{literal("marked")}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%T"} {
			fmt.Fprintf(&seen, verb+"\n", value)
		}
		for _, handler := range []slog.Handler{slog.NewTextHandler(&seen, nil), slog.NewJSONHandler(&seen, nil)} {
			slog.New(handler).Info("settings", "value", value)
		}
		_ = json.NewEncoder(&seen).Encode(value)
		_ = yaml.NewEncoder(&seen).Encode(value)
	}
	printed, warnings := checkConfig(t, []string{"--config", path}, environ)
	seen.WriteString(printed + warnings)
	text := seen.String()
	for _, in := range []string{"marked", fmt.Sprintf("%x", "marked")} {
		if i := strings.Index(text, in); i >= 0 {
			t.Errorf("the output contains a secret: %s", text[max(0, i-200):i+100])
		}
	}
	if !strings.Contains(text, "[redacted]") || !strings.Contains(text, "claude-x") {
		t.Error("the rest is not seen either")
	}
}
