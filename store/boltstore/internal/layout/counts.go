package layout

import (
	"encoding/binary"

	"github.com/parleyhq/parley/store/internal/records"
)

// Counts is the value of an entry in tenants.
type Counts struct {
	Conversations, Messages int64
	// Bytes is the size of conversations and records, and of the requests of writes of the tenant's records.
	Bytes int64
	// Records is the number of records of the tenant and of its conversations, and RecordBytes their size.
	Records, RecordBytes int64
}

// Plus returns the sums of the counts.
func (c Counts) Plus(d Counts) Counts {
	return Counts{
		c.Conversations + d.Conversations, c.Messages + d.Messages, c.Bytes + d.Bytes, c.Records + d.Records,
		c.RecordBytes + d.RecordBytes,
	}
}

// Minus returns the differences of the counts.
func (c Counts) Minus(d Counts) Counts {
	return c.Plus(Counts{-d.Conversations, -d.Messages, -d.Bytes, -d.Records, -d.RecordBytes})
}

// OfRecords returns the counts of records.
func OfRecords(c records.Counts) Counts {
	return Counts{Bytes: c.Bytes, Records: c.Records, RecordBytes: c.RecordBytes}
}

// Sizes of encoded Counts without their checksum: versions without records know only the first.
const (
	countsSize        = 3 * 8
	countsRecordsSize = 5 * 8
)

// Encode returns the value of the entry with that key. Without records it is that of versions without records.
func (c Counts) Encode(key []byte) []byte {
	b := make([]byte, 0, countsRecordsSize+4)
	for _, n := range []int64{c.Conversations, c.Messages, c.Bytes, c.Records, c.RecordBytes} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	if c.Records == 0 && c.RecordBytes == 0 {
		b = b[:countsSize]
	}
	return seal(key, b)
}

// DecodeCounts decodes an entry of tenants. The bool is false if it is damaged.
func DecodeCounts(key, value []byte) (c Counts, ok bool) {
	size := countsSize
	if len(value) == countsRecordsSize+4 {
		size = countsRecordsSize
	}
	b, ok := unseal(key, value, size)
	if !ok {
		return Counts{}, false
	}
	number := func(at int) int64 { return int64(binary.BigEndian.Uint64(b[at:])) }
	c = Counts{Conversations: number(0), Messages: number(8), Bytes: number(16)}
	if size == countsRecordsSize {
		c.Records, c.RecordBytes = number(24), number(32)
		if c.Records == 0 && c.RecordBytes == 0 {
			return Counts{}, false
		}
	}
	return c, true
}
