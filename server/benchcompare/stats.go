package main

import (
	"math"
	"slices"
	"time"
)

// spread is the median, minimum and maximum of n values. The zero value is the spread of no values.
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

// ratios returns the ratio of each round, which cancels a slow machine out. It returns nil if one of the
// two was not measured.
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

// percentile returns the smallest duration that p percent of the durations do not exceed, or 0 for none.
func percentile(durations []time.Duration, p float64) time.Duration {
	if len(durations) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(durations))
	rank := int(math.Ceil(float64(len(sorted)) * p / 100))
	return sorted[max(rank, 1)-1]
}
