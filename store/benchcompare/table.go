package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// report is what a run measured.
type report struct {
	settings    settings
	processors  int
	memoryOf    string // the machine
	goVersion   string
	entrants    []*entrant
	contestants []*contestant
	quiet       []float64 // p99 of appends in s, one of each round
	sweeping    []float64
	starts      []float64     // in s
	filled      time.Duration // how long it took to fill the largest store
	memory      float64       // bytes; 0: not measured
	notes       []string
}

// memoryMB is memory as the value of a goal.
func (r *report) memoryMB() []float64 {
	if r.memory == 0 {
		return nil
	}
	return []float64{r.memory / 1e6}
}

// find returns a contestant; nil when it did not take part.
func (r *report) find(operation, name string, callers int) *contestant {
	i := slices.IndexFunc(r.contestants, func(c *contestant) bool {
		return c.operation == operation && c.name == name && c.callers == callers
	})
	if i < 0 {
		return nil
	}
	return r.contestants[i]
}

// write writes it in Markdown.
func (r *report) write(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured %s on %d processors with %s of memory: %d rounds of %v each, median (least–most) of the rounds; "+
		"%s conversations of the newest %d messages of %d B. %s.\n",
		r.settings.date, r.processors, r.memoryOf, r.settings.rounds, r.settings.slice, count(r.settings.conversations), keep, messageBytes,
		strings.Join(r.versions(), ", "))
	for _, operation := range []string{appending, reading, appendingSizes, readingSizes} {
		r.writeOperation(&b, operation)
	}
	fmt.Fprintf(&b, "\n| goal, with %d clients | bound | measured | |\n|---|---|---|---|\n", maxCallers)
	for _, g := range r.goals() {
		fmt.Fprintln(&b, g.row())
	}
	fmt.Fprintln(&b)
	for _, note := range append(r.standingNotes(), r.notes...) {
		fmt.Fprintf(&b, "- %s\n", note)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeOperation writes the table of an operation: for each system the calls in a second,
// and the ratio to one of them.
func (r *report) writeOperation(b *strings.Builder, operation string) {
	base := service
	if operation == appendingSizes || operation == readingSizes {
		base = sized(r.settings.conversations)
	}
	names := r.names(operation, base)
	if len(names) == 0 {
		return
	}
	fmt.Fprintf(b, "\n| %s | 1 client: a second | ÷ %s | %d clients: a second | ÷ %s |\n|---|---|---|---|---|\n",
		operation, base, maxCallers, base)
	for _, name := range names {
		fmt.Fprintf(b, "| %s |", name)
		for _, callers := range clientCounts() {
			c, own := r.find(operation, name, callers), r.find(operation, base, callers)
			rate, ratio := "–", "–"
			if c != nil {
				rate = spreadOf(c.rates).format(whole, "")
			}
			if c != nil && own != nil {
				ratio = spreadOf(ratios(c.rates, own.rates)).format(number, "")
			}
			fmt.Fprintf(b, " %s | %s |", rate, ratio)
		}
		fmt.Fprintln(b)
	}
	for _, e := range r.entrants {
		if e.missing != nil && base == service {
			fmt.Fprintf(b, "| %s | %v | | | |\n", e.name, e.missing)
		}
	}
}

// names are the systems measured in an operation, that first with which the others are
// compared, then in the order in which they were set up.
func (r *report) names(operation, base string) []string {
	var names []string
	for _, c := range r.contestants {
		if c.operation == operation && !slices.Contains(names, c.name) {
			names = append(names, c.name)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int {
		switch base {
		case a:
			return -1
		case b:
			return 1
		}
		return 0
	})
	return names
}

// versions are those of all programs, each once.
func (r *report) versions() []string {
	versions := []string{r.goVersion}
	for _, e := range r.entrants {
		if e.version != "" && !slices.Contains(versions, e.version) {
			versions = append(versions, e.version)
		}
	}
	return versions
}

// whole writes a number without its fraction.
func whole(v float64) string { return fmt.Sprintf("%.0f", v) }
