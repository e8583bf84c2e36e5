package interactionlog

import "time"

const (
	dayLayout    = "2006-01-02"
	fileSuffix   = ".jsonl"
	secondsOfDay = 24 * 60 * 60
)

// day is a day in UTC, counted from 1970.
type day int

// dayOf is the day of a time.
func dayOf(at time.Time) day {
	seconds := at.Unix()
	d := seconds / secondsOfDay
	if seconds%secondsOfDay < 0 {
		d--
	}
	return day(d)
}

// start is the first instant of the day.
func (d day) start() time.Time { return time.Unix(int64(d)*secondsOfDay, 0).UTC() }

// String is as in "2026-11-20".
func (d day) String() string { return d.start().Format(dayLayout) }

// fileName is the name of the day's file: "2026-11-20.jsonl".
func (d day) fileName() string { return d.String() + fileSuffix }

// parseFileName is the day whose file has that name; false when it is of none.
func parseFileName(name string) (day, bool) {
	at, err := time.Parse(dayLayout+fileSuffix, name)
	return dayOf(at), err == nil
}
