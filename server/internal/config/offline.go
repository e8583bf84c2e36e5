package config

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// Offline is a command on the files of a server that does not run. Of the settings it has the
// data directory only, so that nothing else, a secret of an agent say, must be right.
type Offline struct {
	Use, Short, Long string
	// Hidden from the help.
	Hidden bool
	// Args checks the arguments; a command line that they do not fit is an *Error.
	Args cobra.PositionalArgs
	// Flags adds its own; nil: it has none.
	Flags func(*pflag.FlagSet)
	// Run does it; what it has to say goes to out.
	Run func(ctx context.Context, out io.Writer, dataDir string, args []string) error
}

// command makes it a command, with a loader of its own.
func (o *Offline) command(environ []string) *cobra.Command {
	l := newLoader(environ)
	command := &cobra.Command{
		Use: o.Use, Short: o.Short, Long: o.Long, Hidden: o.Hidden,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := o.Args(cmd, args); err != nil {
				return &Error{Faults: []string{fmt.Sprintf("command line: %v; see '%s --help'", err, cmd.CommandPath())}}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			dataDir, err := l.dataDir(cmd.Flags())
			if err != nil {
				return err
			}
			return o.Run(cmd.Context(), cmd.OutOrStdout(), dataDir, args)
		},
	}
	command.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &Error{Faults: []string{fmt.Sprintf("command line: %v; see '%s --help'", err, cmd.CommandPath())}}
	})
	if o.Flags != nil {
		o.Flags(command.Flags())
	}
	l.addFlags(command.Flags(), l.setting(dataDirName))
	return command
}

// dataDir reads file, environment and flags for this one setting, as load does for all.
func (l *loader) dataDir(flags *pflag.FlagSet) (string, error) {
	place, s := l.namePath(flags), l.setting(dataDirName)
	if l.path != "" {
		l.readDataDir(place, s)
	}
	if text, found := l.lookup(s.variable()); found {
		l.set(s, s.variable(), text)
	}
	for _, text := range s.given {
		l.set(s, "--"+s.name, text)
	}
	if len(l.faults) > 0 {
		return "", &Error{Faults: l.faults}
	}
	return l.config.DataDir, nil
}

// readDataDir reads the setting from the file of l.path, and nothing else.
func (l *loader) readDataDir(place string, s *setting) {
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
	for _, root := range document.Content { // None if there is nothing but comments.
		if n := child(root, s.key()); n != nil {
			(&file{loader: l, name: l.path}).setting(s)(s.key(), n)
		}
	}
}
