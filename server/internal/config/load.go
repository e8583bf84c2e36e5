package config

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Error contains all faults of the settings. Each has its place, what is wrong and what to do. The
// program should exit with code 64.
type Error struct {
	Faults []string // at least one; contains no secret
}

// Error returns one line for a single fault, otherwise one line for each.
func (e *Error) Error() string {
	if len(e.Faults) == 1 {
		return "settings: " + e.Faults[0]
	}
	return fmt.Sprintf("settings: %d faults:\n  %s", len(e.Faults), strings.Join(e.Faults, "\n  "))
}

// setting is one row of the table of settings. As a pflag.Value it only records the values on the
// command line. pflag would otherwise stop at the first fault, and flags must be applied after file
// and environment.
type setting struct {
	name, usage string
	value       pflag.Value
	flagValues  []string // values on the command line
	place       string   // source of the effective value; the flag's name while it is the default
	isSet       bool     // a source sets the value, possibly to the default
	reloads     bool     // a running server applies a new value
}

func newSetting(name string, value pflag.Value, usage string) *setting {
	return &setting{name: name, usage: usage, value: value, place: "--" + name}
}

// reloadable marks a setting that a running server applies when it reads the settings again.
func reloadable(s *setting) *setting {
	s.reloads = true
	return s
}

// Set records a value on the command line without checking it.
func (s *setting) Set(text string) error {
	s.flagValues = append(s.flagValues, text)
	return nil
}

func (s *setting) String() string { return s.value.String() }

// Type returns the kind of value for the help text.
func (s *setting) Type() string { return s.value.Type() }

// key returns the setting's name in the file.
func (s *setting) key() string { return strings.ReplaceAll(s.name, "-", "_") }

// variable returns the setting's name in the environment.
func (s *setting) variable() string { return variablePrefix + strings.ToUpper(s.key()) }

const (
	variablePrefix = "PARLEY_"
	pathVariable   = "PARLEY_CONFIG"
)

// clientVariables returns the variables of the parley command, which may share the environment, except those that
// also name settings of the server: PARLEY_TLS_CERT_FILE and PARLEY_TLS_KEY_FILE.
func clientVariables() []string {
	return []string{"PARLEY_ADDRESS", "PARLEY_TOKEN", "PARLEY_TOKEN_FILE", "PARLEY_TENANT", "PARLEY_TLS_CA_FILE"}
}

// loader reads all sources into one config and collects the faults.
type loader struct {
	config       *Config
	settings     []*setting
	defaultAgent *setting // in the file only
	path         string   // path of the file; empty: no file
	environ      []string // "NAME=value", sorted
	faults       []string

	clientCertificatesAt string // place of client_certificates in the file
}

func newLoader(environ []string) *loader {
	c := &Config{}
	l := &loader{config: c, settings: c.settings(), environ: slices.Sorted(slices.Values(environ))}
	c.settingsRead = l.settings
	l.defaultAgent = &setting{value: text(&c.DefaultAgent, KindEcho, 1, maxAgentName, "name")}
	return l
}

// load reads file, environment and flags and checks the settings. Later sources override earlier
// ones. A value that is overridden is checked, too. The error is an *Error.
func (l *loader) load(flags *pflag.FlagSet, args []string) (*Config, error) {
	place := l.namePath(flags)
	if l.path != "" {
		l.readFile(place)
	}
	l.readEnvironment()
	l.readFlags(flags, args)
	l.config.addEcho()
	l.config.addDefaults()
	l.check()
	if len(l.faults) > 0 {
		return nil, &Error{Faults: l.faults}
	}
	return l.config, nil
}

// NeedRestart returns the names of the settings that next changes and that a running server cannot apply.
func (c *Config) NeedRestart(next *Config) (names []string) {
	for i, s := range c.settingsRead {
		if !s.reloads && s.String() != next.settingsRead[i].String() {
			names = append(names, s.name)
		}
	}
	if len(c.ClientCertificates) == 0 && len(next.ClientCertificates) > 0 {
		names = append(names, "client_certificates")
	}
	return names
}

// namePath sets l.path from the environment unless a flag has set it. It returns the place that set
// it.
func (l *loader) namePath(flags *pflag.FlagSet) (place string) {
	if flags.Changed("config") {
		return "--config"
	}
	l.path = l.variable(pathVariable)
	return pathVariable
}

func (l *loader) fault(place, format string, args ...any) {
	l.faults = append(l.faults, place+": "+fmt.Sprintf(format, args...))
}

// set sets s to the text found at place.
func (l *loader) set(s *setting, place, text string) {
	if err := s.value.Set(text); err != nil {
		l.fault(place, "%v", err)
		return
	}
	s.place, s.isSet = place, true
}

// variable returns the value of an environment variable, empty if it is not set.
func (l *loader) variable(name string) string {
	value, _ := l.lookup(name)
	return value
}

// lookup returns the value of an environment variable, and whether it is set.
func (l *loader) lookup(name string) (value string, found bool) {
	for _, variable := range l.environ {
		if value, found := strings.CutPrefix(variable, name+"="); found {
			return value, true
		}
	}
	return "", false
}

