// Package checksum computes the checksums of stored values. Start at [Of].
package checksum

import "hash/crc32"

// Of returns the CRC-32C of the parts.
func Of(parts ...[]byte) uint32 {
	table, sum := crc32.MakeTable(crc32.Castagnoli), uint32(0)
	for _, p := range parts {
		sum = crc32.Update(sum, table, p)
	}
	return sum
}
