// Package redisstore keeps conversations in Redis or Valkey, 7.0 or later: one server, Sentinel or a cluster. Several
// processes may have the same store open.
//
// # How a write is made
//
// A write reads the head of its conversation, package record decides what becomes of it, and a script commits that if
// the conversation still has the revision that was read. Otherwise the write reads and decides again. Of the law of
// package store only the choice of what makes room for a new conversation is in a script, lua/commit.lua, because it
// depends on all conversations of the tenant. A revision is the id of a commit, 8 random bytes, and not a number: after
// a failover that has lost commits, numbers would be given again. A conversation has the ids of its newest commits, so
// that a commit whose reply was lost is not made twice.
//
// # How changes are told
//
// A script numbers each change of a bucket, and publishes it on the channel {T}ch. Every process hears of all changes,
// and tells its observer in the order of the numbers. Where numbers are missing, it tells a GAP.
//
// # Keys
//
// A tenant is in one bucket, a bucket in one slot of a cluster. All keys of a bucket begin with the prefix of the store
// and the tag of the bucket in braces, here {T}. Tenants are part of keys with their length, as in 4:acme: and
// conversation ids follow them.
//
//	{T}c:<tenant><id>   hash  a conversation: v revision, h head (record.Record.Head), x sizes of its newest messages and
//	                          checksums of its parts (see extra), q requests, t turns, p system prompt, s what scripts
//	                          know of it (see summary), k place in ix, e state if it is ephemeral (see em)
//	{T}m:<tenant><id>   list  its messages, oldest first, each frame with its CRC-32C
//	{T}k:, ks:, kx:<tenant><id>   its records: hash of values, hash of states, sorted set of keys
//	{T}tc:<tenant><id>  hash  chunks of older turns by ordinal, with their CRC-32C
//	{T}tl:<tenant><id>  set   its members of ti
//	{T}p:<tenant><id>   text  progress of its running turn
//	{T}t:<tenant>       hash  counts: n conversations, m messages, b bytes, r records, y their bytes; of the records of
//	                          the tenant v the last commit, vs the newest ones, rev the last revision, own their bytes
//	{T}tk:, tks:, tkx:<tenant>    records of the tenant, as those of a conversation; te: sorted set, keys by expire_time
//	{T}ix:<tenant>      zset  place (create time and number, 12 bytes) and id: order of lists
//	{T}ev:<tenant>      zset  those of ix that may be evicted
//	{T}ex:<tenant>      zset  ids by end in µs, of conversations that may expire
//	{T}em:<tenant>      hash  ephemeral ids: h and the number of holds, or the time of the deletion
//	{T}ed:<tenant>      zset  released ids by the time of their deletion in µs
//	{T}ti:, tr:<tenant> zset  turn id (16 bytes) and conversation id: all turns that have such an id, those that run
//	{T}tn, tx           zset  tenants with conversations or records; those with records that expire
//	{T}rt               hash  tenant and id with a running turn: server (16 characters), turn id (16 bytes), its text
//	{T}rl               zset  the fields of rt, in order
//	{T}hs, ho:<server>  set of servers with holds; hash of what each holds: number and nanoseconds until the deletion
//	{T}hc:<server>      hash  tenants: number of the last hold or release by the server, each of which is made once
//	{T}ls, la           zset of servers by the end of their lease in ms, by the clock of the engine; hash of keys and
//	                          addresses
//	{T}st               hash  counts of the bucket, as those of a tenant; c changes, a conversations added
//	<prefix>:schema     text  version and number of buckets
//
// Nothing has a time to live in the engine: sweeps remove what has ended, and tell it.
//
// Start at [Open].
package redisstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store"
)

// Options are the options of a store. The zero value of all but Client is valid.
type Options struct {
	store.Options
	// Client says how to reach the engine; see [ParseURL].
	Client rueidis.ClientOption
	// Prefix begins all keys. Stores with different prefixes share nothing. Empty means "parley".
	Prefix string
	// Buckets is the number of buckets of a new store, at most MaxBuckets. An existing one must have the same. 0 means 64.
	Buckets int
	// Timeout is how long a command may take. A write continues after the context of its call has ended, but not longer. 0
	// means 5 s.
	Timeout time.Duration
	// Address at which other servers call this one, as host:port. Open fails with ErrInUse if another process has it. If
	// empty, other servers cannot call this one.
	Address string
	// Exclusive makes Open fail with ErrInUse if another process uses the store, and Open of others beside this one. The
	// Address is then only part of their errors, and may be any text. If the other process was killed, Open waits until
	// its leases have ended, 15 seconds at most.
	Exclusive bool
	// Warn is called by Open with what the operator of the engine should know, in one line each. If nil, warnings are
	// dropped.
	Warn func(text string)

	// Of tests. The zero values mean leaseTime and the clock of this machine, which Options.Now need not be.
	leaseTime time.Duration
	clock     func() time.Time
}

