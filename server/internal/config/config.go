// Package config is what parleyd can be told: it reads the command line, the environment and
// a YAML file, checks what they say, and gives a Config, or all that is wrong with it at once.
//
// Begin with Config and its table of settings in this file. NewCommand, at the end of it, is
// the way in; load in load.go is how the sources go together. Agents stand in the file only:
// they begin in agents.go. What a value may be is in values.go, and print.go writes the
// settings for check-config.
package config

import (
	"context"
	"log/slog"
	"math"
	"regexp"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	day = 24 * time.Hour
)

// dataDirName is the setting that the commands on files share with the server.
const dataDirName = "data-dir"

// Config is what the server was told, read from every source and checked; NewCommand gives
// it. Its fields are not to be changed. Sizes are in bytes.
type Config struct {
	GRPCAddress string // host:port or unix:PATH
	HTTPAddress string // host:port; empty: no HTTP
	Insecure    bool   // any address, host and network is allowed
	// HTTPAllowedOrigins are those of web pages that may call, as in "https://app.example".
	HTTPAllowedOrigins []string

	Store                string        // "memory" or "bolt"
	DataDir              string        // where bolt keeps its file; may be missing
	MaxMessages          int           // kept per conversation, 1 to 1000
	TTL                  time.Duration // of a conversation after its last append
	MaxConversations     int           // per tenant; 0: no limit
	MaxMessageBytes      int           // at most MaxConversationBytes
	MaxConversationBytes int           // at most 3 MiB

	TurnTimeout    time.Duration // for a whole turn
	IdleTimeout    time.Duration // for an agent's silence within a turn
	StopGrace      time.Duration // for running turns when the server stops; 0: no waiting
	MaxAnswerBytes int           // at most MaxConversationBytes
	MaxTurns       int           // at once per tenant
	MaxWatchers    int           // at once
	KeepaliveTime  time.Duration // of a client's silence until it is asked whether it is there

	MemoryWarningBytes int // of all conversations; 0: no warning
	InteractionLog     bool
	LogRedact          []*regexp.Regexp // what they match is not to reach the interaction log
	LogRetentionDays   int              // of the interaction log, before today; 0: all are kept
	LogLevel           slog.Level
	LogFormat          string // "text" or "json"; empty: text on a terminal, else JSON

	DefaultAgent string  // the name of one of Agents
	Agents       []Agent // by name, each once; echo is always among them

	Warnings []Warning
}

// Warning is of what is allowed, but hardly meant. No secret is in it.
type Warning struct {
	Setting string // the variable, or the place in the file
	Problem string // one text for each kind of warning
	Advice  string
}

// String is the warning on one line.
func (w Warning) String() string { return w.Setting + ": " + w.Problem + "; " + w.Advice }

// settings is the one table of what flags, environment and file can set, in the order of
// the help. Making it gives every field of c its default.
func (c *Config) settings() []*setting {
	return []*setting{
		newSetting("grpc-address", grpcAddress(&c.GRPCAddress, "127.0.0.1:50051"),
			"where gRPC is served: host:port (port 0 picks one) or unix:PATH"),
		newSetting("http-address", httpAddress(&c.HTTPAddress, "127.0.0.1:8080"),
			"where JSON over HTTP, MCP (/mcp), /healthz and /readyz are served; empty: off"),
		newSetting("http-allowed-origins", origins(&c.HTTPAllowedOrigins),
			"origins of web pages that may call over HTTP: https://app.example, separated by commas; none otherwise"),
		newSetting("insecure", boolean(&c.Insecure, false),
			"allow other than loopback addresses without TLS and sign-in"),
		newSetting("store", choice(&c.Store, "bolt", "memory", "bolt", "redis"),
			"where conversations are kept; redis comes with a later version"),
		newSetting(dataDirName, text(&c.DataDir, "./data", 1, 4096, "path"),
			"holds parley.db and interactions/; made when missing, for this user only"),
		newSetting("max-messages", count(&c.MaxMessages, 20, 1, 1000),
			"messages kept per conversation unless it says otherwise, oldest dropped first"),
		newSetting("ttl", duration(&c.TTL, time.Hour, 100*time.Millisecond, 366*day),
			"life of a conversation after its last append unless it says otherwise"),
		newSetting("max-conversations", count(&c.MaxConversations, 1000, 0, math.MaxInt32),
			"conversations kept per tenant, oldest dropped first; 0: no limit"),
		newSetting("max-message-bytes", size(&c.MaxMessageBytes, 256*kib, kib, 3*mib),
			"a larger message is refused"),
		newSetting("max-conversation-bytes", size(&c.MaxConversationBytes, 3*mib, kib, 3*mib),
			"a larger conversation drops its oldest messages"),
		newSetting("turn-timeout", duration(&c.TurnTimeout, 5*time.Minute, time.Millisecond, day),
			"longest time for a whole turn"),
		newSetting("idle-timeout", duration(&c.IdleTimeout, time.Minute, time.Millisecond, day),
			"longest silence of an agent within a turn"),
		newSetting("stop-grace", duration(&c.StopGrace, 30*time.Second, 0, day),
			"how long a stop waits for running turns; 0s: not at all"),
		newSetting("max-answer-bytes", size(&c.MaxAnswerBytes, mib, kib, 3*mib),
			"a turn whose agent says more fails, and what had arrived is kept"),
		newSetting("max-turns", count(&c.MaxTurns, 256, 1, 1024),
			"turns that run at once per tenant"),
		newSetting("max-watchers", count(&c.MaxWatchers, 10_000, 1, math.MaxInt32),
			"streams of WatchConversations and waiting readers at once"),
		newSetting("keepalive-time", duration(&c.KeepaliveTime, time.Minute, time.Second, day),
			"ask a client that was silent so long whether it is there; it has a third of that to answer"),
		newSetting("memory-warning-bytes", size(&c.MemoryWarningBytes, 100*mib, 0, math.MaxInt),
			"warn when conversations take more than this; 0: never"),
		newSetting("interaction-log", boolean(&c.InteractionLog, true),
			"keep a daily log of every word in data-dir/interactions; with the memory store only when set"),
		newSetting("log-redact", expressions(&c.LogRedact),
			"regular expressions, one a line, whose matches that log has as [redacted]"),
		newSetting("log-retention-days", count(&c.LogRetentionDays, 0, 0, 36500),
			"days of that log that are kept before today's; 0: all"),
		newSetting("log-level", level(&c.LogLevel, slog.LevelInfo),
			"least level of the lines on standard error"),
		newSetting("log-format", choice(&c.LogFormat, "", "text", "json"),
			"form of those lines (default text on a terminal, else json)"),
	}
}

