package config

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Error is everything wrong with the settings, each by its place, then what is wrong and what
// to do. The program that gets it is to exit with 64.
type Error struct {
	Faults []string // at least one, without any secret
}

// Error is one line for a single fault, else a line for each.
func (e *Error) Error() string {
	if len(e.Faults) == 1 {
		return "settings: " + e.Faults[0]
	}
	return fmt.Sprintf("settings: %d faults:\n  %s", len(e.Faults), strings.Join(e.Faults, "\n  "))
}

// setting is one row of the table. As a pflag.Value it only notes what the command line
// says: pflag would stop at the first fault, and flags go last, after file and environment.
type setting struct {
	name, usage string
	value       pflag.Value
	given       []string // by the command line
	place       string   // where the value in force stands; the flag while it is the default
	isSet       bool     // it is not the default, or as good as
}

func newSetting(name string, value pflag.Value, usage string) *setting {
	return &setting{name: name, usage: usage, value: value, place: "--" + name}
}

// Set notes what the command line says, be it good or not.
func (s *setting) Set(text string) error {
	s.given = append(s.given, text)
	return nil
}

func (s *setting) String() string { return s.value.String() }

// Type is what the help calls its values.
func (s *setting) Type() string { return s.value.Type() }

// key is the setting's name in the file.
func (s *setting) key() string { return strings.ReplaceAll(s.name, "-", "_") }

// variable is the setting's name in the environment.
func (s *setting) variable() string { return variablePrefix + strings.ToUpper(s.key()) }

const (
	variablePrefix = "PARLEY_"
	pathVariable   = "PARLEY_CONFIG"
	clientVariable = "PARLEY_ADDRESS" // of the parley command, which may share the environment
)

// loader reads all sources into one config and gathers the faults.
type loader struct {
	config       *Config
	settings     []*setting
	defaultAgent *setting // in the file only
	path         string   // of the file; empty: none
	environ      []string // "NAME=value", sorted
	faults       []string
}

func newLoader(environ []string) *loader {
	c := &Config{}
	l := &loader{config: c, settings: c.settings(), environ: slices.Sorted(slices.Values(environ))}
	l.defaultAgent = &setting{value: text(&c.DefaultAgent, KindEcho, 1, maxAgentName, "name")}
	return l
}

// load reads file, environment and flags, the later over the earlier, and checks what they
// say together. Values that another source overrides are checked too. The error is an *Error.
func (l *loader) load(flags *pflag.FlagSet, args []string) (*Config, error) {
	place := l.namePath(flags)
	if l.path != "" {
		l.readFile(place)
	}
	l.readEnvironment()
	l.readFlags(flags, args)
	l.config.addEcho()
	l.check()
	if len(l.faults) > 0 {
		return nil, &Error{Faults: l.faults}
	}
	return l.config, nil
}

// namePath sets l.path unless a flag has, and says where the file was named.
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

// set gives s what was found at place.
func (l *loader) set(s *setting, place, text string) {
	if err := s.value.Set(text); err != nil {
		l.fault(place, "%v", err)
		return
	}
	s.place, s.isSet = place, true
}

// variable is the environment's value of that name, empty if there is none.
func (l *loader) variable(name string) string {
	value, _ := l.lookup(name)
	return value
}

// lookup is the environment's value of that name, and whether there is one.
func (l *loader) lookup(name string) (value string, found bool) {
	for _, variable := range l.environ {
		if value, found := strings.CutPrefix(variable, name+"="); found {
			return value, true
		}
	}
	return "", false
}

