// Package config reads the settings of parleyd from the command line, the environment and a YAML
// file. It checks all of them and returns a [Config], or all faults at once.
//
// The table of settings is in this file; load.go merges the sources. Agents are configured in the
// file only and are read by agents.go. values.go contains the types of values, and print.go prints
// the settings for check-config. Start at [NewCommand].
package config

import (
	"context"
	"log/slog"
	"math"
	"regexp"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/parleyhq/parley/store"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
	day = 24 * time.Hour

	maxMessage = store.MaxMessageBytes
	maxTurns   = 1024 // of the server
	maxImports = 16   // of the server
	minBudget  = 64 * kib
)

// dataDirName is the name of the setting that offline commands share with the server.
const dataDirName = "data-dir"

// Config contains the checked settings from all sources. [NewCommand] creates it. Its fields must
// not be changed. Sizes are in bytes.
type Config struct {
	GRPCAddress string // host:port or unix:PATH
	HTTPAddress string // host:port; empty: no HTTP listener
	// DebugAddress is a loopback host:port or unix:PATH. If empty, there are no profiles.
	DebugAddress string
	Insecure     bool // allow any address, host and network
	// HTTPAllowedOrigins are the origins of web pages that may call over HTTP, as in
	// "https://app.example".
	HTTPAllowedOrigins []string
	Console            bool   // serve the console, a web page, at / of the HTTP listener
	ConsoleReadOnly    bool   // the console has no button that changes anything
	A2A                bool   // serve the agents over the A2A protocol
	A2AURL             string // where its clients reach the HTTP listener: "https://agents.example"; empty: by the request
	A2APushPrivate     bool   // allow push notifications to addresses that are not public

	// TLS of the listeners. Unix sockets have none.
	TLSCertFile     string // empty: no TLS
	TLSKeyFile      string
	TLSClientCAFile string // empty: client certificates are not requested
	TLSClientAuth   string // ClientAuthOptional, ClientAuthRequired; empty: no TLSClientCAFile

	// Sign-in. If no kind is set, sign-in is off; see SignIn.
	AuthTokenFile                  string
	OIDCIssuer                     string // URL
	OIDCAudience                   string
	OIDCTenantClaim, OIDCRoleClaim string
	ClientCertificates             []ClientCertificate // in the file only

	Store                string        // "memory", "bolt" or StoreRedis
	Redis                Redis         // of the store on Redis
	Peers                Peers         // other servers on the same Redis
	DataDir              string        // directory of the bolt store's file and of logs; need not exist
	JournalBudget        int           // bytes of appends in the journal at which they are folded; 0: no journal
	JournalAge           time.Duration // time between folds if the journal does not reach its budget before
	CacheBytes           int           // maximum memory for conversations and summaries; 0: no cache
	MaxMessages          int           // per conversation, 1 to store.MaxMessages
	TTL                  time.Duration // time from a conversation's last append to its expiry
	MaxConversations     int           // per tenant; 0: no limit
	MaxBytes             int           // of the conversations of a tenant; 0: no limit
	MaxTenantRecordBytes int           // of the records of a tenant itself; 0: no limit
	MaxMessageBytes      int           // at most MaxConversationBytes
	MaxConversationBytes int           // at most store.MaxConversationBytes
	MaxRecordBytes       int           // of the records of a conversation
	AllowKeepAll         bool          // clients may set retention.keep_all
	AllowNoExpiry        bool          // clients may set retention.no_expiry
	AllowNoEviction      bool          // clients may set retention.no_eviction

	TurnTimeout    time.Duration // maximum duration of a turn
	IdleTimeout    time.Duration // maximum time in a turn without output of the agent
	StopGrace      time.Duration // maximum time that a stop waits for running turns; 0: no wait
	MaxAnswerBytes int           // at most MaxConversationBytes
	MaxTurns       int           // running turns per tenant
	MaxWatchers    int           // of all tenants
	KeepaliveTime  time.Duration // time without data after which a client is pinged

	RequestsPerSecond    int // per tenant; 0: no limit
	AppendBytesPerSecond int // per tenant; 0: no limit
	MaxTenantWatchers    int // per tenant; 0: no limit
	MaxStreams           int // per tenant; 0: no limit
	MaxImports           int // running imports per tenant; 0: no limit
	// Tenants are the tenants for which the file sets limits, sorted by name.
	Tenants []*Tenant

	MemoryWarningBytes int // size of all conversations; 0: no warning
	InteractionLog     bool
	LogRedact          []*regexp.Regexp // matches are not written to the interaction log
	LogRetentionDays   int              // days before today to keep; 0: all
	LogLevel           slog.Level
	LogFormat          string // "text" or "json"; empty: text on a terminal, else JSON

	MetricsAddress string        // host:port; empty: no listener of its own, see MetricsOverHTTP
	MetricsTenants []string      // tenants that metrics name; at most MaxMetricsTenants
	LogCalls       string        // which calls have a log entry: "off", "errors", "slow" or "all"
	SlowCallTime   time.Duration // time above which a call is slow

	DefaultAgent string  // name of one of Agents
	Agents       []Agent // sorted by name, without duplicates; always includes echo

	Warnings []Warning

	settingsRead []*setting // for NeedRestart and Write
}

