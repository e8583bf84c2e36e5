package config

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// value is a setting in the form of text. It parses and checks a text and stores the result in
// target. It implements pflag.Value; flags, environment and file all use Set.
type value[T any] struct {
	target *T
	kind   string // name of the type in the help text: "size"
	parse  func(string) (T, error)
	format func(T) string
}

// Set parses text into the target. After an error the target is unchanged.
func (v value[T]) Set(text string) error {
	parsed, err := v.parse(text)
	if err != nil {
		return err
	}
	*v.target = parsed
	return nil
}

func (v value[T]) String() string { return v.format(*v.target) }

// Type returns the name of the type in the help text.
func (v value[T]) Type() string { return v.kind }

func verbatim(s string) string { return s }

// text is a value of minimum to maximum bytes. It may be confidential, so faults do not quote it.
func text(target *string, initial string, minimum, maximum int, kind string) value[string] {
	*target = initial
	return value[string]{target, kind, func(s string) (string, error) {
		if len(s) < minimum {
			return "", errors.New("must not be empty")
		}
		if len(s) > maximum {
			return "", fmt.Errorf("has %d bytes, at most %d are allowed", len(s), maximum)
		}
		if strings.ContainsRune(s, 0) {
			return "", errors.New("must not contain a NUL character")
		}
		return s, nil
	}, verbatim}
}

// variableName is a value for the name of an environment variable. Faults do not quote it, because
// it may be NAME=secret by mistake.
func variableName(target *string) value[string] {
	return value[string]{target, "name", func(s string) (string, error) {
		if s == "" || strings.ContainsAny(s, "=\x00") {
			return "", errors.New("must be the name of a variable; its value is taken from the server's environment")
		}
		return s, nil
	}, verbatim}
}

// choice is a value with a few allowed words, besides its initial value.
func choice(target *string, initial string, words ...string) value[string] {
	*target = initial
	return value[string]{target, strings.Join(words, "|"), func(s string) (string, error) {
		if s == initial {
			return s, nil
		}
		return s, oneOf(words, s)
	}, verbatim}
}

// level is a value for the minimum level of log messages.
func level(target *slog.Level, initial slog.Level) value[slog.Level] {
	*target = initial
	words := []string{"debug", "info", "warn", "error"} // UnmarshalText accepts other forms, as in info+2.
	return value[slog.Level]{target, strings.Join(words, "|"), func(s string) (slog.Level, error) {
		if err := oneOf(words, s); err != nil {
			return 0, err
		}
		var parsed slog.Level
		err := parsed.UnmarshalText([]byte(s))
		return parsed, err
	}, func(l slog.Level) string { return strings.ToLower(l.String()) }}
}

func oneOf(words []string, s string) error {
	if slices.Contains(words, s) {
		return nil
	}
	return fmt.Errorf("%.80q is not one of %s", s, strings.Join(words, ", "))
}

func boolean(target *bool, initial bool) value[bool] {
	*target = initial
	return value[bool]{target, "bool", func(s string) (bool, error) {
		parsed, err := strconv.ParseBool(s)
		if err != nil {
			return false, fmt.Errorf("%.80q is neither true nor false", s)
		}
		return parsed, nil
	}, strconv.FormatBool}
}

// count is a whole number from minimum to maximum.
func count[T int | int32](target *T, initial, minimum, maximum T) value[T] {
	return ranged(target, initial, minimum, maximum, "count", parseCount, formatCount)
}

// size is a number of bytes from minimum to maximum.
func size[T int | int32](target *T, initial, minimum, maximum T) value[T] {
	return ranged(target, initial, minimum, maximum, "size", parseSize, formatSize)
}

// duration is a duration from minimum to maximum.
func duration(target *time.Duration, initial, minimum, maximum time.Duration) value[time.Duration] {
	return ranged(target, initial, minimum, maximum, "duration", parseDuration, formatDuration)
}

func ranged[T int | int32 | time.Duration](
	target *T, initial, minimum, maximum T, kind string, parse func(string) (int64, error), format func(int64) string,
) value[T] {
	*target = initial
	return value[T]{target, kind, func(s string) (T, error) {
		n, err := parse(s)
		switch {
		case err != nil:
			return 0, err
		case n < int64(minimum):
			return 0, fmt.Errorf("%s is too small; the minimum is %s", format(n), format(int64(minimum)))
		case n > int64(maximum):
			return 0, fmt.Errorf("%s is too large; the maximum is %s", format(n), format(int64(maximum)))
		}
		return T(n), nil
	}, func(n T) string { return format(int64(n)) }}
}

func parseCount(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	// After ErrRange, n is the nearest possible number, which is out of range too.
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%.80q is not a whole number", s)
	}
	return n, nil
}

// decimal is a number from minimum to maximum. The target is nil until a number is set.
func decimal(target **float64, minimum, maximum float64) value[*float64] {
	return value[*float64]{target, "number", func(s string) (*float64, error) {
		n, err := strconv.ParseFloat(s, 64)
		if err != nil || !(n >= minimum && n <= maximum) { // The condition also rejects NaN.
			return nil, fmt.Errorf("%.80q is not a number from %g to %g", s, minimum, maximum)
		}
		return &n, nil
	}, func(n *float64) string { return fmt.Sprint(*n) }}
}