// MaxBuckets is the largest value of Options.Buckets.
const MaxBuckets = 1024

const (
	schemaVersion  = 1
	leaseTime      = 15 * time.Second
	defaultTimeout = 5 * time.Second
)

// Sizes in characters: of the id of a process, of its key, and of what precedes the turn's id in a value of {T}rt.
const (
	serverSize  = 16
	keySize     = 32
	runningHead = serverSize + 16
)

// randomText returns this many random hexadecimal digits.
func randomText(size int) string {
	random := make([]byte, size/2)
	_, _ = rand.Read(random) // It never fails.
	return hex.EncodeToString(random)
}

// Store implements store.Store on Redis or Valkey.
type Store struct {
	options   store.Options
	client    rueidis.Client
	addresses []string // of the engine
	prefix    string
	buckets   []bucket
	scripts   scripts
	server    string        // id of this process, of serverSize
	self      store.Server  // as other servers see it
	timeout   time.Duration // of a command
	leaseTime time.Duration
	clock     func() time.Time
	warn      func(text string)
	writes    *turnstile // of conversations
	teller    *teller
	counts    counters
	holds     atomic.Int64 // number of the last hold or release

	closing sync.RWMutex // held for reading by each call
	closed  bool
	running context.Context    //nolint:containedctx // It is that of the goroutines of the store, and ends with it.
	stop    context.CancelFunc // ends running
	renewed chan struct{}      // closed when the renewal has ended
	hearing sync.WaitGroup     // of the goroutines that hear of changes
}

var (
	_ store.Store  = (*Store)(nil)
	_ store.Pinger = (*Store)(nil)
	_ store.Shared = (*Store)(nil)
)

// Open opens a store, which is empty if the engine has no key with the prefix. It checks the settings of the engine,
// takes leases, and releases what servers whose lease has ended have held. Errors: store.ErrUnavailable with the
// addresses of the engine, ErrInUse; others say what to change. All are one line.
func Open(ctx context.Context, o Options) (*Store, error) { return open(ctx, o, (*Store).start) }

// open makes a store whose goroutines and leases start begins.
func open(ctx context.Context, o Options, start func(*Store, context.Context, *Options) error) (*Store, error) {
	s := &Store{
		options: o.WithDefaults(), addresses: o.Client.InitAddress, prefix: cmp.Or(o.Prefix, "parley"),
		scripts: newScripts(), leaseTime: cmp.Or(o.leaseTime, leaseTime), warn: o.Warn,
		clock: o.clock, writes: newTurnstile(), timeout: cmp.Or(o.Timeout, defaultTimeout), renewed: make(chan struct{}),
	}
	if strings.ContainsAny(s.prefix, "{}") {
		return nil, fmt.Errorf("prefix %q: choose one without braces, in which the engine finds the slot of a key", s.prefix)
	}
	if s.clock == nil {
		s.clock = time.Now
	}
	if s.warn == nil {
		s.warn = func(string) {}
	}
	s.server, s.self = randomText(serverSize), store.Server{Address: o.Address, Key: randomText(keySize)}
	if o.Exclusive {
		s.self.Key = exclusiveKey
	}
	client, err := rueidis.NewClient(withDefaults(o.Client))
	if err != nil {
		return nil, s.unavailable(err)
	}
	s.client = bounded{client, s.timeout}
	s.running, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	if err := start(s, ctx, &o); err != nil {
		s.stop()
		s.hearing.Wait()
		if len(s.buckets) > 0 { // Otherwise the next process would wait for the lease.
			_ = s.endLeases(context.WithoutCancel(ctx))
		}
		s.client.Close()
		if errors.Is(err, store.ErrUnavailable) {
			err = s.unavailable(err)
		}
		return nil, err
	}
	go s.renewAll(s.running)
	return s, nil
}

