package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/parleyhq/parley/client"
)

const aboutSignIn = `A server on a network needs sign-in and TLS:

  parley list --address parley.example:50051 --token-file ~/.parley-token

The token comes from the file of --token-file. Without this flag, it comes from PARLEY_TOKEN or from
the file of PARLEY_TOKEN_FILE; set only one of these variables. There is no flag for the token
itself, because every user of a machine can see the command lines of all processes. A client
certificate (--tls-cert-file, --tls-key-file) can replace the token.`

// signIn contains the global flags with which a command signs in, and their variables.
type signIn struct {
	token     string // PARLEY_TOKEN
	tokenFile string
	tenant    string
	tls       bool
	caFile    string
	certFile  string
	keyFile   string

	flags *pflag.FlagSet // Contains these flags; nil before addFlags.
}

// addFlags adds the flags. Variables set their defaults.
func (s *signIn) addFlags(flags *pflag.FlagSet, getenv func(string) string) {
	s.token, s.flags = getenv("PARLEY_TOKEN"), flags
	flags.StringVar(&s.tokenFile, "token-file", getenv("PARLEY_TOKEN_FILE"),
		"file with the token; PARLEY_TOKEN_FILE sets the default, PARLEY_TOKEN is the token itself")
	flags.StringVar(&s.tenant, "tenant", getenv("PARLEY_TENANT"),
		"tenant, needed only if the token is valid for several; PARLEY_TENANT sets the default")
	flags.BoolVar(&s.tls, "tls", false, "use TLS (default if the server is on another machine, or if one of the "+
		"--tls-…-file flags is set); --tls=false sends tokens in plaintext")
	flags.StringVar(&s.caFile, "tls-ca-file", getenv("PARLEY_TLS_CA_FILE"), "PEM file with the authorities to "+
		"trust, instead of the system's; PARLEY_TLS_CA_FILE sets the default")
	flags.StringVar(&s.certFile, "tls-cert-file", getenv("PARLEY_TLS_CERT_FILE"),
		"PEM file with a client certificate; PARLEY_TLS_CERT_FILE sets the default")
	flags.StringVar(&s.keyFile, "tls-key-file", getenv("PARLEY_TLS_KEY_FILE"),
		"PEM file with the key of the client certificate; PARLEY_TLS_KEY_FILE sets the default")
}

// options returns the options of a client, after the flags have been parsed. Its errors are usage errors.
func (s *signIn) options() ([]grpc.DialOption, error) {
	transport, err := s.transport()
	if err != nil {
		return nil, err
	}
	if s.tokenFile == "" && s.isSet("token-file") {
		return nil, errors.New("--token-file is empty: name a file")
	}
	var opts []grpc.DialOption
	if transport != nil {
		opts = append(opts, grpc.WithTransportCredentials(transport))
	}
	switch {
	case s.tokenFile != "" && s.token != "" && !s.isSet("token-file"):
		return nil, errors.New("PARLEY_TOKEN and PARLEY_TOKEN_FILE are both set: unset one, or use --token-file")
	case s.tokenFile != "":
		opts = append(opts, client.WithTokenFile(s.tokenFile))
	case s.token != "":
		opts = append(opts, client.WithToken(func(context.Context) (string, error) { return s.token, nil }))
	}
	return append(opts, client.WithTenant(s.tenant)), nil
}

// transport returns the credentials of connections. If nil, client.Dial chooses.
func (s *signIn) transport() (credentials.TransportCredentials, error) {
	files := []struct{ flag, value string }{
		{"tls-ca-file", s.caFile}, {"tls-cert-file", s.certFile}, {"tls-key-file", s.keyFile},
	}
	named := false
	for _, file := range files {
		if file.value == "" && s.isSet(file.flag) {
			return nil, fmt.Errorf("--%s is empty: name a file", file.flag)
		}
		if file.value != "" && s.isSet("tls") && !s.tls && s.isSet(file.flag) {
			return nil, fmt.Errorf("--%s needs TLS: leave out --tls=false", file.flag)
		}
		named = named || file.value != ""
	}
	switch {
	case s.isSet("tls") && !s.tls:
		return insecure.NewCredentials(), nil
	case (s.certFile == "") != (s.keyFile == ""):
		return nil, errors.New("--tls-cert-file and --tls-key-file belong together: set both or neither, " +
			"also PARLEY_TLS_CERT_FILE and PARLEY_TLS_KEY_FILE")
	case named:
		return client.TLSFromFiles(s.caFile, s.certFile, s.keyFile)
	case s.tls:
		return credentials.NewTLS(nil), nil
	default:
		return nil, nil
	}
}

// isSet reports whether a flag is on the command line.
func (s *signIn) isSet(flag string) bool { return s.flags != nil && s.flags.Changed(flag) }

// words returns the flags on the command line, for a command that signs in like this one.
func (s *signIn) words() []string {
	var words []string
	if s.isSet("tls") {
		words = append(words, fmt.Sprintf("--tls=%t", s.tls))
	}
	for _, name := range []string{"token-file", "tenant", "tls-ca-file", "tls-cert-file", "tls-key-file"} {
		if s.isSet(name) {
			words = append(words, "--"+name, quoted(s.flags.Lookup(name).Value.String()))
		}
	}
	return words
}

// source returns what the command signs in with, for messages. It is empty if there is nothing.
func (s *signIn) source() string {
	switch {
	case s.tokenFile != "" && s.isSet("token-file"):
		return "the token in " + s.tokenFile
	case s.token != "":
		return "the token in PARLEY_TOKEN"
	case s.tokenFile != "":
		return "the token in " + s.tokenFile + " (PARLEY_TOKEN_FILE)"
	case s.certFile != "":
		return "the client certificate in " + s.certFile
	default:
		return ""
	}
}

// explain returns the message of a status about sign-in, with what to do. It returns "" for other statuses.
func (s *signIn) explain(st *status.Status, reason string) string {
	switch {
	case reason == "UNAUTHENTICATED" && s.source() == "":
		return "the server requires sign-in: name a file with a token with --token-file, set PARLEY_TOKEN, " +
			"or use a client certificate with --tls-cert-file (UNAUTHENTICATED)"
	case reason == "UNAUTHENTICATED":
		return "the server does not accept " + s.source() + ": it is not valid there, has expired or was revoked; " +
			"ask the operator for another one (UNAUTHENTICATED)"
	case st.Code() == codes.Unauthenticated && strings.HasPrefix(st.Message(), "no token: "):
		return st.Message() + "; see " + s.source()
	case reason == "PERMISSION_DENIED" && neededRole(st) != "":
		return st.Message() + "; --token-file or PARLEY_TOKEN sets another token (PERMISSION_DENIED)"
	case st.Code() == codes.PermissionDenied && s.tenant != "":
		return st.Message() + "; --tenant or PARLEY_TENANT sets another tenant (PERMISSION_DENIED)"
	case reason == "TENANT_REQUIRED":
		return "the token is valid for several tenants: name one with --tenant or PARLEY_TENANT (TENANT_REQUIRED)"
	default:
		return ""
	}
}

// neededRole returns the role that the caller of a refused call needs, or "" if the role is not the cause.
func neededRole(st *status.Status) string {
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.GetMetadata()["needed_role"]
		}
	}
	return ""
}