// SummaryBytes returns the part of CacheBytes for routing summaries. The rest is for conversations; only the bolt store
// uses it.
func (c *Config) SummaryBytes() int { return c.CacheBytes / 8 }

// Warning describes a setting that is allowed but probably a mistake. It contains no secret.
type Warning struct {
	Setting string // name of the variable or place in the file
	Problem string // constant text for each kind of warning
	Advice  string
}

// String returns the warning on one line.
func (w Warning) String() string { return w.Setting + ": " + w.Problem + "; " + w.Advice }

// settings returns the table of everything that flags, environment and file can set, in the order
// of the help text. It also sets every field of c to its default.
func (c *Config) settings() []*setting { //nolint:funlen // one table
	return slices.Concat([]*setting{
		newSetting("grpc-address", grpcAddress(&c.GRPCAddress, "127.0.0.1:50051"),
			"address of the gRPC listener: host:port (port 0 picks a free one) or unix:PATH"),
		newSetting("http-address", httpAddress(&c.HTTPAddress, "127.0.0.1:8080"),
			"address of the HTTP listener for JSON, MCP (/mcp), /healthz, /readyz and /metrics; empty: no listener"),
		newSetting("debug-address", debugAddress(&c.DebugAddress),
			"address of the listener for profiles, which has no sign-in: a loopback host:port or unix:PATH; empty: no listener"),
		newSetting("http-allowed-origins", origins(&c.HTTPAllowedOrigins),
			"origins of web pages that may call over HTTP, as in https://app.example, separated by commas; empty: none"),
		newSetting("console", boolean(&c.Console, true),
			"serve the console, a web page on which people see conversations and turns, at / of the HTTP listener"),
		newSetting("console-read-only", boolean(&c.ConsoleReadOnly, false),
			"show no button on the console that changes anything; what callers may do is not affected"),
		newSetting("a2a", boolean(&c.A2A, false),
			"serve the agents to other agents over the A2A protocol, on the HTTP and the gRPC listener"),
		newSetting("a2a-url", origin(&c.A2AURL),
			"address of the HTTP listener that agent cards name, as in https://agents.example; empty: that of the request"),
		newSetting("a2a-push-private", boolean(&c.A2APushPrivate, false),
			"allow push notifications of A2A to loopback and private addresses, and without TLS"),
		newSetting("insecure", boolean(&c.Insecure, false),
			"allow addresses that other machines can reach, without TLS or without sign-in"),
	}, c.signInSettings(), []*setting{
		newSetting("store", choice(&c.Store, "bolt", "memory", "bolt", StoreRedis),
			"store of the conversations: memory loses them when the server stops, redis is Redis or Valkey at redis-url"),
		newSetting(dataDirName, text(&c.DataDir, "./data", 1, 4096, "path"),
			"directory of parley.db, its journal and interactions/; created if missing, for this user only"),
		newSetting("journal-budget", size(&c.JournalBudget, 256*mib, 0, 4*gib),
			"size of the appends in the journal at which they are folded into the file; 0: no journal"),
		newSetting("journal-age", duration(&c.JournalAge, time.Minute, time.Second, day),
			"time between folds of the journal if it does not reach its budget before"),
		newSetting("cache-bytes", size(&c.CacheBytes, 64*mib, 0, math.MaxInt),
			"maximum memory for conversations, records and summaries that may be read again; 0: no cache"),
	}, c.redisSettings(), c.peerSettings(), []*setting{
		newSetting("max-messages", count(&c.MaxMessages, 20, 1, store.MaxMessages),
			"messages kept per conversation unless its retention says otherwise; the oldest are dropped"),
		newSetting("ttl", duration(&c.TTL, time.Hour, 100*time.Millisecond, 366*day),
			"time from the last append to the expiry of a conversation unless its retention says otherwise"),
		reloadable(newSetting("max-conversations", count(&c.MaxConversations, 1000, 0, math.MaxInt32),
			"conversations kept per tenant; the oldest are evicted; 0: no limit")),
		reloadable(newSetting("max-bytes", size(&c.MaxBytes, 0, 0, math.MaxInt),
			"maximum size of the conversations and records of a tenant; 0: no limit")),
		newSetting("max-message-bytes", size(&c.MaxMessageBytes, 256*kib, kib, maxMessage),
			"maximum size of a message; a larger one is rejected"),
		newSetting("max-conversation-bytes", size(&c.MaxConversationBytes, maxMessage, kib, store.MaxConversationBytes),
			"maximum size of the messages of a conversation; the oldest are dropped, or appends are refused"),
		newSetting("max-record-bytes", size(&c.MaxRecordBytes, store.MaxRecordBytes, kib, math.MaxInt),
			"maximum size of the records of a conversation; writes that exceed it are refused"),
		reloadable(newSetting("max-tenant-record-bytes", size(&c.MaxTenantRecordBytes, 1024*mib, 0, math.MaxInt),
			"maximum size of the records of a tenant that belong to no conversation; 0: no limit")),
		newSetting("allow-keep-all", boolean(&c.AllowKeepAll, true),
			"allow conversations that keep all messages (retention.keep_all)"),
		newSetting("allow-no-expiry", boolean(&c.AllowNoExpiry, true),
			"allow conversations that do not expire (retention.no_expiry)"),
		newSetting("allow-no-eviction", boolean(&c.AllowNoEviction, true),
			"allow conversations that are not evicted (retention.no_eviction)"),
		newSetting("turn-timeout", duration(&c.TurnTimeout, 5*time.Minute, time.Millisecond, day),
			"maximum duration of a turn"),
		newSetting("idle-timeout", duration(&c.IdleTimeout, time.Minute, time.Millisecond, day),
			"maximum time in a turn without output of the agent"),
		newSetting("stop-grace", duration(&c.StopGrace, 30*time.Second, 0, day),
			"maximum time that a stop waits for running turns; 0s: no wait"),
		newSetting("max-answer-bytes", size(&c.MaxAnswerBytes, mib, kib, maxMessage),
			"maximum size of an answer; a turn with a larger one fails and keeps what had arrived"),
		reloadable(newSetting("max-turns", count(&c.MaxTurns, 256, 1, maxTurns),
			"maximum number of running turns per tenant")),
		newSetting("max-watchers", count(&c.MaxWatchers, 10_000, 1, math.MaxInt32),
			"maximum number of streams of WatchConversations and of waiting calls of GetRoutingSummary"),
		reloadable(newSetting("max-tenant-watchers", count(&c.MaxTenantWatchers, 0, 0, math.MaxInt32),
			"maximum number of these streams and calls per tenant; 0: no limit")),
		reloadable(newSetting("max-streams", count(&c.MaxStreams, 0, 0, math.MaxInt32),
			"maximum number of open streams per tenant; 0: no limit")),
		reloadable(newSetting("max-imports", count(&c.MaxImports, maxImports, 0, maxImports),
			"maximum number of running imports per tenant; 0: no limit besides that of the server")),
		reloadable(newSetting("requests-per-second", count(&c.RequestsPerSecond, 0, 0, math.MaxInt32),
			"maximum number of calls per tenant and second; 0: no limit")),
		reloadable(newSetting("append-bytes-per-second", size(&c.AppendBytesPerSecond, 0, 0, math.MaxInt32),
			"maximum size of the stored requests per tenant and second; 0: no limit")),
		newSetting("keepalive-time", duration(&c.KeepaliveTime, time.Minute, time.Second, day),
			"time without data after which a client is pinged; it must answer within a third of that time"),
		newSetting("memory-warning-bytes", size(&c.MemoryWarningBytes, 100*mib, 0, math.MaxInt),
			"size of all conversations above which a warning is logged; 0: never"),
		newSetting("interaction-log", boolean(&c.InteractionLog, true),
			"log every message in daily files in data-dir/interactions; with the memory store only if set"),
		newSetting("log-redact", expressions(&c.LogRedact),
			"regular expressions, one per line; the interaction log replaces matches with [redacted]"),
		newSetting("log-retention-days", count(&c.LogRetentionDays, 0, 0, 36500),
			"days of the interaction log to keep before today; 0: all"),
		reloadable(newSetting("log-level", level(&c.LogLevel, slog.LevelInfo),
			"minimum level of the messages on standard error")),
		newSetting("log-format", choice(&c.LogFormat, "", "text", "json"),
			"format of these messages (default text on a terminal, else json)"),
	}, c.telemetrySettings())
}

