package config

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// Offline is a subcommand that works on files of the server. It reads only one setting, the path of its files, so
// that faults in other settings, for example a missing secret, do not prevent it.
type Offline struct {
	Use, Short, Long string
	// Setting is the name of the setting that the command reads. If empty, it is the data directory.
	Setting string
	// Flag and Usage are the name and the help text of the flag of the setting. If empty, they are those of
	// the server.
	Flag, Usage string
	// Hidden hides the command from the help text.
	Hidden bool
	// Args checks the arguments. Its error is returned as an *Error.
	Args cobra.PositionalArgs
	// Flags adds the command's own flags; nil adds none.
	Flags func(*pflag.FlagSet)
	// Run runs the command.
	Run func(ctx context.Context, call OfflineCall) error
	// Commands are the subcommands of a command that only groups them. Such a command has no Args, Flags and Run.
	Commands []Offline
}

// OfflineCall is one execution of an Offline.
type OfflineCall struct {
	Out, Err io.Writer // standard output and standard error
	Path     string    // value of the setting
	Args     []string
}

// command returns the cobra command, with its own loader.
func (o *Offline) command(environ []string) *cobra.Command {
	if len(o.Commands) > 0 {
		return o.group(environ)
	}
	l := newLoader(environ)
	s, flagName := l.setting(cmp.Or(o.Setting, dataDirName)), cmp.Or(o.Flag, o.Setting, dataDirName)
	command := &cobra.Command{
		Use: o.Use, Short: o.Short, Long: o.Long, Hidden: o.Hidden,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := o.Args(cmd, args); err != nil {
				return &Error{Faults: []string{fmt.Sprintf("command line: %v; see '%s --help'", err, cmd.CommandPath())}}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := l.readOnly(s, cmd.Flags(), flagName); err != nil {
				return err
			}
			return o.Run(cmd.Context(), OfflineCall{
				Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr(), Path: s.value.String(), Args: args,
			})
		},
	}
	command.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &Error{Faults: []string{fmt.Sprintf("command line: %v; see '%s --help'", err, cmd.CommandPath())}}
	})
	if o.Flags != nil {
		o.Flags(command.Flags())
	}
	l.addFlags(command.Flags())
	command.Flags().Var(s, flagName, cmp.Or(o.Usage, s.usage))
	return command
}

// group returns a command with subcommands. Without one of them it fails.
func (o *Offline) group(environ []string) *cobra.Command {
	command := &cobra.Command{
		Use: o.Use, Short: o.Short, Long: o.Long, Hidden: o.Hidden, Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return &Error{Faults: []string{fmt.Sprintf("command line: use one of the commands of %s; see '%s --help'",
				cmd.Name(), cmd.CommandPath())}}
		},
	}
	command.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &Error{Faults: []string{fmt.Sprintf("command line: %v; see '%s --help'", err, cmd.CommandPath())}}
	})
	for _, sub := range o.Commands {
		command.AddCommand(sub.command(environ))
	}
	return command
}

// readOnly reads only the setting s from file, environment and the flag, in the same order as load.
func (l *loader) readOnly(s *setting, flags *pflag.FlagSet, flagName string) error {
	place := l.namePath(flags)
	if l.path != "" {
		l.readOnlyFile(place, s)
	}
	if text, found := l.lookup(s.variable()); found {
		l.set(s, s.variable(), text)
	}
	for _, text := range s.flagValues {
		l.set(s, "--"+flagName, text)
	}
	if len(l.faults) > 0 {
		return &Error{Faults: l.faults}
	}
	return nil
}

// readOnlyFile reads only the setting s from the file l.path.
func (l *loader) readOnlyFile(place string, s *setting) {
	data, err := os.ReadFile(l.path)
	if err != nil {
		l.fault(place, "%v", err)
		return
	}
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		l.fault(l.path, "%v", err)
		return
	}
	for _, root := range document.Content { // There is no root node if the file has only comments.
		if n := child(root, s.key()); n != nil {
			(&file{loader: l, name: l.path}).setting(s)(s.key(), n)
		}
	}
}
