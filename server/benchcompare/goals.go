package main

import (
	"fmt"
	"strings"
)

// goal is a bound for a measured value.
type goal struct {
	what string
	// values are the measured values, one per round; empty if not measured.
	values []float64
	// bound is the allowed minimum. If upper is set, the value must be below it instead.
	bound float64
	upper bool
	unit  string // suffix of numbers
}

// met reports whether the median is within the bound.
func (g goal) met() bool {
	median := spreadOf(g.values).median
	return g.upper && median < g.bound || !g.upper && median >= g.bound
}

// row returns the line of the table.
func (g goal) row() string {
	bound, measured, verdict := "≥ ", "not measured", "–"
	if g.upper {
		bound = "< "
	}
	if len(g.values) > 0 {
		if measured, verdict = spreadOf(g.values).format(number, g.unit), "met"; !g.met() {
			verdict = "**missed**"
		}
	}
	return fmt.Sprintf("| %s | %s%s%s | %s | %s |", g.what, bound, number(g.bound), g.unit, measured, verdict)
}

// goals returns the goals of this run. All are measured with 64 clients, except one and the last two.
func (r *report) goals() []goal {
	with := func(callers int, operation, of, than string, bound float64) goal {
		g := goal{what: fmt.Sprintf("%s: %s ÷ %s", operation, of, than), bound: bound}
		a, b := r.find(operation, of, callers), r.find(operation, than, callers)
		if a != nil && b != nil {
			g.values = ratios(a.rates, b.rates)
		}
		return g
	}
	by := func(operation, of, than string, bound float64) goal {
		return with(maxCallers, operation, of, than, bound)
	}
	before := with(1, appending, service, serviceBefore, 1.5)
	before.what += ", 1 client"
	return []goal{
		by(appending, service, serviceBefore, 1.9),
		before,
		by(appending, service, constantCall, 0.45),
		by(appending, service, postgreSQL, 1.2),
		by(appending, service, redisAlways, 0.5),
		by(appending, service, etcdTransaction, 1.2),
		by(appending, service, etcdWithLease, 5),
		by(appending, serviceStream, redisAlways, 0.9),
		by(appending, serviceStream, service, 1.6),
		by(reading, service, constantCall, 0.85),
		by(reading, service, etcdTransaction, 2.5),
		by(reading, service, etcdWithLease, 2.5),
		by(reading, plainRead, plainCall, 0.5),
		by(reading, service, plainCall, 0.45),
		by(appendingSizes, sizedName(r.settings.large), sizedName(r.settings.conversations), 0.9),
		{
			what:   fmt.Sprintf("append: p99 while %s expired conversations are swept ÷ p99 before", count(r.settings.expired)),
			values: ratios(r.sweeping, r.quiet), bound: 1.5, upper: true,
		},
		{
			what:   fmt.Sprintf("start with %s conversations, none of them in the page cache", count(r.settings.large)),
			values: r.starts, bound: 5, upper: true, unit: " s",
		},
		{
			what: fmt.Sprintf("memory with %s conversations, without the page cache, after all rounds",
				count(r.settings.large)),
			values: r.memoryMB(), bound: 300, upper: true, unit: " MB",
		},
	}
}

// number formats a number with three significant digits, and with all digits before the point.
func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0")
	}
	text := fmt.Sprintf("%.2f", v)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// format returns the median and, if there are several values, the minimum and maximum.
func (s spread) format(number func(float64) string, unit string) string {
	if s.n == 0 {
		return "–"
	}
	text := number(s.median) + unit
	if s.n > 1 {
		text += fmt.Sprintf(" (%s–%s)", number(s.least), number(s.most))
	}
	return text
}
