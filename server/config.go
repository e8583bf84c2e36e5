package main

import (
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	day = 24 * time.Hour
)

// config is what the server was told, read from every source and checked.
type config struct {
	grpcAddress string // host:port or unix:PATH
	httpAddress string // host:port; empty: no HTTP
	insecure    bool

	store            string // "memory" or "bolt"
	dataDir          string
	maxMessages      int
	ttl              time.Duration
	maxConversations int // 0: no limit

	maxMessageBytes      int
	maxConversationBytes int

	turnTimeout    time.Duration
	idleTimeout    time.Duration
	stopGrace      time.Duration // 0: no waiting
	maxAnswerBytes int
	maxTurns       int
	maxWatchers    int
	keepaliveTime  time.Duration

	memoryWarningBytes int // 0: no warning
	interactionLog     bool
	logLevel           slog.Level
	logFormat          string // "text" or "json"; empty: text on a terminal, else JSON

	defaultAgent string        // one of agents
	agents       []agentConfig // by name; echo is always among them

	warnings []string // what is allowed, but hardly meant: its place, then what is doubtful
}

// settings is the one table of what flags, environment and file can set, in the order of
// the help. Making it gives every field of c its default.
func (c *config) settings() []*setting {
	return []*setting{
		newSetting("grpc-address", grpcAddress(&c.grpcAddress, "127.0.0.1:50051"),
			"where gRPC is served: host:port (port 0 picks one) or unix:PATH"),
		newSetting("http-address", httpAddress(&c.httpAddress, "127.0.0.1:8080"),
			"where HTTP (/healthz, /readyz) is served; empty: off"),
		newSetting("insecure", boolean(&c.insecure, false),
			"allow other than loopback addresses without TLS and sign-in"),
		newSetting("store", choice(&c.store, "bolt", "memory", "bolt", "redis"),
			"where conversations are kept; redis comes with a later version"),
		newSetting("data-dir", text(&c.dataDir, "./data", 1, 4096, "path"),
			"holds parley.db; made when missing, for this user only"),
		newSetting("max-messages", count(&c.maxMessages, 20, 1, 1000),
			"messages kept per conversation unless it says otherwise, oldest dropped first"),
		newSetting("ttl", duration(&c.ttl, time.Hour, 100*time.Millisecond, 366*day),
			"life of a conversation after its last append unless it says otherwise"),
		newSetting("max-conversations", count(&c.maxConversations, 1000, 0, math.MaxInt32),
			"conversations kept per tenant, oldest dropped first; 0: no limit"),
		newSetting("max-message-bytes", size(&c.maxMessageBytes, 256*kib, kib, 3*mib),
			"a larger message is refused"),
		newSetting("max-conversation-bytes", size(&c.maxConversationBytes, 3*mib, kib, 3*mib),
			"a larger conversation drops its oldest messages"),
		newSetting("turn-timeout", duration(&c.turnTimeout, 5*time.Minute, time.Millisecond, day),
			"longest time for a whole turn"),
		newSetting("idle-timeout", duration(&c.idleTimeout, time.Minute, time.Millisecond, day),
			"longest silence of an agent within a turn"),
		newSetting("stop-grace", duration(&c.stopGrace, 30*time.Second, 0, day),
			"how long a stop waits for running turns; 0s: not at all"),
		newSetting("max-answer-bytes", size(&c.maxAnswerBytes, mib, kib, 3*mib),
			"a turn whose agent says more fails, and what had arrived is kept"),
		newSetting("max-turns", count(&c.maxTurns, 256, 1, 1024),
			"turns that run at once per tenant"),
		newSetting("max-watchers", count(&c.maxWatchers, 10_000, 1, math.MaxInt32),
			"streams of WatchConversations and waiting readers at once"),
		newSetting("keepalive-time", duration(&c.keepaliveTime, time.Minute, time.Second, day),
			"ask a client that was silent so long whether it is there; it has a third of that to answer"),
		newSetting("memory-warning-bytes", size(&c.memoryWarningBytes, 100*mib, 0, math.MaxInt),
			"warn when conversations take more than this; 0: never"),
		newSetting("interaction-log", boolean(&c.interactionLog, true),
			"keep a daily log of every word under data-dir; no effect in this version"),
		newSetting("log-level", level(&c.logLevel, slog.LevelInfo),
			"least level of the lines on standard error"),
		newSetting("log-format", choice(&c.logFormat, "", "text", "json"),
			"form of those lines (default text on a terminal, else json)"),
	}
}

const about = `parleyd keeps multi-turn conversations for agent services and serves them over gRPC.

What a flag sets can also be set in the environment and in a YAML file: --max-messages
is PARLEY_MAX_MESSAGES and max_messages. A flag goes before the environment, that before
the file, and that before the default. Sizes are bytes, or as in 256KiB, 3MiB, 1GiB;
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

// newRootCommand is the command line of parleyd. It reads args (without the program's name)
// and environ ("NAME=value"), and calls serve with the settings, or with check-config prints
// them. An error of type faults says what is wrong with them; any other comes from serve or
// from printing. Help is printed without either.
func newRootCommand(args, environ []string, serve func(context.Context, *config) error) *cobra.Command {
	l := newLoader(environ)
	loaded := func(use func(*cobra.Command, *config) error) func(*cobra.Command, []string) error {
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
		RunE:  loaded(func(cmd *cobra.Command, c *config) error { return serve(cmd.Context(), c) }),

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
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		l.fault("command line", "%v", err)
		return cmd.RunE(cmd, nil)
	})
	root.SetArgs(append([]string{}, args...)) // cobra takes nil for os.Args
	l.addFlags(root.Flags())
	l.addFlags(check.Flags())
	return root
}

// addFlags adds --config and a flag for each setting.
func (l *loader) addFlags(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.StringVar(&l.path, "config", "", "`path` of the YAML file; also PARLEY_CONFIG")
	for _, s := range l.settings {
		flag := flags.VarPF(s, s.name, "", s.usage)
		if s.Type() == "bool" {
			flag.NoOptDefVal = "true"
		}
	}
}
