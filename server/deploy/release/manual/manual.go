// Package manual writes the manual pages of a program from the table of its commands and flags, so that they say the
// same as --help. Start at [Write].
package manual

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Write writes a page for a command and for each of its subcommands to a directory, the only one of the arguments.
// Section is that of the manual: 1 for commands, 8 for servers. The variable SOURCE_DATE_EPOCH, in seconds, sets the
// date of the pages, in UTC.
func Write(command *cobra.Command, section string, arguments []string) error {
	if len(arguments) != 1 {
		return errors.New("usage: DIRECTORY")
	}
	header := &doc.GenManHeader{Section: section, Source: "Parley", Manual: "Parley"}
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" { // Package doc would write the local month.
		seconds, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
		}
		date := time.Unix(seconds, 0).UTC()
		header.Date = &date
	}
	command.DisableAutoGenTag = true
	command.InitDefaultCompletionCmd()
	prepare(command)
	return doc.GenManTree(command, header, arguments[0])
}

// prepare makes the texts of a command and its subcommands Markdown, which package doc expects.
func prepare(command *cobra.Command) {
	command.Long, command.Short = markdown(command.Long), markdown(command.Short)
	for _, sub := range command.Commands() {
		prepare(sub)
	}
}

// markdown returns a plain text as Markdown that looks the same: indented lines are literal, and in the others no
// character has a meaning.
func markdown(text string) string {
	escape := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `_`, `\_`, "`", "\\`", `<`, `\<`, `[`, `\[`)
	var lines []string
	wasLiteral := false
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		literal := strings.HasPrefix(line, " ") || line == "" && wasLiteral
		if literal != wasLiteral {
			lines = append(lines, "")
		}
		wasLiteral = literal
		if literal {
			line = "    " + line
		} else {
			line = escape.Replace(line)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}
