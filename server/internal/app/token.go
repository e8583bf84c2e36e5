package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/auth/tokenfile"
	"github.com/parleyhq/parley/server/internal/config"
)

const aboutToken = `Create, list and revoke the tokens that callers sign in with. The tokens are in a file that parleyd
reads if --auth-token-file names it. The file contains only hashes of tokens.

A running server reads the file again on SIGHUP.`

const aboutTokenCreate = `Create a token and add its hash to the file, which is created if missing. The token is printed
once, as the only line on standard output. It cannot be printed again.

The role reader allows reading conversations, writer also changing them, and admin also erasing
entries of the interaction log. With --tenant "*" the token is valid for all tenants; a reader of
all tenants may also read the metrics, and an admin of all tenants may also copy the store. A caller
with several tenants names one in each call.`

const (
	maxExpiry    = 100 * 365 * 24 * time.Hour
	neverExpires = "never"
)

// signalHint says when a change takes effect.
const signalHint = "a running server reads the file again on SIGHUP"

// tokenCommand returns the commands on the file of tokens.
func tokenCommand() config.Offline {
	return config.Offline{
		Use: "token", Short: "Create, list and revoke the tokens that callers sign in with", Long: aboutToken,
		Commands: []config.Offline{
			onTokenFile(tokenCreateCommand()), onTokenFile(tokenListCommand()), onTokenFile(tokenRevokeCommand()),
		},
	}
}

// onTokenFile makes a command read the setting with the file of tokens.
func onTokenFile(command config.Offline) config.Offline {
	command.Setting, command.Flag = "auth-token-file", "file"
	command.Usage = "`path` of the file of tokens (default $PARLEY_AUTH_TOKEN_FILE)"
	return command
}

// newToken are the flags of a new token.
type newToken struct {
	role, name, expires string
	tenants             []string
}

func tokenCreateCommand() config.Offline {
	var n newToken
	return config.Offline{
		Use: "create", Short: "Create a token and print it once", Long: aboutTokenCreate, Args: cobra.NoArgs,
		Flags: func(flags *pflag.FlagSet) {
			flags.SortFlags = false
			flags.StringSliceVar(&n.tenants, "tenant", nil, "`name` of a tenant; repeat it for several; \"*\" for all")
			flags.StringVar(&n.role, "role", "", "`role` of the caller: reader, writer or admin")
			flags.StringVar(&n.expires, "expires", "90d", "`time` until the token expires, as in 12h or 90d, or never")
			flags.StringVar(&n.name, "name", "", "`name` of the caller in logs")
		},
		Run: func(ctx context.Context, call config.OfflineCall) error {
			token, err := n.check(call.Path, time.Now())
			if err != nil {
				return err
			}
			secret, created, err := tokenfile.Create(ctx, call.Path, token)
			if err != nil {
				return tokenFileError(err)
			}
			if _, err := fmt.Fprintln(call.Out, secret); err != nil {
				return fmt.Errorf("token %s was created but not printed; revoke it: %w", created.ID, err)
			}
			fmt.Fprintf(call.Err, "created token %s in %s: %s of %s, expires %s; %s\n", created.ID, call.Path, created.Role,
				tenantsText(created.Tenants), tokenfile.ExpiryText(created.Expires), signalHint)
			return nil
		},
	}
}

// check returns the token that the flags describe, or all faults in them.
func (n *newToken) check(file string, now time.Time) (tokenfile.Token, error) {
	faults := fileFaults(file)
	fault := func(flag string, err error) {
		if err != nil {
			faults = append(faults, flag+": "+err.Error())
		}
	}
	t := tokenfile.Token{Tenants: n.tenants, Name: n.name, Created: now}
	fault("--tenant", auth.CheckTenants(n.tenants))
	var err error
	t.Role, err = auth.ParseRole(n.role)
	fault("--role", err)
	t.Expires, err = expiry(n.expires, now)
	fault("--expires", err)
	fault("--name", tokenfile.CheckName(n.name))
	if len(faults) > 0 {
		return tokenfile.Token{}, &config.Error{Faults: faults}
	}
	return t, nil
}

