package redisstore

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store"
)

var (
	//go:embed lua/lib.lua
	library string
	//go:embed lua/commit.lua
	commitText string
	//go:embed lua/sweep.lua
	sweepText string
	//go:embed lua/hold.lua
	holdText string
	//go:embed lua/release.lua
	releaseText string
	//go:embed lua/progress.lua
	progressText string
	//go:embed lua/lease.lua
	leaseText string
	//go:embed lua/leases.lua
	leasesText string
	//go:embed lua/claim.lua
	claimText string
	//go:embed lua/epoch.lua
	epochText string
)

// scripts are the scripts of the store. The engine refuses all but those that free memory when its memory is full.
type scripts struct {
	commit, free, sweep, hold, release, progress, lease, leases, claim, epoch *rueidis.Lua
}

func newScripts() scripts {
	// The lease is renewed in all buckets at once. To load it first, all nodes of a cluster would have to be reachable.
	const writes, frees = "#!lua\n", "#!lua flags=allow-oom\n"
	return scripts{
		commit: rueidis.NewLuaScript(writes + library + commitText), free: rueidis.NewLuaScript(frees + library + commitText),
		sweep: rueidis.NewLuaScript(frees + library + sweepText), hold: rueidis.NewLuaScript(writes + library + holdText),
		release:  rueidis.NewLuaScript(frees + library + releaseText),
		progress: rueidis.NewLuaScript(writes + library + progressText),
		lease:    rueidis.NewLuaScriptNoSha(frees + leaseText), leases: rueidis.NewLuaScript(frees + leasesText),
		claim: rueidis.NewLuaScript(frees + claimText), epoch: rueidis.NewLuaScript(frees + epochText),
	}
}

// run runs a script with the arguments that all scripts of lib.lua share.
func (s *Store) run(ctx context.Context, script *rueidis.Lua, p space, now time.Time, args ...string) (
	[]rueidis.RedisMessage, error,
) {
	all := append([]string{p.prefix, p.name, stamp(now)}, args...)
	reply, err := s.exec(ctx, s.writer, script, p, all).ToArray()
	if err != nil {
		return nil, s.fault(err)
	}
	return reply, nil
}

// Times between attempts to run a script that the engine refuses for now.
const (
	firstDelay = 5 * time.Millisecond
	maxDelay   = 200 * time.Millisecond
)

// exec runs a script with a client. If the engine replies that it refuses the script for now, for example because the
// slot of its keys moves or its node has just become a replica, exec tries again until ctx ends or the time of a
// command has passed. The script was not executed then.
func (s *Store) exec(
	ctx context.Context, client rueidis.Client, script *rueidis.Lua, p space, args []string,
) rueidis.RedisResult {
	end := time.Now().Add(s.timeout)
	for delay := firstDelay; ; delay = min(2*delay, maxDelay) {
		reply := script.Exec(ctx, client, []string{p.key("t")}, args)
		if refusal, ok := rueidis.IsRedisErr(reply.Error()); !ok || !isOutage(refusal.Error()) || !time.Now().Before(end) {
			return reply
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return reply
		}
	}
}

// stamp returns a time as the scripts expect it: nanoseconds with 19 digits.
func stamp(t time.Time) string { return fmt.Sprintf("%019d", max(0, t.UnixNano())) }

func unstamp(text string) time.Time {
	ns, _ := strconv.ParseInt(text, 10, 64)
	return time.Unix(0, ns)
}

// bounded is a client whose commands take a limited time. It pins them: the driver sends a read again on another
// connection while it may still be writing it to the broken one, so that the memory of the command must not be reused.
type bounded struct {
	rueidis.Client

	horizon *horizon
}

// Close implements rueidis.Client.
func (c bounded) Close() {
	c.Client.Close()
	c.horizon.close()
}

// within returns a context that ends in time.
func (c bounded) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Done() == nil {
		return c.horizon.shared(), func() {}
	}
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= c.horizon.most {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.horizon.most)
}

// horizon gives commands whose context does not end one that does. A timer for each of them would be a sixth of the
// time of a short read.
type horizon struct {
	most time.Duration
	base context.Context //nolint:containedctx // It does not end.

	mu     sync.Mutex
	latest context.Context //nolint:containedctx // Many commands share it.
	cancel context.CancelFunc
	aged   time.Time // from when on another one is made
}

// shared returns a context that ends after most, or at most an eighth of that earlier.
func (h *horizon) shared() context.Context {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !now.Before(h.aged) { // The one before ends at its deadline: its commands may still run.
		h.latest, h.cancel = context.WithDeadline(h.base, now.Add(h.most))
		h.aged = now.Add(h.most / 8)
	}
	return h.latest
}

// close ends the latest context.
func (h *horizon) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cancel != nil {
		h.cancel()
	}
}

// Do implements rueidis.Client.
func (c bounded) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	ctx, cancel := c.within(ctx)
	defer cancel()
	return c.Client.Do(ctx, command.Pin())
}

// DoMulti implements rueidis.Client.
func (c bounded) DoMulti(ctx context.Context, commands ...rueidis.Completed) []rueidis.RedisResult {
	ctx, cancel := c.within(ctx)
	defer cancel()
	for _, command := range commands {
		command.Pin()
	}
	return c.Client.DoMulti(ctx, commands...)
}

// fault returns the error of a command as one of package store. store.ErrUnavailable means that the command may have
// been executed or not.
func (s *Store) fault(err error) error {
	var reply *rueidis.RedisError
	switch {
	case errors.As(err, &reply) && strings.HasPrefix(reply.Error(), "OOM "):
		return fmt.Errorf("%w: %w", store.ErrNoSpace, err)
	case reply != nil && strings.HasPrefix(reply.Error(), "WRONGTYPE "): // Something is in place of a key.
		return fmt.Errorf("%w: %w", store.ErrCorrupt, err)
	case reply != nil && isOutage(reply.Error()), reply == nil && isBroken(err):
		return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	return err
}

// isOutage reports whether a node of the engine replies with this error while it cannot serve: it loads its data, has
// lost its master or its majority, has become a replica, or must not write because of its disk or its replicas.
func isOutage(reply string) bool {
	word, _, _ := strings.Cut(reply, " ")
	switch word {
	case "LOADING", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "READONLY", "MISCONF", "NOREPLICAS", "BUSY", "MOVED", "ASK":
		return true
	}
	return false
}

// isBroken reports whether an error means that the engine was not reached, or has not answered. The driver returns
// ErrClosing also if it has no connection; a closed Store does not call it.
func isBroken(err error) bool {
	var network net.Error
	if errors.Is(err, context.Canceled) {
		return false
	}
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, rueidis.ErrClosing) || errors.Is(err, rueidis.ErrNoAddr) ||
		errors.Is(err, rueidis.ErrNoSlot)
}

// removals returns the changes that report what a script has removed.
func removals(p space, now time.Time, list rueidis.RedisMessage) (changes []store.Change, err error) {
	all, err := list.ToArray()
	if err != nil {
		return nil, err
	}
	for _, one := range all {
		f, err := one.AsStrSlice()
		if err != nil || len(f) != 6 {
			return nil, fmt.Errorf("reply of a script: %v, %w", f, err)
		}
		changes = append(changes, removal(p.tenant, now, f))
	}
	return changes, nil
}
