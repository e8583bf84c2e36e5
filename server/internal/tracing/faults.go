package tracing

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/go-logr/logr"
)

// faults collects what the SDK reports about its environment variables while it is set up. The SDK would only log it
// and continue with its defaults, and some of its entries contain the value of a variable, which may be a credential.
type faults struct {
	mu    sync.Mutex
	texts []string
}

func (f *faults) add(text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.texts = append(f.texts, text)
}

// err returns an error with all faults, or nil.
func (f *faults) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.texts) == 0 {
		return nil
	}
	return errors.New("variables of OpenTelemetry (OTEL_…): " + strings.Join(f.texts, "; ") + "; correct or unset them")
}

// variableOf returns which variable a message of the SDK is about, or "" if unknown.
func variableOf(message string) string {
	for part, name := range map[string]string{
		"sampler":        "OTEL_TRACES_SAMPLER: ",
		"trace ID ratio": "OTEL_TRACES_SAMPLER_ARG: ",
		"duration":       "OTEL_EXPORTER_OTLP_TIMEOUT: ",
		"tls ca cert":    "OTEL_EXPORTER_OTLP_CERTIFICATE: ",
		"tls client":     "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE, OTEL_EXPORTER_OTLP_CLIENT_KEY: ",
	} {
		if strings.Contains(message, part) {
			return name
		}
	}
	return ""
}

// Init does nothing.
func (*faults) Init(logr.RuntimeInfo) {}

// Enabled returns true.
func (*faults) Enabled(int) bool { return true }

// Info adds a fault if the SDK reports a number that it cannot read. Other entries are no faults.
func (f *faults) Info(_ int, message string, pairs ...any) {
	if strings.HasPrefix(message, "Got invalid value") && len(pairs) > 0 {
		f.add(fmt.Sprintf("%v is not a number", pairs[0]))
	}
}

// Error adds a fault. It contains no value of a header.
func (f *faults) Error(err error, message string, _ ...any) {
	if strings.Contains(message, "header") {
		f.add("OTEL_EXPORTER_OTLP_HEADERS or OTEL_EXPORTER_OTLP_TRACES_HEADERS is not of the form name=value,name=value")
		return
	}
	f.add(variableOf(message) + fmt.Sprintf("%s: %v", message, err))
}

// WithValues returns f.
func (f *faults) WithValues(...any) logr.LogSink { return f }

// WithName returns f.
func (f *faults) WithName(string) logr.LogSink { return f }
