package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// runWith runs the program like runOnce, with variables.
func runWith(ctx context.Context, variables map[string]string, args ...string) (stderr string, code int) {
	var out, errs strings.Builder
	code = run(ctx, args, console{
		program: "parley", in: strings.NewReader(""), out: &out, err: &errs,
		getenv: func(name string) string { return variables[name] }, now: time.Now,
	})
	return errs.String(), code
}

// TestSignInSources checks which token and tenant a command sends: those of a flag, else those of a variable.
func TestSignInSources(t *testing.T) {
	dir := t.TempDir()
	file, other := filepath.Join(dir, "file"), filepath.Join(dir, "other")
	for name, text := range map[string]string{file: "from-file\n", other: "from-other\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var sent metadata.MD
	address := serve(t, func(request *parleyv1.ChatRequest, stream *turnStream) error {
		sent, _ = metadata.FromIncomingContext(stream.Context())
		return echoChat(request, stream)
	})
	tests := []struct {
		name          string
		variables     map[string]string
		args          []string
		token, tenant string
	}{
		{"nothing", nil, nil, "", ""},
		{"--token-file", nil, []string{"--token-file", file}, "Bearer from-file", ""},
		{"PARLEY_TOKEN_FILE", map[string]string{"PARLEY_TOKEN_FILE": file}, nil, "Bearer from-file", ""},
		{"PARLEY_TOKEN", map[string]string{"PARLEY_TOKEN": "direct"}, nil, "Bearer direct", ""},
		{
			"flag and variables",
			map[string]string{"PARLEY_TOKEN": "direct", "PARLEY_TOKEN_FILE": file},
			[]string{"--token-file", other},
			"Bearer from-other", "",
		},
		{"--tenant", nil, []string{"--tenant", "acme"}, "", "acme"},
		{"PARLEY_TENANT", map[string]string{"PARLEY_TENANT": "acme"}, nil, "", "acme"},
		{"--tenant and PARLEY_TENANT", map[string]string{"PARLEY_TENANT": "acme"}, []string{"--tenant", "b"}, "", "b"},
		{"PARLEY_TENANT and no tenant", map[string]string{"PARLEY_TENANT": "acme"}, []string{"--tenant", ""}, "", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			stderr, code := runWith(t.Context(), test.variables, append(test.args, "--address", address, "chat", "hello")...)
			if code != 0 {
				t.Fatalf("exit code %d, %s", code, stderr)
			}
			token, tenant := strings.Join(sent.Get("authorization"), ","), strings.Join(sent.Get("parley-tenant"), ",")
			if token != test.token || tenant != test.tenant {
				t.Errorf("token %q and tenant %q sent, want %q and %q", token, tenant, test.token, test.tenant)
			}
		})
	}
}

// TestSignInUsage checks the errors of flags and variables that do not fit together or name no valid file.
func TestSignInUsage(t *testing.T) {
	pair := "--tls-cert-file and --tls-key-file belong together: set both or neither, " +
		"also PARLEY_TLS_CERT_FILE and PARLEY_TLS_KEY_FILE"
	tests := []struct {
		variables map[string]string
		args      []string
		want      string
	}{
		{nil, []string{"--token", "x"}, "unknown flag: --token"},
		{nil, []string{"--token-file", ""}, "--token-file is empty: name a file"},
		{
			map[string]string{"PARLEY_TOKEN": "direct", "PARLEY_TOKEN_FILE": "file"},
			nil,
			"PARLEY_TOKEN and PARLEY_TOKEN_FILE are both set: unset one, or use --token-file",
		},
		{nil, []string{"--tls-ca-file="}, "--tls-ca-file is empty: name a file"},
		{nil, []string{"--tls=false", "--tls-ca-file", "ca"}, "--tls-ca-file needs TLS: leave out --tls=false"},
		{nil, []string{"--tls-cert-file", "cert"}, pair},
		{map[string]string{"PARLEY_TLS_KEY_FILE": "key"}, nil, pair},
		{nil, []string{"--tls-ca-file", "no/file"}, "CA certificates: open no/file: no such file or directory"},
		{
			map[string]string{"PARLEY_TLS_CERT_FILE": "no/cert", "PARLEY_TLS_KEY_FILE": "no/key"},
			nil,
			`client certificate in "no/cert" with key in "no/key": open no/cert: no such file or directory`,
		},
	}
	for _, test := range tests {
		stderr, code := runWith(t.Context(), test.variables, append([]string{"stats"}, test.args...)...)
		if want := "parley: " + test.want + "; see 'parley stats --help'\n"; stderr != want || code != 64 {
			t.Errorf("%v %v: standard error %q, exit code %d; want %q, 64", test.variables, test.args, stderr, code, want)
		}
	}

	// --tls=false on the command line overrides files in variables, and commands without a server need no files.
	address := serve(t, echoChat)
	variables := map[string]string{"PARLEY_TLS_CA_FILE": "no/file"}
	for _, args := range [][]string{{"--tls=false", "--address", address, "chat", "hello"}, {"version"}, {"--help"}} {
		if stderr, code := runWith(t.Context(), variables, args...); code != 0 {
			t.Errorf("%v: exit code %d, %s; want 0", args, code, stderr)
		}
	}
}