const help = `parleyd stores multi-turn conversations for agent services and serves them over gRPC.

Each flag can also be set in the environment and in a YAML file: --max-messages is
PARLEY_MAX_MESSAGES and max_messages. Flags override the environment, the environment
overrides the file, and the file overrides the defaults. Unknown flags and keys are errors;
unknown PARLEY_ variables are warnings. Sizes are numbers of bytes, or as in 256KiB, 3MiB
or 1GiB. Durations are as in 90s, 1h30m or 7d.

The rules that map client certificates to tenants and roles are in the file only, under the
key client_certificates; see server/README.md.

Limits of one tenant that differ from the defaults are set in the file only:

    tenants:
      acme: {max_conversations: 5000, max_bytes: 1GiB, requests_per_second: 500,
        append_bytes_per_second: 1MiB, max_turns: 64, max_watchers: 100, max_streams: 200,
        max_imports: 2}

Agents are configured in the file only. The agent echo, which repeats the user's message,
always exists. It answers unless default_agent configures another agent:

    default_agent: writer
    agents:
      writer:
        kind: command                   # one process per turn, without a shell
        command: [python3, writer.py]
        format: text                    # or stream-json
        dir: /srv/writer                # working directory
        env: [API_KEY]                  # variables besides PATH, HOME and the like
        description: Writes.
        system_prompt: You write.
        window: {max_messages: 0, max_exchanges: 5, max_bytes: 0, cache_stable: false}
        max_concurrent: 4               # answers at the same time; further ones wait
        structured_blocks: true         # a block json type=NAME at the end of an answer is structured data
      local:
        kind: openai                    # any compatible API; without base_url, OpenAI's own
        base_url: http://127.0.0.1:11434/v1
        model: llama3.2
        reasoning_effort: ""            # empty: not sent; otherwise for example low
      claude:
        kind: anthropic
        model: claude-sonnet-4-5
        api_key_env: ANTHROPIC_API_KEY  # or api_key_file: PATH, read at the start
        headers: {x-team: shop, x-token: {env: TEAM_TOKEN}}  # or {file: PATH}
        max_output_tokens: 4096
        temperature: 0.3
        thinking_tokens: 0              # 0: not sent; otherwise at least 1024, and no temperature is sent
        tools:                          # callers of Chat run them
          - name: find_product
            description: Finds products by name.
            parameters: {type: object, properties: {name: {type: string}}}
      planner:
        kind: remote                    # an AgentService in any language
        address: planner.example:7001   # or unix:PATH
        tls: {}                         # ca_file, cert_file, key_file, server_name
      helper:
        kind: a2a                       # any agent that speaks A2A
        url: https://helper.example     # of the agent or of its card
        hosts: [api.helper.example]     # other hosts that its card may name
      parrot: {kind: echo}
`