// readEnvironment reads the variables that name settings, and adds a warning for other variables
// with the same prefix. Those are not faults: another program may use them. Kubernetes sets several
// in every pod of a namespace that has a Service named parley.
func (l *loader) readEnvironment() {
	inKubernetes := l.variable("KUBERNETES_SERVICE_HOST") != ""
	known := append(clientVariables(), pathVariable)
	for _, s := range l.settings {
		known = append(known, s.variable())
	}
	for _, variable := range l.environ {
		name, text, _ := strings.Cut(variable, "=")
		i := slices.IndexFunc(l.settings, func(s *setting) bool { return s.variable() == name })
		switch {
		case i >= 0:
			l.set(l.settings[i], name, text)
		case !strings.HasPrefix(name, variablePrefix), slices.Contains(known, name):
		case inKubernetes && isServiceLink(name, text):
		default:
			advice := "parleyd --help lists the known ones"
			if near := nearest(strings.ToUpper(name), known); near != "" {
				advice = "did you mean " + near + "?"
			}
			l.config.Warnings = append(l.config.Warnings, Warning{name, "unknown environment variable ignored", advice})
		}
	}
}

// isServiceLink reports whether a variable has the form that Kubernetes uses for Services, as in
// PARLEY_PORT_50051_TCP_ADDR. No setting has a name of this form.
func isServiceLink(name, text string) bool {
	return strings.HasSuffix(name, "_SERVICE_HOST") || strings.Contains(name, "_SERVICE_PORT") ||
		strings.HasSuffix(name, "_PORT") && strings.Contains(text, "://") ||
		slices.ContainsFunc([]string{"_TCP", "_UDP", "_SCTP"}, func(protocol string) bool {
			return strings.Contains(name, protocol)
		})
}

// nearest returns the known name that is most similar to name. It returns an empty string if more
// than a third of the characters after the prefix differ in every known name.
func nearest(name string, known []string) string {
	best, least := "", math.MaxInt
	for _, candidate := range known {
		distance := editDistance(name, candidate)
		if distance < least && distance <= (len(candidate)-len(variablePrefix))/3 {
			best, least = candidate, distance
		}
	}
	return best
}

// editDistance returns the number of bytes to add, remove or replace to turn a into b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1) // distances of the bytes of a read so far from each prefix of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}

func (l *loader) readFlags(flags *pflag.FlagSet, args []string) {
	for _, s := range l.settings {
		for _, text := range s.flagValues {
			l.set(s, "--"+s.name, text)
		}
	}
	for _, name := range unknownFlags(flags, args) {
		l.fault(name, "unknown flag; parleyd --help lists the flags")
	}
	for _, argument := range flags.Args() {
		l.fault("command line", "%.80q is neither a flag nor a command of parleyd", argument)
	}
}

// unknownFlags returns the flags in args that flags does not define; pflag is configured to skip them.
func unknownFlags(flags *pflag.FlagSet, args []string) (unknown []string) {
	for i := 0; i < len(args) && args[i] != "--"; i++ {
		name, _, hasValue := strings.Cut(args[i], "=")
		if !strings.HasPrefix(name, "-") || name == "-" {
			continue
		}
		switch flag := flags.Lookup(strings.TrimPrefix(name, "--")); {
		case flag == nil:
			unknown = append(unknown, name)
		case !hasValue && flag.NoOptDefVal == "":
			i++ // The next argument is its value.
		}
	}
	return unknown
}

// check makes checks that involve several settings.
func (l *loader) check() {
	c := l.config
	if c.ConsoleReadOnly && !c.Console {
		l.fault(l.place("console-read-only"), "needs --console")
	}
	if c.A2AURL != "" && !c.A2A {
		l.fault(l.place("a2a-url"), "needs --a2a")
	}
	if c.A2APushPrivate && !c.A2A {
		l.fault(l.place("a2a-push-private"), "needs --a2a")
	}
	if c.Store == "memory" && !l.setting("interaction-log").isSet {
		c.InteractionLog = false // With a store in memory nothing is written to disk unless the setting says so.
	}
	l.checkSystem(runtime.GOOS)
	l.checkRedis()
	l.checkPeers()
	l.checkSignIn()
	l.checkFits("max-message-bytes", c.MaxMessageBytes)
	l.checkFits("max-answer-bytes", c.MaxAnswerBytes)
	// With a smaller budget, folds would cost more than the journal saves.
	if b := c.JournalBudget; b > 0 && b < minBudget {
		l.fault(l.place("journal-budget"), "%d is too small; use at least 64KiB, or 0 for no journal", b)
	}
	if !slices.ContainsFunc(c.Agents, func(a Agent) bool { return a.Name == c.DefaultAgent }) {
		l.fault(l.defaultAgent.place, "there is no agent %q; use the name of one of agents, or echo", c.DefaultAgent)
	}
}

// checkSystem reports what the server cannot do on an operating system.
func (l *loader) checkSystem(goos string) {
	if goos != "windows" {
		return
	}
	const remedy = "or run the server on Linux or macOS, for example in WSL or a container"
	if l.config.Store == "bolt" {
		l.fault(l.place("store"),
			"bolt is not available on Windows; use redis, or memory, which keeps nothing after a stop, %s", remedy)
	}
	if l.config.InteractionLog && l.config.Store != "bolt" {
		l.fault(l.place("interaction-log"), "the interaction log is not available on Windows; turn it off, %s", remedy)
	}
	for _, a := range l.config.Agents {
		if a.Kind == KindCommand {
			l.fault("agents."+a.Name, "kind command is not available on Windows; use another kind, %s", remedy)
		}
	}
}

func (l *loader) checkFits(name string, bytes int) {
	if maximum := l.config.MaxConversationBytes; bytes > maximum {
		l.fault(l.place(name), "%s exceeds the maximum size of a conversation; lower it, or raise %s, which is %s",
			formatSize(int64(bytes)), l.place("max-conversation-bytes"), formatSize(int64(maximum)))
	}
}

// place returns the source of a setting's effective value.
func (l *loader) place(name string) string { return l.setting(name).place }

func (l *loader) setting(name string) *setting {
	return l.settings[slices.IndexFunc(l.settings, func(s *setting) bool { return s.name == name })]
}
