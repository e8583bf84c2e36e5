package config

import (
	"fmt"
	"regexp"
	"strings"
)

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