// NewCommand returns the command line of parleyd. args are the arguments without the program's
// name, environ has the form "NAME=value". When executed, the command reads the settings and calls
// serve; the subcommand check-config prints them instead. If the settings have faults, the error is
// an *Error. All other errors come from serve, from printing or from an offline command. Help is
// printed without reading the settings.
func NewCommand(args, environ []string, serve func(context.Context, *Config) error, offline ...Offline) *cobra.Command {
	l := newLoader(environ)
	withConfig := func(use func(*cobra.Command, *Config) error) func(*cobra.Command, []string) error {
		return func(cmd *cobra.Command, _ []string) error {
			c, err := l.load(cmd.Flags(), args)
			if err != nil {
				return err
			}
			return use(cmd, c)
		}
	}
	// pflag would stop at the first unknown flag; load reports all of them.
	lenient := cobra.FParseErrWhitelist{UnknownFlags: true}
	root := &cobra.Command{
		Use:   "parleyd",
		Short: "Serve multi-turn conversations to agent services",
		Long:  help,
		RunE:  withConfig(func(cmd *cobra.Command, c *Config) error { return serve(cmd.Context(), c) }),

		Args:               cobra.ArbitraryArgs, // load reports arguments together with all other faults
		FParseErrWhitelist: lenient,
		SilenceErrors:      true,
		SilenceUsage:       true,
		CompletionOptions:  cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	check := &cobra.Command{
		Use:   "check-config",
		Short: "Print the effective settings, or all faults in them, and exit",
		Long:  checkConfigHelp,
		RunE:  withConfig(l.print),

		Args:               cobra.ArbitraryArgs,
		FParseErrWhitelist: lenient,
	}
	root.AddCommand(check, completionCommand())
	for _, o := range offline {
		root.AddCommand(o.command(environ))
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		l.fault("command line", "%v", err)
		return cmd.RunE(cmd, nil)
	})
	root.SetArgs(append([]string{}, args...)) // cobra would replace nil by os.Args
	l.addFlags(root.Flags(), l.settings...)
	l.addFlags(check.Flags(), l.settings...)
	completeValues(root)
	completeValues(check)
	return root
}

// addFlags adds --config and one flag for each setting.
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