// TestSignInErrors checks that the errors of sign-in say which flag or variable to set, and contain no token.
func TestSignInErrors(t *testing.T) {
	refused := func(code codes.Code, reason, text, role string) error {
		info := &errdetails.ErrorInfo{Reason: reason, Domain: "parley"}
		if role != "" {
			info.Metadata = map[string]string{"needed_role": role}
		}
		s, err := status.New(code, text).WithDetails(info)
		if err != nil {
			t.Fatal(err)
		}
		return s.Err()
	}
	unauthenticated := refused(codes.Unauthenticated, "UNAUTHENTICATED", "the call has no valid credential", "")
	token := map[string]string{"PARLEY_TOKEN": "5ecret"}
	tests := []struct {
		name      string
		variables map[string]string
		err       error
		want      string
	}{
		{
			"no token", nil, unauthenticated, "the server requires sign-in: name a file with a token with --token-file, " +
				"set PARLEY_TOKEN, or use a client certificate with --tls-cert-file (UNAUTHENTICATED)",
		},
		{
			"a refused token", token, unauthenticated, "the server does not accept the token in PARLEY_TOKEN: " +
				"it is not valid there, has expired or was revoked; ask the operator for another one (UNAUTHENTICATED)",
		},
		{
			"an invalid token",
			map[string]string{"PARLEY_TOKEN": "5ecret\n"},
			nil,
			"no token: byte 7 of the token is a space, a line break or another character that is not printable ASCII; " +
				`use the token alone, without "Bearer"; see the token in PARLEY_TOKEN`,
		},
		{
			"no file",
			map[string]string{"PARLEY_TOKEN_FILE": "no/file"},
			nil,
			"no token: open no/file: no such file or directory; see the token in no/file (PARLEY_TOKEN_FILE)",
		},
		{
			"role", token, refused(codes.PermissionDenied, "PERMISSION_DENIED", "Chat needs the role writer", "writer"),
			"Chat needs the role writer; --token-file or PARLEY_TOKEN sets another token (PERMISSION_DENIED)",
		},
		{
			"tenant",
			map[string]string{"PARLEY_TENANT": "b"},
			refused(codes.PermissionDenied, "PERMISSION_DENIED", `the caller may not use the tenant "b"`, ""),
			`the caller may not use the tenant "b"; --tenant or PARLEY_TENANT sets another tenant (PERMISSION_DENIED)`,
		},
		{
			"an invalid tenant",
			map[string]string{"PARLEY_TENANT": ".b"},
			nil,
			`tenant ".b": use 1 to 64 letters, digits, dots, underscores and hyphens, not starting with a dot or ` +
				"a hyphen; --tenant or PARLEY_TENANT sets another tenant (PERMISSION_DENIED)",
		},
		{
			"no tenant", token, refused(codes.InvalidArgument, "TENANT_REQUIRED", "several tenants", ""),
			"the token is valid for several tenants: name one with --tenant or PARLEY_TENANT (TENANT_REQUIRED)",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			address := serve(t, func(*parleyv1.ChatRequest, *turnStream) error { return test.err })
			stderr, code := runWith(t.Context(), test.variables, "--address", address, "chat", "hello")
			if want := "parley: " + test.want + "\n"; stderr != want || code != 1 {
				t.Errorf("standard error %q, exit code %d; want %q, 1", stderr, code, want)
			}
		})
	}
}

// TestHintsRepeatTheFlagsOfSignIn checks that the command of a hint contains the flags with which the first one signed
// in, quoted for the shell.
func TestHintsRepeatTheFlagsOfSignIn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "my token")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	address := serve(t, func(_ *parleyv1.ChatRequest, stream *turnStream) error {
		return send(stream, &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Started{Started: &parleyv1.TurnStarted{
			Conversation: &parleyv1.Conversation{Id: "a"}, Created: true,
		}}}, finished(parleyv1.TurnState_TURN_STATE_CANCELLED))
	})
	stderr, _ := runWith(t.Context(), map[string]string{"PARLEY_TENANT": "unnamed"},
		"--address", address, "--tls=false", "--token-file", file, "--tenant", "acme", "chat", "hello")
	want := "parley --address " + address + " --tls=false --token-file '" + file + "' --tenant acme chat -c a --again\n"
	if !strings.Contains(stderr, want) {
		t.Errorf("standard error %q, want it to contain %q", stderr, want)
	}
}