// readEnvironment reads the variables that name settings and warns of others with the same prefix.
// Those are no errors: another program may have set them, and Kubernetes sets several in every pod
// of a namespace with a Service named parley.
func (l *loader) readEnvironment() {
	inKubernetes := l.variable("KUBERNETES_SERVICE_HOST") != ""
	known := []string{pathVariable, clientVariable}
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

// isServiceLink reports whether a variable has the form of those that Kubernetes sets for a
// Service, as in PARLEY_PORT_50051_TCP_ADDR. No setting has a name of this form.
func isServiceLink(name, text string) bool {
	return strings.HasSuffix(name, "_SERVICE_HOST") || strings.Contains(name, "_SERVICE_PORT") ||
		strings.HasSuffix(name, "_PORT") && strings.Contains(text, "://") ||
		slices.ContainsFunc([]string{"_TCP", "_UDP", "_SCTP"}, func(protocol string) bool { return strings.Contains(name, protocol) })
}

// nearest returns the known name that is most similar to the given one, or an empty string: at most
// a third of the characters after the prefix may differ.
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
	row := make([]int, len(b)+1) // the distance of the bytes of a read so far from each prefix of b
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
		for _, text := range s.given {
			l.set(s, "--"+s.name, text)
		}
	}
	for _, name := range unknownFlags(flags, args) {
		l.fault(name, "unknown flag; parleyd --help lists them")
	}
	for _, argument := range flags.Args() {
		l.fault("command line", "%.80q is not a flag, and parleyd takes nothing else", argument)
	}
}

// unknownFlags finds those of args that pflag was told to pass over.
func unknownFlags(flags *pflag.FlagSet, args []string) (unknown []string) {
	for i := 0; i < len(args) && args[i] != "--"; i++ {
		name, _, whole := strings.Cut(args[i], "=")
		if !strings.HasPrefix(name, "-") || name == "-" {
			continue
		}
		switch flag := flags.Lookup(strings.TrimPrefix(name, "--")); {
		case flag == nil:
			unknown = append(unknown, name)
		case !whole && flag.NoOptDefVal == "":
			i++ // the next one is its value
		}
	}
	return unknown
}

// check looks at what no value tells by itself.
func (l *loader) check() {
	c := l.config
	if c.Store == "redis" {
		l.fault(l.place("store"), "redis comes with a later version; use bolt or memory")
	}
	if c.Store == "memory" && !l.setting("interaction-log").isSet {
		c.InteractionLog = false // What is to be forgotten is not on a disk, unless somebody says so.
	}
	if !strings.HasPrefix(c.GRPCAddress, socketPrefix) {
		l.checkReach("grpc-address", c.GRPCAddress)
	}
	if c.HTTPAddress != "" {
		l.checkReach("http-address", c.HTTPAddress)
	}
	l.checkFits("max-message-bytes", c.MaxMessageBytes)
	l.checkFits("max-answer-bytes", c.MaxAnswerBytes)
	if !slices.ContainsFunc(c.Agents, func(a Agent) bool { return a.Name == c.DefaultAgent }) {
		l.fault(l.defaultAgent.place, "there is no agent %q; name one of agents, or echo", c.DefaultAgent)
	}
}

// checkReach allows an address that only this machine can reach, and with --insecure any.
func (l *loader) checkReach(name, hostPort string) {
	host, _, _ := net.SplitHostPort(hostPort) // found good by its setting
	if !isLoopback(host) && !l.config.Insecure {
		l.fault(l.place(name), "%.80q can be reached from other machines, and there is neither TLS nor sign-in; "+
			"use a loopback address, or --insecure on a network that you trust", hostPort)
	}
}

// isLoopback tells whether a host is this machine, whatever its network does.
func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.IsLoopback()
}

func (l *loader) checkFits(name string, bytes int) {
	if most := l.config.MaxConversationBytes; bytes > most {
		l.fault(l.place(name), "%s is more than a conversation may have; lower it, or raise the %s of %s",
			formatSize(int64(bytes)), formatSize(int64(most)), l.place("max-conversation-bytes"))
	}
}

// place is where the value in force of a setting stands.
func (l *loader) place(name string) string { return l.setting(name).place }

func (l *loader) setting(name string) *setting {
	return l.settings[slices.IndexFunc(l.settings, func(s *setting) bool { return s.name == name })]
}