const about = `parleyd keeps multi-turn conversations for agent services and serves them over gRPC.

What a flag sets can also be set in the environment and in a YAML file: --max-messages
is PARLEY_MAX_MESSAGES and max_messages. A flag goes before the environment, that before
the file, and that before the default. Unknown flags and keys are errors, unknown
PARLEY_ variables warnings. Sizes are bytes, or as in 256KiB, 3MiB, 1GiB;
durations are as in 90s, 1h30m or 7d.

Agents are named in the file only; echo, which says the user's words again, always exists
and answers unless default_agent says otherwise:

    default_agent: writer
    agents:
      writer:
        kind: command                   # one process a turn, no shell
        command: [python3, writer.py]
        format: text                    # or stream-json
        dir: /srv/writer                # working directory
        env: [API_KEY]                  # variables besides PATH, HOME and the like
        description: Writes.
        system_prompt: You write.
        window: {max_messages: 0, max_exchanges: 5, max_bytes: 0, cache_stable: false}
        max_concurrent: 4               # answers at once, further ones wait
        structured_blocks: true         # a block json type=NAME at an answer's end is data
      local:
        kind: openai                    # any API of that form; without base_url OpenAI's own
        base_url: http://127.0.0.1:11434/v1
        model: llama3.2
      claude:
        kind: anthropic
        model: claude-sonnet-4-5
        api_key_env: ANTHROPIC_API_KEY  # or api_key_file: PATH, read at the start
        headers: {x-team: shop, x-token: {env: TEAM_TOKEN}}  # or {file: PATH}
        max_output_tokens: 4096
        temperature: 0.3
        tools:                          # Chat's callers run them
          - name: find_product
            description: Finds products by name.
            parameters: {type: object, properties: {name: {type: string}}}
      planner:
        kind: remote                    # an AgentService in any language
        address: planner.example:7001   # or unix:PATH
        tls: {}                         # ca_file, cert_file, key_file, server_name
      parrot: {kind: echo}
`

// NewCommand is the command line of parleyd. It reads args (without the program's name)
// and environ ("NAME=value") when it is executed, and calls serve with the settings, or with
// check-config prints them. An *Error says what is wrong with them; any other comes from
// serve, from printing or from one of the offline commands. Help is printed without either.
func NewCommand(args, environ []string, serve func(context.Context, *Config) error, offline ...Offline) *cobra.Command {
	l := newLoader(environ)
	loaded := func(use func(*cobra.Command, *Config) error) func(*cobra.Command, []string) error {
		return func(cmd *cobra.Command, _ []string) error {
			c, err := l.load(cmd.Flags(), args)
			if err != nil {
				return err
			}
			return use(cmd, c)
		}
	}
	// pflag stops at the first unknown flag; load finds them all.
	lenient := cobra.FParseErrWhitelist{UnknownFlags: true}
	root := &cobra.Command{
		Use:   "parleyd",
		Short: "Keep multi-turn conversations for agent services",
		Long:  about,
		RunE:  loaded(func(cmd *cobra.Command, c *Config) error { return serve(cmd.Context(), c) }),

		Args:               cobra.ArbitraryArgs, // so that load reports them with all else
		FParseErrWhitelist: lenient,
		SilenceErrors:      true,
		SilenceUsage:       true,
		CompletionOptions:  cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	check := &cobra.Command{
		Use:   "check-config",
		Short: "Print the settings in force, or all that is wrong with them, and end",
		Long:  aboutCheck,
		RunE:  loaded(l.print),

		Args:               cobra.ArbitraryArgs,
		FParseErrWhitelist: lenient,
	}
	root.AddCommand(check)
	for _, o := range offline {
		root.AddCommand(o.command(environ))
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		l.fault("command line", "%v", err)
		return cmd.RunE(cmd, nil)
	})
	root.SetArgs(append([]string{}, args...)) // cobra takes nil for os.Args
	l.addFlags(root.Flags(), l.settings...)
	l.addFlags(check.Flags(), l.settings...)
	return root
}

// addFlags adds --config and a flag for each of the settings.
func (l *loader) addFlags(flags *pflag.FlagSet, settings ...*setting) {
	flags.SortFlags = false
	flags.StringVar(&l.path, "config", "", "`path` of the YAML file; also PARLEY_CONFIG")
	for _, s := range settings {
		flag := flags.VarPF(s, s.name, "", s.usage)
		if s.Type() == "bool" {
			flag.NoOptDefVal = "true"
		}
	}
}
