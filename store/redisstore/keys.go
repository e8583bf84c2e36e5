package redisstore

import (
	"hash/crc32"
	"strconv"
	"strings"
)

// slots is the number of hash slots of a Redis Cluster.
const slots = 16384

// bucket is a part of the data whose keys are in one slot, so that a script can change all of them at once.
type bucket struct {
	index  int
	prefix string // of all its keys
}

// newBuckets returns n buckets whose slots are spread evenly.
func newBuckets(prefix string, n int) []bucket {
	wanted := make(map[uint16]int, n)
	for i := range n {
		wanted[uint16(i*slots/n)] = i
	}
	buckets := make([]bucket, n)
	for tag := 0; len(wanted) > 0; tag++ {
		name := strconv.Itoa(tag)
		slot := crc16(name) % slots
		if i, ok := wanted[slot]; ok {
			buckets[i] = bucket{index: i, prefix: prefix + ":{" + name + "}"}
			delete(wanted, slot)
		}
	}
	return buckets
}

// crc16 is the CRC-16/XMODEM of a text, which Redis Cluster uses to choose a slot.
func crc16(text string) (sum uint16) {
	for i := range len(text) {
		sum ^= uint16(text[i]) << 8
		for range 8 {
			if sum&0x8000 != 0 {
				sum = sum<<1 ^ 0x1021
			} else {
				sum <<= 1
			}
		}
	}
	return sum
}

// checksum returns the CRC-32C of a text, by which buckets are chosen.
func checksum(text string) int {
	return int(crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli)))
}

// bucketOf returns the first bucket of a tenant, which has its records.
func (s *Store) bucketOf(tenant string) bucket { return s.buckets[checksum(tenant)%len(s.buckets)] }

// space is the keys of one tenant in one bucket.
type space struct {
	bucket
	tenant string
	name   string // the tenant as it is part of keys: with its length, so that no two tenants share keys
}

// space returns the keys of a tenant in its first bucket.
func (s *Store) space(tenant string) space { return spaceIn(s.bucketOf(tenant), tenant) }

// spaceIn returns the keys of a tenant in one of its buckets.
func spaceIn(b bucket, tenant string) space {
	return space{bucket: b, tenant: tenant, name: tenantPart(tenant)}
}

// spaceOf returns the keys of a tenant in the bucket of a conversation, or in its first one if the id is empty.
func (s *Store) spaceOf(tenant, id string) space {
	p := s.space(tenant)
	if id != "" && s.spread > 1 {
		p.bucket = s.buckets[(p.index+checksum(id)%s.spread*s.stride())%len(s.buckets)]
	}
	return p
}

// spaces returns the keys of a tenant in all its buckets, the first one first.
func (s *Store) spaces(tenant string) []space {
	all := make([]space, s.spread)
	for i := range all {
		all[i] = s.space(tenant)
		all[i].bucket = s.buckets[(all[i].index+i*s.stride())%len(s.buckets)]
	}
	return all
}

// stride is the distance between the buckets of a tenant.
func (s *Store) stride() int { return len(s.buckets) / s.spread }

// lane returns the lane of a bucket, which is its index among the buckets of a tenant: each tenant has one bucket in
// each lane.
func (s *Store) lane(b bucket) int { return b.index / s.stride() }

func tenantPart(tenant string) string { return strconv.Itoa(len(tenant)) + ":" + tenant + ":" }

// cutTenant splits a text that begins with a tenantPart.
func cutTenant(text string) (tenant, rest string, ok bool) {
	length, rest, ok := strings.Cut(text, ":")
	n, err := strconv.Atoi(length)
	if !ok || err != nil || n < 0 || n >= len(rest) || rest[n] != ':' {
		return "", "", false
	}
	return rest[:n], rest[n+1:], true
}

// key returns the key of something of the tenant.
func (p space) key(kind string) string { return p.prefix + kind + ":" + p.name }

// of returns the key of something of a conversation.
func (p space) of(kind, id string) string { return p.prefix + kind + ":" + p.name + id }

// scope returns the key of something of the records of a conversation, or of the tenant if the id is empty.
func (p space) scope(kind, id string) string {
	if id == "" {
		return p.key("t" + kind)
	}
	return p.of(kind, id)
}
