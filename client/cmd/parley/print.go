package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// print prints a reply as one JSON document, or as text writes it.
func (a *app) print(reply proto.Message, text func(io.Writer)) error {
	var buffer bytes.Buffer
	if a.output == "json" {
		document, err := marshal(reply)
		if err != nil {
			return err
		}
		if err := json.Indent(&buffer, document, "", "  "); err != nil {
			return err
		}
		buffer.WriteByte('\n')
	} else {
		text(&buffer)
	}
	_, err := buffer.WriteTo(a.out)
	return err
}

// printLine prints message as one line of JSON.
func (a *app) printLine(message proto.Message) error {
	line, err := marshal(message)
	if err != nil {
		return err
	}
	_, err = a.out.Write(append(line, '\n'))
	return err
}

// marshal returns message as compact JSON. It includes empty fields, so that programs need not check whether
// a list is present.
func marshal(message proto.Message) ([]byte, error) {
	spaced, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(message)
	if err != nil {
		return nil, err
	}
	var compact bytes.Buffer // protojson varies its spaces on purpose.
	err = json.Compact(&compact, spaced)
	return compact.Bytes(), err
}

// columnGap is the number of spaces between the columns of a table.
const columnGap = 2

// minColumn is the width below which fitted leaves out a column instead of shortening it.
const minColumn = 8

// fitted returns rows that take at most width characters, as far as the columns that are named by texts can yield: it
// leaves out those that are empty, shortens the widest, and at last leaves out those on the right. The other columns
// stay complete, because their cells are ids or numbers. If width is 0, the rows stay as they are. The first row is the
// header.
func fitted(width int, rows [][]string, texts ...string) [][]string {
	if width == 0 {
		return rows
	}
	widths, excess := make([]int, len(rows[0])), -columnGap-width
	for i := range widths {
		for _, row := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(oneLine(row[i])))
		}
		excess += widths[i] + columnGap
	}
	var yielding []int // Columns, from the left.
	leaveOut := func(i int) {
		excess -= widths[i] + columnGap
		widths[i] = 0
	}
	for i, name := range rows[0] {
		switch {
		case !slices.Contains(texts, name):
		case excess > 0 && !slices.ContainsFunc(rows[1:], func(row []string) bool { return oneLine(row[i]) != "" }):
			leaveOut(i)
		default:
			yielding = append(yielding, i)
		}
	}
	for excess > 0 && len(yielding) > 0 {
		widest := slices.MaxFunc(yielding, func(i, j int) int { return cmp.Compare(widths[i], widths[j]) })
		if widths[widest] > minColumn {
			widths[widest]--
			excess--
			continue
		}
		leaveOut(yielding[len(yielding)-1])
		yielding = yielding[:len(yielding)-1]
	}
	out := make([][]string, len(rows))
	for r, row := range rows {
		for i, cell := range row {
			if widths[i] > 0 {
				out[r] = append(out[r], short(oneLine(cell), widths[i]))
			}
		}
	}
	return out
}

// table writes rows in aligned columns. The first row may be a header. Each cell becomes a single line.
func table(w io.Writer, rows ...[]string) {
	columns := tabwriter.NewWriter(w, 0, 0, columnGap, ' ', tabwriter.StripEscape)
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				fmt.Fprint(columns, "\t")
			}
			fmt.Fprint(columns, oneLine(cell))
		}
		fmt.Fprintln(columns)
	}
	_ = columns.Flush() // The callers write to memory, which cannot fail.
}

// printable returns s for standard output: unchanged for a file or a program, and without control characters
// for a terminal.
func (a *app) printable(s string) string {
	if !a.outTerminal {
		return s
	}
	return sanitize(s)
}

// sanitize replaces each control character of s, except line feed and tab, and each bidirectional control
// character with a replacement character.
func sanitize(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// oneLine returns s as one line without control characters. Several spaces stay as they are, because an id may contain
// them; each other sequence of white space becomes a space.
func oneLine(s string) string {
	lines := strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) && !unicode.Is(unicode.Zs, r) })
	kept := lines[:0]
	for _, line := range lines {
		if line = strings.TrimSpace(line); line != "" {
			kept = append(kept, line)
		}
	}
	return sanitize(strings.Join(kept, " "))
}

// quoted returns s quoted as one word for a POSIX shell.
func quoted(s string) string {
	special := func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("._:/@%+,-", r)
	}
	if s != "" && !strings.ContainsFunc(s, special) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// argument returns s as an argument for a POSIX shell. If s would be taken for a flag, "--" stands before it.
func argument(s string) string {
	if strings.HasPrefix(s, "-") {
		return "-- " + quoted(s)
	}
	return quoted(s)
}

// short returns the first n characters of s, with an ellipsis if s is longer.
func short(s string, n int) string {
	if characters := []rune(s); len(characters) > n {
		return string(characters[:n-1]) + "…"
	}
	return s
}

// count returns a number with a noun, such as "1 message", "2 messages" or "2 entries".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if stem, found := strings.CutSuffix(noun, "y"); found {
		return fmt.Sprintf("%d %sies", n, stem)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// relative returns the distance of t from now, such as "3m ago" or "in 57m". It rounds down to one unit.
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

// size returns a number of bytes as text, in B, KiB or MiB.
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
