package config

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// Offline is a subcommand that works on files of the server, or asks a running server. It reads only the settings that
// it names, so that faults in other settings, for example a missing secret, do not prevent it.
type Offline struct {
	Use, Short, Long string
	// Setting is the name of the setting that the command reads. If empty, it is the data directory.
	Setting string
	// Flag and Usage are the name and the help text of the flag of the setting. If empty, they are those of
	// the server.
	Flag, Usage string
	// More are the names of further settings that the command reads, with the flags of the server.
	More []string
	// NeedsRedis says that the command reads RedisSettings and needs a URL of Redis.
	NeedsRedis bool
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
	Config   *Config   // has the values of the settings that the command reads; the others are defaults
	Args     []string
}

// command returns the cobra command, with its own loader.
func (o *Offline) command(environ []string) *cobra.Command {
	if len(o.Commands) > 0 {
		return o.group(environ)
	}
	l := newLoader(environ)
	s, flagName := l.setting(cmp.Or(o.Setting, dataDirName)), cmp.Or(o.Flag, o.Setting, dataDirName)
	names := o.More
	if o.NeedsRedis {
		names = append(slices.Clone(names), RedisSettings()...)
	}
	more := make([]*setting, len(names))
	for i, name := range names {
		more[i] = l.setting(name)
	}
	command := &cobra.Command{
		Use: o.Use, Short: o.Short, Long: o.Long, Hidden: o.Hidden,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := o.Args(cmd, args); err != nil {
				return &Error{Faults: []string{fmt.Sprintf("command line: %v; see '%s --help'", err, cmd.CommandPath())}}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := l.readOnly(cmd.Flags(), flagName, s, o.NeedsRedis, more...); err != nil {
				return err
			}
			return o.Run(cmd.Context(), OfflineCall{
				Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr(), Path: s.value.String(), Config: l.config, Args: args,
			})
		},
	}
	command.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &Error{Faults: []string{fmt.Sprintf("command line: %v; see '%s --help'", err, cmd.CommandPath())}}
	})
	if o.Flags != nil {
		o.Flags(command.Flags())
	}
	l.addFlags(command.Flags(), more...)
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

// readOnly reads only the setting s, which has the flag flagName, and more from file, environment and flags, in the
// same order as load. If needsRedis is set, it also checks the settings of Redis, and reads the password.
func (l *loader) readOnly(
	flags *pflag.FlagSet, flagName string, s *setting, needsRedis bool, more ...*setting,
) error {
	place := l.namePath(flags)
	all := append([]*setting{s}, more...)
	if l.path != "" {
		l.readOnlyFile(place, all)
	}
	for _, s := range all {
		if text, found := l.lookup(s.variable()); found {
			l.set(s, s.variable(), text)
		}
	}
	for i, s := range all {
		flag := s.name
		if i == 0 {
			flag = flagName
		}
		for _, text := range s.flagValues {
			l.set(s, "--"+flag, text)
		}
	}
	if needsRedis {
		if l.config.Redis.URL == "" {
			l.fault(l.place("redis-url"), "is required, for example redis://127.0.0.1:6379")
		}
		l.checkRedisAccess()
	}
	if len(l.faults) > 0 {
		return &Error{Faults: l.faults}
	}
	return nil
}

// readOnlyFile reads only these settings from the file l.path.
func (l *loader) readOnlyFile(place string, settings []*setting) {
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
		for _, s := range settings {
			if n := child(root, s.key()); n != nil {
				(&file{loader: l, name: l.path}).setting(s)(s.key(), n)
			}
		}
	}
}

const aboutCompletion = `Print a script that completes the command line of parleyd. For the current shell:

  bash         source <(parleyd completion bash)
  zsh          source <(parleyd completion zsh)
  fish         parleyd completion fish | source
  powershell   parleyd completion powershell | Out-String | Invoke-Expression

The packages of parleyd install the scripts of bash, zsh and fish.`

// completionCommand returns the command that prints the completion script of a shell.
func completionCommand() *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use:       "completion " + strings.Join(shells, "|"),
		Short:     "Print the script that completes commands and flags in a shell",
		Long:      aboutCompletion,
		ValidArgs: shells,
		Args: func(cmd *cobra.Command, args []string) error {
			if cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs)(cmd, args) != nil {
				return &Error{Faults: []string{fmt.Sprintf("command line: name one shell, %s, not %.80q; see '%s --help'",
					strings.Join(shells, ", "), strings.Join(args, " "), cmd.CommandPath())}}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			}
			return root.GenPowerShellCompletionWithDesc(out)
		},
	}
}

// completeValues completes the values of the settings that accept only some words, such as memory|bolt. A shell
// completes file names for paths, and nothing for other values.
func completeValues(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		var words []string
		directive := cobra.ShellCompDirectiveNoFileComp
		switch kind := f.Value.Type(); {
		case kind == "path", f.Name == "config":
			directive = cobra.ShellCompDirectiveDefault
		case strings.Contains(kind, "|"):
			words = strings.Split(kind, "|")
		}
		_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(words, directive)) // Fails only if called twice.
	})
}
