package client

import "testing"

func TestIsLocal(t *testing.T) {
	tests := map[string]bool{
		"127.0.0.1:50051":             true,
		"127.8.9.1:50051":             true,
		"localhost:50051":             true,
		"LocalHost":                   true,
		"[::1]:50051":                 true,
		"::1":                         true,
		"[::1]":                       true,
		"[::ffff:127.0.0.1]:1":        true,
		":50051":                      true,
		"dns:localhost:50051":         true,
		"dns:///127.0.0.1:50051":      true,
		"dns://8.8.8.8/localhost:1":   true,
		"passthrough:///127.0.0.1:1":  true,
		"unix:parley.sock":            true,
		"unix:///run/parley.sock":     true,
		"unix-abstract:parley":        true,
		"parley.example:50051":        false,
		"localhost.example:50051":     false,
		"127.0.0.1.example:50051":     false,
		"10.0.0.1:50051":              false,
		"0.0.0.0:50051":               false,
		"[::]:50051":                  false,
		"dns:///parley.example:50051": false,
		"dns://127.0.0.1/example:1":   false,
		"xds:///localhost":            false,
		"passthrough:///parley":       false,
		"":                            false,
	}
	for target, want := range tests {
		if got := isLocal(target); got != want {
			t.Errorf("isLocal(%q) = %t, want %t", target, got, want)
		}
	}
}
