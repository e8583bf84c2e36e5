package redisstore

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/redisstore/redistest"
	"github.com/parleyhq/parley/store/storetest"
)

// subject returns a store on an engine. Each folder has keys of its own. On a busy machine, a call with 100,000 ids
// keeps the engine busy for seconds, so clients wait longer than those of a server.
func subject(addresses []string, buckets, spread int) storetest.Subject {
	client := rueidis.ClientOption{InitAddress: addresses, ConnWriteTimeout: time.Minute}
	client.Dialer.Timeout = time.Minute
	return storetest.Subject{
		Durable: true, Together: true, Lanes: spread,
		Open: func(tb testing.TB, dir string, o store.Options) store.Store {
			tb.Helper()
			s, err := Open(tb.Context(), Options{
				Options: o, Client: client, Prefix: dir, Buckets: buckets, Spread: spread, Timeout: time.Minute,
			})
			if err != nil {
				tb.Fatal(err)
			}
			return s
		},
	}
}

func addressesIn(url string) []string { return strings.Split(strings.TrimPrefix(url, "redis://"), ",") }

func TestLaw(t *testing.T) {
	storetest.Run(t, subject([]string{redistest.Start(t).Addr()}, 1, 1))
}

// TestLawWithBuckets tests the law with so many buckets that most tenants have one of their own.
func TestLawWithBuckets(t *testing.T) {
	t.Parallel()
	storetest.RunVariant(t, subject([]string{redistest.Start(t).Addr()}, 64, 1))
}

// TestLawOfCluster tests the law on a cluster of three masters.
func TestLawOfCluster(t *testing.T) {
	t.Parallel()
	storetest.RunVariant(t, subject(addressesIn(redistest.StartCluster(t, 3, 0).URL()), 16, 1))
}

// TestLawWithSpread tests what the law promises if each tenant has four buckets.
func TestLawWithSpread(t *testing.T) {
	t.Parallel()
	storetest.RunVariant(t, subject([]string{redistest.Start(t).Addr()}, 64, 4))
}

// TestLawOfClusterWithSpread tests the same on three masters, so that the buckets of a tenant are on different masters.
func TestLawOfClusterWithSpread(t *testing.T) {
	t.Parallel()
	storetest.RunVariant(t, subject(addressesIn(redistest.StartCluster(t, 3, 0).URL()), 16, 4))
}
