package remote

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFaults(t *testing.T) {
	const suffix = ` is not valid; use "host:port", "dns:///host:port" or "unix:PATH"`
	tests := []struct {
		name   string
		config Config
		want   []string
	}{
		{"nothing", Config{}, []string{"address: is required"}},
		{"all", Config{Address: "localhost", MaxPieceBytes: -1, Headers: map[string]string{
			"grpc-timeout": "s3cret", "TE": "s3cret", ":authority": "s3cret", "": "s3cret", "a b": "s3cret", "ä": "s3cret",
			"X-Key": "s3cret", "x-key": "s3cret", "x-line": "s3cret\n", "x-name": "s3cret ä", "x-raw-bin": "s3cret\x00\xff",
		}}, []string{
			`address: "localhost"` + suffix,
			`headers: "" is not a valid name; use letters, digits, '-', '_' and '.' only`,
			`headers: ":authority" is not a valid name; use letters, digits, '-', '_' and '.' only`,
			`headers: "TE" is reserved for gRPC`,
			`headers: "a b" is not a valid name; use letters, digits, '-', '_' and '.' only`,
			`headers: "grpc-timeout" is reserved for gRPC`,
			`headers: "x-key" is configured twice; names are not case-sensitive`,
			`headers: the value of "x-line" is not printable ASCII; only the value of a name that ends with -bin may be binary`,
			`headers: the value of "x-name" is not printable ASCII; only the value of a name that ends with -bin may be binary`,
			`headers: "ä" is not a valid name; use letters, digits, '-', '_' and '.' only`,
			`max piece bytes: -1 is less than 0`,
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			a, err := New(test.config)
			if a != nil || err == nil {
				t.Fatalf("New = %v, %v, want an error", a, err)
			}
			if diff := cmp.Diff(test.want, strings.Split(err.Error(), "\n")); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
			if strings.Contains(err.Error(), "s3cret") {
				t.Error("error contains the value of a header")
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	for _, address := range []string{
		"127.0.0.1:7001", "[::1]:7001", ":7001", "planner.internal:7001", "dns:planner:7001", "dns:///planner:7001",
		"dns://10.0.0.53/planner:7001", "unix:agent.socket", "unix:/run/agent.socket", "unix:///run/agent.socket",
	} {
		a, err := New(Config{Address: address})
		if err != nil {
			t.Errorf("New(%s) = %v, want success", address, err)
			continue
		}
		a.Close()
	}
	for _, address := range []string{
		"localhost", "127.0.0.1", "::1", "localhost:", "localhost:0", "localhost:http", "localhost:70000", "http://localhost",
		"http://localhost:7001",
		"dns:///localhost", "dns:", "unix:", "unix://", "unix://host/agent.socket", "xds:///planner", "passthrough:///x",
	} {
		if a, err := New(Config{Address: address}); err == nil {
			t.Errorf("New(%s) succeeded, want an error", address)
			a.Close()
		}
	}
}