// expiry returns the time at which a token that is created now expires. The zero time means never.
func expiry(text string, now time.Time) (time.Time, error) {
	if text == neverExpires {
		return time.Time{}, nil
	}
	after, err := config.ParseDuration(text)
	switch {
	case err != nil:
		return time.Time{}, fmt.Errorf("%w, or never", err)
	case after < time.Second || after > maxExpiry:
		return time.Time{}, fmt.Errorf("%.80q is not 1s to %dd; use never for a token that does not expire",
			text, maxExpiry/(24*time.Hour))
	}
	return now.Add(after), nil
}

func tokenListCommand() config.Offline {
	var output string
	return config.Offline{
		Use: "list", Short: "List the tokens of a file", Args: cobra.NoArgs,
		Long: "List the tokens of a file with their ids. The file does not contain the tokens themselves.",
		Flags: func(flags *pflag.FlagSet) {
			flags.SortFlags = false
			flags.StringVarP(&output, "output", "o", "table", "`format` of the output: table or json")
		},
		Run: func(_ context.Context, call config.OfflineCall) error {
			faults := fileFaults(call.Path)
			if output != "table" && output != "json" {
				faults = append(faults, fmt.Sprintf("--output: %.80q is not one of table, json", output))
			}
			if len(faults) > 0 {
				return &config.Error{Faults: faults}
			}
			tokens, err := tokenfile.List(call.Path)
			if err != nil {
				return tokenFileError(err)
			}
			if output == "json" {
				return printTokensJSON(call.Out, tokens, time.Now())
			}
			return printTokens(call.Out, tokens, time.Now())
		},
	}
}

func printTokens(out io.Writer, tokens []tokenfile.Token, now time.Time) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tROLE\tTENANTS\tCREATED\tEXPIRES\tNAME")
	for _, t := range tokens {
		expires := tokenfile.ExpiryText(t.Expires)
		if expired(t, now) {
			expires += " (expired)"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", t.ID, t.Role, tenantsText(t.Tenants),
			t.Created.Format(time.RFC3339), expires, t.Name)
	}
	return table.Flush()
}

func printTokensJSON(out io.Writer, tokens []tokenfile.Token, now time.Time) error {
	type line struct {
		ID      string    `json:"id"`
		Role    string    `json:"role"`
		Tenants []string  `json:"tenants"`
		Created time.Time `json:"created"`
		Expires time.Time `json:"expires,omitzero"` // absent if the token does not expire
		Expired bool      `json:"expired"`
		Name    string    `json:"name"`
	}
	lines := make([]line, 0, len(tokens))
	for _, t := range tokens {
		lines = append(lines, line{t.ID, t.Role.String(), t.Tenants, t.Created, t.Expires, expired(t, now), t.Name})
	}
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(lines)
}

func expired(t tokenfile.Token, now time.Time) bool {
	return !t.Expires.IsZero() && !now.Before(t.Expires)
}

func tokenRevokeCommand() config.Offline {
	return config.Offline{
		Use: "revoke ID", Short: "Remove a token from a file", Args: cobra.ExactArgs(1),
		Long: "Remove the token with ID from a file. When the server has read the file again, it does not accept the " +
			"token\nany more, and ends the streams of its callers.",
		Run: func(ctx context.Context, call config.OfflineCall) error {
			if faults := fileFaults(call.Path); len(faults) > 0 {
				return &config.Error{Faults: faults}
			}
			t, err := tokenfile.Revoke(ctx, call.Path, call.Args[0])
			if err != nil {
				return tokenFileError(err)
			}
			fmt.Fprintf(call.Err, "revoked token %s in %s: %s of %s; %s\n", t.ID, call.Path, t.Role, tenantsText(t.Tenants),
				signalHint)
			return nil
		},
	}
}

func fileFaults(file string) []string {
	if file == "" {
		return []string{"--file: must not be empty; use the path of the file of tokens, or set PARLEY_AUTH_TOKEN_FILE"}
	}
	return nil
}

func tenantsText(tenants []string) string { return strings.Join(tenants, ",") }

// tokenFileError returns an error that ends the program with exitUsage if the operator can correct it.
func tokenFileError(err error) error {
	if bad, ok := errors.AsType[*tokenfile.FaultsError](err); ok {
		return &config.Error{Faults: bad.Faults}
	}
	if unknown, ok := errors.AsType[*tokenfile.UnknownError](err); ok {
		return &config.Error{Faults: []string{unknown.Error()}}
	}
	return err
}
