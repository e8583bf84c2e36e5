package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// print shows a reply: as one JSON document, or as what text writes.
func (a *app) print(reply proto.Message, text func(io.Writer)) error {
	var page bytes.Buffer
	if a.output == "json" {
		document, err := marshal(reply)
		if err != nil {
			return err
		}
		if err := json.Indent(&page, document, "", "  "); err != nil {
			return err
		}
		page.WriteByte('\n')
	} else {
		text(&page)
	}
	_, err := page.WriteTo(a.out)
	return err
}

// printLine writes message as one line of JSON.
func (a *app) printLine(message proto.Message) error {
	line, err := marshal(message)
	if err != nil {
		return err
	}
	_, err = a.out.Write(append(line, '\n'))
	return err
}

// marshal returns message as compact JSON. Fields that are empty are there all the same, so
// that a program need not ask whether a list is.
func marshal(message proto.Message) ([]byte, error) {
	loose, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(message)
	if err != nil {
		return nil, err
	}
	var tight bytes.Buffer // protojson varies its blanks on purpose.
	err = json.Compact(&tight, loose)
	return tight.Bytes(), err
}

// table writes rows in columns. The first row may be a head; cells become single lines.
func table(w io.Writer, rows ...[]string) {
	columns := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.StripEscape)
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				fmt.Fprint(columns, "\t")
			}
			fmt.Fprint(columns, oneLine(cell))
		}
		fmt.Fprintln(columns)
	}
	_ = columns.Flush() // Into memory.
}

// printable returns s as it may go to standard output: whole to a file or a program, and to a
// terminal without what could take control of it.
func (a *app) printable(s string) string {
	if !a.outTerminal {
		return s
	}
	return harmless(s)
}

// harmless returns s with a mark instead of each control character but line feed and tab,
// and of those that turn the direction of a text around.
func harmless(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// oneLine returns s on one line, harmless to a terminal.
func oneLine(s string) string {
	return harmless(strings.Join(strings.Fields(s), " "))
}

// quoted returns s as a POSIX shell takes it for one word and nothing else.
func quoted(s string) string {
	special := func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("._:/@%+,-", r)
	}
	if s != "" && !strings.ContainsFunc(s, special) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// short returns s cut to at most n characters.
func short(s string, n int) string {
	if characters := []rune(s); len(characters) > n {
		return string(characters[:n-1]) + "…"
	}
	return s
}

// count says how many there are of something: "1 message", "2 messages".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// relative says how far t is from now: "3m ago", "in 57m". Whole units, cut off.
func relative(now, t time.Time) string {
	distance := now.Sub(t).Abs()
	var size string
	switch {
	case distance < time.Second:
		return "now"
	case distance < time.Minute:
		size = fmt.Sprintf("%ds", distance/time.Second)
	case distance < time.Hour:
		size = fmt.Sprintf("%dm", distance/time.Minute)
	case distance < 48*time.Hour:
		size = fmt.Sprintf("%dh", distance/time.Hour)
	default:
		size = fmt.Sprintf("%dd", distance/(24*time.Hour))
	}
	if t.After(now) {
		return "in " + size
	}
	return size + " ago"
}

// size says a number of bytes.
func size(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	default:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
}
