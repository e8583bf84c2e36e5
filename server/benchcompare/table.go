package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// report is the result of a run.
type report struct {
	settings      settings
	processors    int
	machineMemory string
	goVersion     string
	targets       []*target
	measurements  []*measurement
	quiet         []float64 // p99 of appends in s, one for each round
	sweeping      []float64
	starts        []float64     // times of starts in s
	filled        time.Duration // time to fill the largest store
	memory        float64       // in bytes; 0 if not measured
	notes         []string
}

// memoryMB returns the memory as the values of a goal.
func (r *report) memoryMB() []float64 {
	if r.memory == 0 {
		return nil
	}
	return []float64{r.memory / 1e6}
}

// find returns a measurement, or nil if it was not made.
func (r *report) find(operation, name string, callers int) *measurement {
	i := slices.IndexFunc(r.measurements, func(c *measurement) bool {
		return c.operation == operation && c.name == name && c.callers == callers
	})
	if i < 0 {
		return nil
	}
	return r.measurements[i]
}

// write writes the report as Markdown.
func (r *report) write(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured %s on %d processors with %s of memory: %d rounds of %v each, "+
		"median (least–most) of the rounds; "+
		"%s conversations of the newest %d messages of %d B. %s.\n",
		r.settings.date, r.processors, r.machineMemory, r.settings.rounds, r.settings.slice, count(r.settings.conversations),
		maxMessages, messageBytes,
		strings.Join(r.versions(), ", "))
	for _, operation := range []string{appending, reading, appendingSizes, readingSizes} {
		r.writeOperation(&b, operation)
	}
	fmt.Fprintf(&b, "\n| goal, with %d clients | bound | measured | |\n|---|---|---|---|\n", maxCallers)
	for _, g := range r.goals() {
		fmt.Fprintln(&b, g.row())
	}
	fmt.Fprintln(&b)
	for _, note := range append(r.fixedNotes(), r.notes...) {
		fmt.Fprintf(&b, "- %s\n", note)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeOperation writes the table of an operation: the calls per second of each target, and the ratio to
// the base.
func (r *report) writeOperation(b *strings.Builder, operation string) {
	base := service
	if operation == appendingSizes || operation == readingSizes {
		base = sizedName(r.settings.conversations)
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
				rate = spreadOf(c.rates).format(integer, "")
			}
			if c != nil && own != nil {
				ratio = spreadOf(ratios(c.rates, own.rates)).format(number, "")
			}
			fmt.Fprintf(b, " %s | %s |", rate, ratio)
		}
		fmt.Fprintln(b)
	}
	for _, e := range r.targets {
		if e.missing != nil && base == service {
			fmt.Fprintf(b, "| %s | %v | | | |\n", e.name, e.missing)
		}
	}
}

// names returns the targets measured in an operation: first the base, then the others in the order in
// which they were set up.
func (r *report) names(operation, base string) []string {
	var names []string
	for _, c := range r.measurements {
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

// versions returns the versions of all programs without duplicates.
func (r *report) versions() []string {
	versions := []string{r.goVersion}
	for _, e := range r.targets {
		if e.version != "" && !slices.Contains(versions, e.version) {
			versions = append(versions, e.version)
		}
	}
	return versions
}

// integer formats a number without its fraction.
func integer(v float64) string { return fmt.Sprintf("%.0f", v) }
