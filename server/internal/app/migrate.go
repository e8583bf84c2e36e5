package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/parleyhq/parley/server/internal/config"
	"github.com/parleyhq/parley/server/internal/migrate"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore"
	"github.com/parleyhq/parley/store/redisstore"
)

const aboutMigrate = `Copy all data of a store to an empty store of another kind: from the file in --data-dir to Redis
or Valkey, or back. Stop the server before. The source is only read. No server can use either store
until the command has ended.

The copy has all tenants: conversations with their messages, turns, events, uids, versions and times, the
records of conversations and tenants with their revisions, and the remembered requests, so that a repeated
request_id is still recognized. An export of both stores has the same bytes. Expired conversations and
records are not copied. Ephemeral conversations whose client was connected count as released. Turns that
were running when the server was killed are ended by the next server, with what is stored of their
answers.

If the command fails or is interrupted, it removes what it has copied. If it is killed, servers refuse the
unfinished copy. In both cases, run the command again: it starts over.

The interaction log is not copied. It is in the directory interactions in --data-dir.`

// migrateCommand returns the command that copies a store to one of another kind.
func migrateCommand() config.Offline {
	var from, to string
	var limit time.Duration
	return config.Offline{
		Use: "migrate --from bolt|redis --to bolt|redis", Short: "Copy all data to an empty store of another kind",
		Long: aboutMigrate, Args: cobra.NoArgs, NeedsRedis: true,
		Flags: func(flags *pflag.FlagSet) {
			addLimit(flags, &limit)
			flags.StringVar(&from, "from", "", "`kind` of the store to copy: bolt or redis")
			flags.StringVar(&to, "to", "", "`kind` of the new store: bolt or redis")
		},
		Run: func(ctx context.Context, call config.OfflineCall) error {
			if err := checkKinds(from, to); err != nil {
				return err
			}
			m := &migrating{call: call, path: filepath.Join(call.Path, storeName), limit: limit}
			done, err := m.run(ctx, from)
			if err != nil {
				return fmt.Errorf("migrate: %w", err)
			}
			fmt.Fprintf(call.Out, "migrated %d tenants, %d conversations, %d messages, %d records to %s\n", done.Tenants,
				done.Conversations, done.Messages, done.Records, m.place(to))
			return nil
		},
	}
}

// checkKinds checks the flags of the kinds of the stores.
func checkKinds(from, to string) error {
	var faults []string
	for _, flag := range [][2]string{{"--from", from}, {"--to", to}} {
		if flag[1] != storeBolt && flag[1] != config.StoreRedis {
			faults = append(faults, fmt.Sprintf("%s: %.80q is not a kind of store; use bolt or redis", flag[0], flag[1]))
		}
	}
	if len(faults) == 0 && from == to {
		faults = append(faults, "--to: must not be the kind of --from; copy a store of the same kind with its own tools")
	}
	if len(faults) > 0 {
		return &config.Error{Faults: faults}
	}
	return nil
}

// storeBolt is the value of the setting store for a file.
const storeBolt = "bolt"

// migrating is one execution of the command.
type migrating struct {
	call  config.OfflineCall
	path  string        // of the file
	limit time.Duration // of the check of the file
}

// place returns where the store of a kind is.
func (m *migrating) place(kind string) string {
	if kind == storeBolt {
		return m.path
	}
	return fmt.Sprintf("prefix %q of %s", m.call.Config.Redis.Prefix, m.call.Config.Redis.URL)
}

// run copies the store of a kind to the other one.
func (m *migrating) run(ctx context.Context, from string) (done migrate.Counts, err error) {
	source, err := m.openSource(ctx, from)
	if err != nil {
		return done, fmt.Errorf("source: %w", err)
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	target, err := m.openTarget(ctx, from)
	if err != nil {
		return done, fmt.Errorf("target: %w", err)
	}
	p := newMigrationProgress(m.call.Err)
	o := migrate.Options{Source: source, Target: target, Progress: p.show}
	if from == storeBolt {
		o.MaxConversationBytes = config.MaxRedisConversation + store.MaxMessageBytes // The end of a turn may exceed it.
	}
	done, err = migrate.Run(ctx, o)
	p.clear()
	if err == nil {
		if err = target.Finish(context.WithoutCancel(ctx)); err != nil {
			return done, fmt.Errorf("target: the copy may be complete: %w", err)
		}
		return done, nil
	}
	return done, m.discard(ctx, target, err)
}

// discardTime is how long the removal of an unfinished copy may take.
const discardTime = 2 * time.Minute

// discard removes an unfinished copy. It returns err, and whether the copy was removed.
func (m *migrating) discard(ctx context.Context, target store.CopyTarget, err error) error {
	isInterrupted := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), discardTime)
	defer cancel()
	if isInterrupted {
		fmt.Fprintln(m.call.Err, "interrupted; removing what was copied")
		err = fmt.Errorf("interrupted: %w", err)
	}
	if failed := target.Discard(ctx); failed != nil {
		return fmt.Errorf("%w; what was copied could not be removed: %w; the source is unchanged; "+
			"run the command again, which starts over", err, failed)
	}
	return fmt.Errorf("%w; the source is unchanged and what was copied is removed", err)
}