// start checks the engine and the schema, takes leases, and releases what other servers have left.
func (s *Store) start(ctx context.Context, o *Options) error {
	warnings, err := s.checkEngine(ctx)
	if err != nil {
		return err
	}
	n, err := s.schema(ctx, o.Buckets)
	if err != nil {
		return err
	}
	for _, warning := range warnings {
		s.warn(warning)
	}
	s.buckets = newBuckets(s.prefix, n)
	s.teller = newTeller(s.options.Observe, n)
	if err := s.claim(ctx, o.Exclusive); err != nil {
		return err
	}
	if again, err := s.schema(ctx, o.Buckets); err != nil { // Until the claim, another process may have made a copy.
		return err
	} else if again != n {
		return fmt.Errorf("%w: it has changed the number of buckets from %d to %d; start again", ErrInUse, n, again)
	}
	if err := s.subscribe(ctx); err != nil {
		return err
	}
	if err := s.renew(ctx); err != nil {
		return err
	}
	return s.releaseAbandoned(ctx)
}

// schemaKey returns the key of the version and the number of buckets.
func (s *Store) schemaKey() string { return s.prefix + ":schema" }

// schema returns the number of buckets of the store, and makes a new store if there is none.
func (s *Store) schema(ctx context.Context, buckets int) (int, error) {
	wanted := buckets
	if wanted == 0 {
		wanted = 64
	}
	if wanted < 1 || wanted > MaxBuckets {
		return 0, fmt.Errorf("%d buckets: choose 1 to %d", wanted, MaxBuckets)
	}
	key := s.schemaKey()
	get := func() (string, error) { return s.client.Do(ctx, s.client.B().Get().Key(key).Build()).ToString() }
	text, err := get()
	if isNil(err) { // An engine whose memory is full would refuse to set it, also if it is set.
		made := fmt.Sprintf("%d %d", schemaVersion, wanted)
		err = s.client.Do(ctx, s.client.B().Set().Key(key).Value(made).Nx().Build()).Error()
		if err == nil || isNil(err) {
			text, err = get()
		}
	}
	if err != nil {
		return 0, s.fault(err)
	}
	return readSchema(key, text, buckets)
}

// readSchema returns the number of buckets of a store whose schema key has this text. If buckets is not 0, it must be
// that number.
func readSchema(key, text string, buckets int) (int, error) {
	if strings.HasPrefix(text, copyMark) {
		return 0, fmt.Errorf("the data of the engine at %q is an unfinished copy: run parleyd migrate again, which removes "+
			"it and starts over", key)
	}
	var version, n int
	if _, err := fmt.Sscanf(text, "%d %d", &version, &n); err != nil || n < 1 || n > MaxBuckets {
		return 0, fmt.Errorf("the engine has %q at %q: it is not a store of this program", text, key)
	}
	if version != schemaVersion {
		return 0, fmt.Errorf("the data of the engine at %q has version %d, this program reads version %d: use a program of "+
			"that version, or another prefix", key, version, schemaVersion)
	}
	if buckets != 0 && buckets != n {
		return 0, fmt.Errorf("the data of the engine at %q has %d buckets, which cannot be changed to %d: set %d or none",
			key, n, buckets, n)
	}
	return n, nil
}

// Close implements store.Store. It ends the leases of the store: what it has held counts as released from then on.
func (s *Store) Close() error {
	s.closing.Lock()
	defer s.closing.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.stop()
	<-s.renewed
	s.hearing.Wait()
	err := s.endLeases(context.WithoutCancel(s.running))
	s.client.Close()
	s.teller.close()
	if errors.Is(err, store.ErrUnavailable) {
		return nil // The leases end by themselves.
	}
	return err
}

// Ping implements store.Pinger. The engine answers if one of its masters does.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	commands := make([]rueidis.Completed, len(s.buckets))
	for i, b := range s.buckets {
		commands[i] = s.client.B().Exists().Key(b.prefix + "st").Build()
	}
	var err error
	for _, reply := range s.client.DoMulti(ctx, commands...) {
		if err = reply.Error(); err == nil {
			return nil
		}
	}
	return s.fault(err)
}

// enter begins a call. The caller must call leave if there is no error.
func (s *Store) enter(ctx context.Context) error {
	s.closing.RLock()
	if s.closed {
		s.closing.RUnlock()
		return store.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		s.closing.RUnlock()
		return err
	}
	return nil
}

func (s *Store) leave() { s.closing.RUnlock() }

// writing returns the context of a write that has started: it is completed even if the context of its call ends.
func (s *Store) writing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
}
