package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// What the entrants are called in the table; goals go by these names.
const (
	service         = "this service"
	serviceWithLog  = "this service, interaction log on"
	inProcess       = "its store in process, without gRPC"
	etcdTransaction = "etcd, transaction"
	etcdWithLease   = "etcd, transaction and lease"
	redisAlways     = "Redis, AOF synced always"
	postgreSQL      = "PostgreSQL, synchronous commit"
	sqliteGrouped   = "SQLite in process, WAL, grouped"
	bareRead        = "this service without interceptors"
	bareCall        = "empty call without interceptors"
	chainedCall     = "empty call with all interceptors"
)

// entrant is a system that takes part, or the reason why it does not.
type entrant struct {
	name          string
	conversations int
	system        system
	version       string
	missing       error
}

// entrants are all that take part. Close them, whatever happens.
type entrants struct {
	settings
	dir      string // for all files of this run
	progress io.Writer

	all     []*entrant
	service *parley
	large   *parley // with settings.large conversations
	ceiling *ceiling
	closers []func() error

	filled time.Duration // how long the large file took
	starts []float64     // how long the service took to start with it, in seconds
	notes  []string
}

// close ends all, the last one first.
func (e *entrants) close() error {
	var err error
	for _, end := range slices.Backward(e.closers) {
		err = errors.Join(err, end())
	}
	e.closers = nil
	return err
}

// rival is what others would use.
type rival struct {
	name string
	// start starts it with its files in a directory, and tells its version.
	start func(ctx context.Context, dir string) (s system, version string, err error)
}

func rivals() []rival {
	return []rival{
		{etcdTransaction, func(ctx context.Context, dir string) (system, string, error) { return openEtcd(ctx, dir, false) }},
		{etcdWithLease, func(ctx context.Context, dir string) (system, string, error) { return openEtcd(ctx, dir, true) }},
		{redisAlways, startRedis},
		{postgreSQL, startPostgres},
		{sqliteGrouped, openSQLite},
	}
}

// open starts all. On an error too there may be some to close.
func (e *entrants) open(ctx context.Context) error {
	if err := e.openOwn(ctx); err != nil {
		return err
	}
	for _, rival := range rivals() {
		if !e.wanted(rival.name, appending, reading) {
			continue
		}
		if err := e.enter(ctx, rival); err != nil {
			return fmt.Errorf("%s: %w", rival.name, err)
		}
	}
	return nil
}

// enter starts a rival, fills it and checks it. One whose program is missing is noted.
func (e *entrants) enter(ctx context.Context, r rival) error {
	began := time.Now()
	dir, err := e.subdir(r.name)
	if err != nil {
		return err
	}
	s, version, err := r.start(ctx, dir)
	if missing, ok := errors.AsType[*missingError](err); ok {
		e.all = append(e.all, &entrant{name: r.name, missing: missing})
		fmt.Fprintf(e.progress, "%s: %v\n", r.name, missing)
		return nil
	}
	if err != nil {
		return err
	}
	e.closers = append(e.closers, s.close)
	e.all = append(e.all, &entrant{name: r.name, conversations: e.conversations, system: s, version: version})
	if err := errors.Join(s.fill(ctx, e.conversations), check(ctx, s)); err != nil {
		return err
	}
	fmt.Fprintf(e.progress, "%s: filled and checked in %.1f s\n", r.name, time.Since(began).Seconds())
	return nil
}

// wantedIn reports whether anything of a part is to be measured.
func (e *entrants) wantedIn(p part) bool {
	if p.appending == appendingSizes {
		return e.wanted(sized(e.settings.large), p.appending, p.reading)
	}
	names := []string{service, serviceWithLog, inProcess, bareRead, bareCall, chainedCall}
	for _, r := range rivals() {
		names = append(names, r.name)
	}
	return slices.ContainsFunc(names, func(name string) bool { return e.wanted(name, p.appending, p.reading) })
}

// wanted reports whether any of the operations of an entrant is to be measured.
func (e *entrants) wanted(name string, operations ...string) bool {
	for _, operation := range operations {
		for _, callers := range clientCounts() {
			c := contestant{operation: operation, name: name, callers: callers}
			if e.only.MatchString(c.String()) {
				return true
			}
		}
	}
	return false
}

// subdir makes a directory for an entrant.
func (e *entrants) subdir(name string) (string, error) {
	dir := filepath.Join(e.dir, fileName(name))
	return dir, os.Mkdir(dir, 0o700)
}

// fileName makes a name one that is safe in a path: letters, digits and dashes.
func fileName(name string) string {
	out := []byte(name)
	for i, b := range out {
		if (b < 'a' || b > 'z') && (b < 'A' || b > 'Z') && (b < '0' || b > '9') {
			out[i] = '-'
		}
	}
	return string(out)
}
