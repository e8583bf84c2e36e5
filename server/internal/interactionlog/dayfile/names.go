package dayfile

import (
	"strings"
	"time"
)

const (
	fileSuffix = ".jsonl"
	// indexPrefix and indexSuffix enclose the day in the name of an index.
	indexPrefix, indexSuffix = ".", ".sessions"
	// temporaryPrefix and temporarySuffix enclose the name of a file in the name of the one that is written
	// to replace it.
	temporaryPrefix, temporarySuffix = ".", ".unfinished"
)

// FileName returns the name of the day's file: "2026-11-20.jsonl".
func (d Day) FileName() string { return d.String() + fileSuffix }

// ParseFileName returns the day of a file name. ok is false if no day has a file of that name.
func ParseFileName(name string) (Day, bool) {
	at, err := time.Parse(dayLayout+fileSuffix, name)
	return DayOf(at), err == nil
}

// IndexName returns the name of the day's index: ".2026-11-20.sessions".
func (d Day) IndexName() string { return indexPrefix + d.String() + indexSuffix }

// ParseIndexName returns the day of a name that IndexName has returned.
func ParseIndexName(name string) (d Day, ok bool) {
	name, prefixed := strings.CutPrefix(name, indexPrefix)
	name, suffixed := strings.CutSuffix(name, indexSuffix)
	d, ok = ParseDay(name)
	return d, ok && prefixed && suffixed
}

// TemporaryName returns the name of a file that is written to replace the file of a name.
func TemporaryName(name string) string {
	return temporaryPrefix + strings.TrimPrefix(name, temporaryPrefix) + temporarySuffix
}

// IsTemporary reports whether a name is that of a file written to replace the file of a day or its index.
func IsTemporary(name string) bool {
	name, temporary := strings.CutSuffix(name, temporarySuffix)
	_, isIndex := ParseIndexName(name)
	name, hidden := strings.CutPrefix(name, temporaryPrefix)
	_, isDay := ParseFileName(name)
	return temporary && (isIndex || hidden && isDay)
}
