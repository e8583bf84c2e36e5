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
// The place of a change (store.Place) is its number and the epoch of the bucket. A process of the engine that may have
// an older copy of the data, and so may assign numbers again, has another epoch. The script that reads the epoch after
// each subscription makes a new one if the epoch was made in another process of the engine, or if the last number is
// below one that was seen. Until then, a process that receives a number twice reports changes without a place.
//
// # Keys
//
// A tenant is in as many buckets as Options.Spread says, by default one. A bucket is in one slot of a cluster. All keys
// of a bucket begin with the prefix of the store and the tag of the bucket in braces, here {T}. Tenants are part of
// keys with their length, as in 4:acme: and conversation ids follow them. With a spread, a conversation is in one of
// the buckets of its tenant, see spaceOf, and the records of the tenant are in the first.
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
//	                          the tenant v the last commit, vs the newest ones, rev the last revision, own their bytes,
//	                          lock what a write across buckets makes of them, see across.go
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
//	{T}ac:<tenant>      hash  ids of commits that decide about records of the tenant in another bucket: made or dropped,
//	                          and when, see across.go
//	{T}st               hash  counts of the bucket, as those of a tenant; c changes, e epoch of their numbers, run the
//	                          process of the engine in which it was made, a conversations added
//	{T}cr               list  ids of the newest commits that added conversations, newest first, see wasAdded
//	<prefix>:schema     text  version, number of buckets, and the spread if it is not 1
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
	// Spread is the number of buckets that each tenant of a new store has, at most MaxSpread and a divisor of Buckets. An
	// existing store must have the same. 0 means 1, with which the store follows the complete law. With a larger spread
	// some laws are weaker, see storetest.Subject, and the capacity of each tenant must be at least MinShare times the
	// spread, or 0.
	Spread int
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
	// Replicated acknowledges a write only when at least one replica of the engine has it: if none confirms that in 2 s,
	// the error is store.ErrUnavailable. Reads may return writes that no replica has yet. Open fails with
	// store.ErrUnavailable if no master has a replica.
	Replicated bool
	// Warn is called by Open with what the operator of the engine should know, in one line each. If nil, warnings are
	// dropped.
	Warn func(text string)

	// Of tests. The zero values mean leaseTime and the clock of this machine, which Options.Now need not be.
	leaseTime time.Duration
	clock     func() time.Time
}

const (
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
	options      store.Options
	client       rueidis.Client
	addresses    []string // of the engine
	prefix       string
	buckets      []bucket
	spread       int // buckets of a tenant
	scripts      scripts
	server       string        // id of this process, of serverSize
	self         store.Server  // as other servers see it
	timeout      time.Duration // of a command
	leaseTime    time.Duration
	clock        func() time.Time
	warn         func(text string)
	writes       *turnstile // of conversations
	teller       *teller
	counts       counters
	judges       judges
	holds        atomic.Int64 // number of the last hold or release
	unknownHolds unknownHolds // calls of Hold and Release

	writer     rueidis.Client // of commits; a confirmed one if replicated is set
	replicated bool           // see Options.Replicated

	closing sync.RWMutex // held for reading by each call
	closed  bool
	running context.Context    //nolint:containedctx // It is that of the goroutines of the store, and ends with it.
	stop    context.CancelFunc // ends running
	renewed chan struct{}      // closed when the renewal has ended
	hearing sync.WaitGroup     // of the goroutines that hear of changes
}

var (
	_ store.Store   = (*Store)(nil)
	_ store.Pinger  = (*Store)(nil)
	_ store.Shared  = (*Store)(nil)
	_ store.Ordered = (*Store)(nil)
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
	options := withDefaults(o.Client)
	if o.Replicated {
		options = withConfirmed(options)
	}
	client, err := rueidis.NewClient(options)
	if err != nil {
		return nil, s.unavailable(err)
	}
	limited := bounded{client, &horizon{most: s.timeout, base: context.WithoutCancel(ctx)}}
	s.client, s.writer, s.replicated = limited, limited, o.Replicated
	if o.Replicated {
		s.writer = newConfirmed(limited)
	}
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
	found, err := s.schema(ctx, o)
	if err != nil {
		return err
	}
	for _, warning := range warnings {
		s.warn(warning)
	}
	s.setLayout(found)
	if err := s.claim(ctx, o.Exclusive); err != nil {
		return err
	}
	if again, err := s.schema(ctx, o); err != nil { // Until the claim, another process may have made a copy.
		return err
	} else if again != found {
		return fmt.Errorf("%w: it has changed the schema from %q to %q; start again", ErrInUse, found, again)
	}
	if err := s.subscribe(ctx); err != nil {
		return err
	}
	if err := s.renew(ctx); err != nil {
		return err
	}
	return s.releaseAbandoned(ctx)
}

// setLayout makes the buckets of the store.
func (s *Store) setLayout(l layout) {
	observe := s.options.Observe
	if l.spread > 1 { // The places of several buckets cannot be compared.
		observe = func(changes []store.Change) {
			for i := range changes {
				changes[i].Place = store.Place{}
			}
			s.options.Observe(changes)
		}
	}
	s.buckets, s.spread, s.teller = newBuckets(s.prefix, l.buckets), l.spread, newTeller(observe, l.buckets)
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
