package dayfile

import "time"

const (
	dayLayout    = "2006-01-02"
	secondsOfDay = 24 * 60 * 60
)

// Day is a day in UTC, as the number of days since 1970.
type Day int

// DayOf returns the day of a time.
func DayOf(at time.Time) Day {
	seconds := at.Unix()
	d := seconds / secondsOfDay
	if seconds%secondsOfDay < 0 {
		d--
	}
	return Day(d)
}

// Start returns the first instant of the day.
func (d Day) Start() time.Time { return time.Unix(int64(d)*secondsOfDay, 0).UTC() }

// String returns the day as in "2026-11-20".
func (d Day) String() string { return d.Start().Format(dayLayout) }

// ParseDay parses a day such as "2026-11-20". ok is false if there is no such day.
func ParseDay(s string) (d Day, ok bool) {
	at, err := time.Parse(dayLayout, s)
	return DayOf(at), err == nil
}
