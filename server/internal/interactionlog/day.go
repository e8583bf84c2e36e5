package interactionlog

import "time"

const (
	dayLayout    = "2006-01-02"
	fileSuffix   = ".jsonl"
	secondsOfDay = 24 * 60 * 60
)

// day is a day in UTC, as the number of days since 1970.
type day int

// dayOf returns the day of a time.
func dayOf(at time.Time) day {
	seconds := at.Unix()
	d := seconds / secondsOfDay
	if seconds%secondsOfDay < 0 {
		d--
	}
	return day(d)
}

// start returns the first instant of the day.
func (d day) start() time.Time { return time.Unix(int64(d)*secondsOfDay, 0).UTC() }

// String returns the day as in "2026-11-20".
func (d day) String() string { return d.start().Format(dayLayout) }

// fileName returns the name of the day's file: "2026-11-20.jsonl".
func (d day) fileName() string { return d.String() + fileSuffix }

// parseFileName returns the day of a file name. ok is false if no day has a file of that name.
func parseFileName(name string) (day, bool) {
	at, err := time.Parse(dayLayout+fileSuffix, name)
	return dayOf(at), err == nil
}