func formatCount(n int64) string { return strconv.FormatInt(n, 10) }

type sizeUnit struct {
	suffix string
	bytes  int64
}

func sizeUnits() []sizeUnit {
	return []sizeUnit{{"GiB", 1 << 30}, {"MiB", mib}, {"KiB", kib}}
}

// parseSize parses a number of bytes, or of whole KiB, MiB or GiB: "4096", "256KiB", "3 MiB".
func parseSize(s string) (int64, error) {
	number, bytes := s, int64(1)
	for _, unit := range sizeUnits() {
		if before, found := strings.CutSuffix(s, unit.suffix); found {
			number, bytes = strings.TrimRight(before, " "), unit.bytes
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n > math.MaxInt64/bytes || n < math.MinInt64/bytes {
		return 0, fmt.Errorf("%.80q is not a size; write whole bytes, KiB, MiB or GiB, as in 256KiB", s)
	}
	return n * bytes, nil
}

func formatSize(n int64) string {
	for _, unit := range sizeUnits() {
		if n > 0 && n%unit.bytes == 0 {
			return strconv.FormatInt(n/unit.bytes, 10) + unit.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}

// ParseDuration parses a duration in the syntax of the settings: "90s", "1h30m", "7d".
func ParseDuration(s string) (time.Duration, error) {
	n, err := parseDuration(s)
	return time.Duration(n), err
}

// parseDuration parses Go's syntax, or whole days: "90s", "1h30m", "7d". The type duration of
// client/cmd/parley has the same syntax. testdata/durations.txt tests both.
func parseDuration(s string) (int64, error) {
	text := s
	if before, found := strings.CutSuffix(s, "d"); found {
		if days, err := strconv.ParseInt(before, 10, 32); err == nil {
			text = strconv.FormatInt(24*days, 10) + "h"
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%.80q is not a duration; write it as in 90s, 1h30m or 7d", s)
	}
	return int64(d), nil
}

// formatDuration omits zero units of Duration.String: "1h", not "1h0m0s".
func formatDuration(n int64) string {
	d := time.Duration(n)
	if d >= 2*day && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

const socketPrefix = "unix:"

// grpcAddress is host:port or unix:PATH.
func grpcAddress(target *string, initial string) value[string] {
	return address(target, initial, "host:port or unix:PATH", func(s string) bool {
		return strings.HasPrefix(s, socketPrefix) && s != socketPrefix
	})
}

// httpAddress is host:port, or empty.
func httpAddress(target *string, initial string) value[string] {
	return address(target, initial, "host:port", func(s string) bool { return s == "" })
}

// debugAddress is a loopback host:port, unix:PATH, or empty.
func debugAddress(target *string) value[string] {
	v := address(target, "", "host:port or unix:PATH", func(s string) bool {
		return s == "" || strings.HasPrefix(s, socketPrefix) && s != socketPrefix
	})
	parse := v.parse
	v.parse = func(s string) (string, error) {
		host, _, err := net.SplitHostPort(s)
		if err == nil && !strings.HasPrefix(s, socketPrefix) && !isLoopback(host) {
			return "", fmt.Errorf("%.80q can be reached from other machines, and profiles need no sign-in; "+
				"use a loopback address, as in 127.0.0.1:6060, or unix:PATH", s)
		}
		return parse(s)
	}
	return v
}

// address is host:port, or a text that other accepts. form describes both in faults.
func address(target *string, initial, form string, other func(string) bool) value[string] {
	*target = initial
	return value[string]{target, "address", func(s string) (string, error) {
		_, port, err := net.SplitHostPort(s)
		if err == nil {
			_, err = strconv.ParseUint(port, 10, 16)
		}
		if err != nil && !other(s) {
			return "", fmt.Errorf("%.80q is not %s; ports are 0 to 65535", s, form)
		}
		return s, nil
	}, verbatim}
}

// expressions is a value of regular expressions, one per line. The initial value is empty.
func expressions(target *[]*regexp.Regexp) value[[]*regexp.Regexp] {
	return value[[]*regexp.Regexp]{target, "expressions", func(s string) ([]*regexp.Regexp, error) {
		var parsed []*regexp.Regexp
		for line := range strings.Lines(s) {
			line = strings.TrimRight(line, "\r\n")
			if line == "" {
				continue
			}
			expression, err := regexp.Compile(line)
			switch {
			case err != nil:
				return nil, fmt.Errorf("%.80q is not a regular expression: %w", line, err)
			case expression.MatchString(""):
				return nil, fmt.Errorf("%.80q matches the empty text and therefore every position", line)
			}
			parsed = append(parsed, expression)
		}
		return parsed, nil
	}, func(all []*regexp.Regexp) string {
		lines := make([]string, len(all))
		for i, expression := range all {
			lines[i] = expression.String()
		}
		return strings.Join(lines, "\n")
	}}
}
