package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/parleyhq/parley/server/internal/config"
	"github.com/parleyhq/parley/server/internal/healthcheck"
)

const aboutHealthcheck = `Ask the server that has the same settings whether it serves, for probes of containers. The
command reads the address of the gRPC listener and the files of its certificates from the flags, the
environment and the YAML file, as the server does. It needs no credential and no other program.

It prints the result in one line. The exit code is 0 if the server serves, and 1 if it does not
serve, stops, or does not answer in time.`

// errUnhealthy ends the program with exitUnhealthy.
var errUnhealthy = errors.New("health check failed")

// healthcheckCommand returns the command that asks a running server for its health.
func healthcheckCommand() config.Offline {
	var limit time.Duration
	var certFile, keyFile string
	return config.Offline{
		Use: "healthcheck", Short: "Ask the running server whether it serves; for probes of containers",
		Long: aboutHealthcheck, Args: cobra.NoArgs, Setting: "grpc-address",
		More: []string{"tls-cert-file", "tls-key-file", "tls-client-auth"},
		Flags: func(flags *pflag.FlagSet) {
			flags.DurationVar(&limit, "timeout", 5*time.Second, "time limit of the answer")
			flags.StringVar(&certFile, "client-cert-file", "",
				"`path` of the certificate for a server that requires one (default that of the server)")
			flags.StringVar(&keyFile, "client-key-file", "", "`path` of its private key")
		},
		Run: func(ctx context.Context, call config.OfflineCall) error {
			c := call.Config
			if err := healthcheckFaults(c, limit, certFile, keyFile); err != nil {
				return err
			}
			advice := ""
			if c.TLSClientAuth == config.ClientAuthRequired && certFile == "" {
				certFile, keyFile = c.TLSCertFile, c.TLSKeyFile
				advice = "; the server requires a client certificate, which --client-cert-file sets"
			}
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			err := healthcheck.Check(ctx, healthcheck.Server{
				Address: c.GRPCAddress, TLS: c.HasTLS(),
				CertFile: certFile, KeyFile: keyFile,
			})
			if err == nil {
				_, err = fmt.Fprintf(call.Out, "%s: serving\n", c.GRPCAddress)
				return err
			}
			return fmt.Errorf("%w: %s: %w%s", errUnhealthy, c.GRPCAddress, err, advice)
		},
	}
}

// healthcheckFaults returns all faults of a health check, or nil.
func healthcheckFaults(c *config.Config, limit time.Duration, certFile, keyFile string) error {
	var faults []string
	if limit <= 0 {
		faults = append(faults, fmt.Sprintf("--timeout: %s is not positive", limit))
	}
	if (certFile == "") != (keyFile == "") {
		faults = append(faults, "--client-cert-file, --client-key-file: set both or none")
	}
	if strings.HasSuffix(c.GRPCAddress, ":0") && !strings.HasPrefix(c.GRPCAddress, "unix:") {
		faults = append(faults, "grpc-address: port 0 is another port at each start; set a fixed port for health checks")
	}
	if len(faults) > 0 {
		return &config.Error{Faults: faults}
	}
	return nil
}
