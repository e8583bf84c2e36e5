package main

import (
	"math"
	"slices"
	"time"
)

// spread is a median with both ends. The zero value is of no values.
type spread struct {
	median, least, most float64
	n                   int
}

func spreadOf(values []float64) spread {
	n := len(values)
	if n == 0 {
		return spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	return spread{median: (sorted[(n-1)/2] + sorted[n/2]) / 2, least: sorted[0], most: sorted[n-1], n: n}
}

// ratios divides round by round, so that what slows the whole machine down cancels out. Of
// no use where one of the two was not measured: it returns nil.
func ratios(of, by []float64) []float64 {
	if len(of) != len(by) {
		return nil
	}
	var all []float64
	for i := range of {
		if by[i] == 0 {
			return nil
		}
		all = append(all, of[i]/by[i])
	}
	return all
}

// percentile returns the least of the durations that p in a hundred do not exceed; 0 of none.
func percentile(durations []time.Duration, p float64) time.Duration {
	if len(durations) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(durations))
	rank := int(math.Ceil(float64(len(sorted)) * p / 100))
	return sorted[max(rank, 1)-1]
}