// openSource opens the store to copy.
func (m *migrating) openSource(ctx context.Context, kind string) (store.CopySource, error) {
	if kind == config.StoreRedis {
		o, err := m.redisOptions(ctx)
		if err != nil {
			return nil, err
		}
		source, err := redisstore.OpenSource(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("redis: %w", err)
		}
		return source, nil
	}
	if _, err := os.Lstat(m.path); err == nil { // OpenSource reports a missing file.
		if err := checkWithin(ctx, m.limit, m.path, true, io.Discard); err != nil {
			return nil, err
		}
	}
	source, err := boltstore.OpenSource(m.path)
	if err != nil {
		return nil, err
	}
	return source, nil
}

// openTarget opens the store of the other kind.
func (m *migrating) openTarget(ctx context.Context, from string) (store.CopyTarget, error) {
	if from == config.StoreRedis {
		target, err := boltstore.OpenTarget(m.path)
		if err != nil {
			return nil, err
		}
		return target, nil
	}
	o, err := m.redisOptions(ctx)
	if err != nil {
		return nil, err
	}
	target, err := redisstore.OpenTarget(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	return target, nil
}

func (m *migrating) redisOptions(ctx context.Context) (redisstore.Options, error) {
	r := &m.call.Config.Redis
	client, err := redisstore.ParseURL(r.URL, r.Access())
	if err != nil {
		return redisstore.Options{}, settingsError("redis-url", err)
	}
	address := "parleyd migrate"
	if host, err := os.Hostname(); err == nil {
		address += " on " + host
	}
	return redisstore.Options{
		Client: client, Prefix: r.Prefix, Buckets: r.Buckets, Spread: r.Spread, Address: address,
		Replicated: r.Replicated(),
		Warn: func(text string) {
			if ctx.Err() == nil {
				fmt.Fprintln(m.call.Err, "redis:", text)
			}
		},
	}, nil
}

// progressInterval is the time between two lines of a migrationProgress that is not on a terminal.
const progressInterval = 10 * time.Second

// migrationProgress shows how much was copied: a bar on a terminal, lines otherwise.
type migrationProgress struct {
	out  io.Writer
	bar  *progressbar.ProgressBar // nil if standard error is not a terminal
	next time.Time                // of the next line
}

func newMigrationProgress(out io.Writer) *migrationProgress {
	p := &migrationProgress{out: out}
	if term.IsTerminal(int(os.Stderr.Fd())) {
		p.bar = progressbar.NewOptions64(-1,
			progressbar.OptionSetWriter(os.Stderr), // Not the queue of the log, which may drop parts of a bar.
			progressbar.OptionShowBytes(true), progressbar.OptionUseIECUnits(true), progressbar.OptionShowCount(),
			progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetSpinnerChangeInterval(0),
			progressbar.OptionClearOnFinish(), progressbar.OptionSetRenderBlankState(true),
		)
	}
	return p
}

// show shows what was copied so far.
func (p *migrationProgress) show(all, done migrate.Counts) {
	if p.bar != nil {
		p.bar.ChangeMax64(max(1, all.Bytes))
		p.bar.Describe(fmt.Sprintf("%d of %d conversations", done.Conversations, all.Conversations))
		_ = p.bar.Set64(done.Bytes) // The error means more than all, which is possible if its headers are older.
		return
	}
	now := time.Now()
	if now.Before(p.next) && done.Conversations < all.Conversations {
		return
	}
	p.next = now.Add(progressInterval)
	fmt.Fprintf(p.out, "%d of %d conversations, %d of %d MiB\n", done.Conversations, all.Conversations,
		done.Bytes>>20, all.Bytes>>20)
}

// clear removes the bar.
func (p *migrationProgress) clear() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}
