package check

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
)

const (
	unit        = "../systemd/parleyd.service"
	maxExposure = 2.0
)

// TestUnit checks the unit with systemd: its syntax, and its exposure to attacks.
func TestUnit(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skipf("SKIPPED: %v", err)
	}
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	// After a failure that passes, such as a full disk, the server must start again, without an end and without haste.
	for _, line := range []string{"Restart=on-failure", "StartLimitIntervalSec=0"} {
		if !strings.Contains(string(text), "\n"+line+"\n") {
			t.Errorf("the unit does not have %s", line)
		}
	}
	// Variables win against the file of settings, so the unit sets only what must not change.
	if got := regexp.MustCompile(`(?m)^Environment=(\w+)`).FindAllString(string(text), -1); !slices.Equal(got,
		[]string{"Environment=PARLEY_DATA_DIR"}) {
		t.Errorf("the unit sets %q, want the data directory alone", got)
	}
	path := filepath.Join(t.TempDir(), "parleyd.service")
	// The program need not be installed.
	text = bytes.ReplaceAll(text, []byte("ExecStart=/usr/bin/parleyd"), []byte("ExecStart=/bin/true"))
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	output, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", path).CombinedOutput()
	if err != nil || strings.Contains(string(output), path) {
		t.Errorf("systemd-analyze verify: %v\n%s", err, output)
	}
	output, err = exec.CommandContext(t.Context(), "systemd-analyze", "security", "--offline=yes", path).CombinedOutput()
	if err != nil {
		t.Fatalf("systemd-analyze security: %v\n%s", err, output)
	}
	level := regexp.MustCompile(`exposure level for \S+: ([0-9.]+)`).FindSubmatch(output)
	if level == nil {
		t.Fatalf("systemd-analyze security prints no level:\n%s", output)
	}
	if exposure, err := strconv.ParseFloat(string(level[1]), 64); err != nil || exposure > maxExposure {
		t.Errorf("exposure level = %s, want at most %g", level[1], maxExposure)
	}
}

// TestCompose loads the compose file as Docker Compose does, with its schema.
func TestCompose(t *testing.T) {
	options, err := cli.NewProjectOptions([]string{"../compose.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, service := range project.Services {
		for _, volume := range service.Volumes {
			if volume.Type != "bind" || volume.Bind == nil {
				continue
			}
			if name := filepath.Base(volume.Source); name != "prometheus" && name != "grafana" {
				t.Errorf("service %s mounts %s, want a folder of this one", service.Name, volume.Source)
			}
		}
		for _, port := range service.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("service %s is published at %s, want this machine only", service.Name, port.HostIP)
			}
		}
	}
	server := project.Services["parleyd"]
	if _, err := os.Stat(filepath.Join(server.Build.Context, server.Build.Dockerfile)); err != nil {
		t.Errorf("Dockerfile of the service: %v", err)
	}
	if !server.ReadOnly {
		t.Error("the root file system of parleyd is not read-only")
	}
}
