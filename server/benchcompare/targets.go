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

// Names of the targets in the table. Goals refer to them.
const (
	service         = "this service"
	serviceWithLog  = "this service, interaction log on"
	serviceBefore   = "this service, no journal"
	serviceStream   = "this service, AppendStream"
	inProcess       = "its store in process, without gRPC"
	etcdTransaction = "etcd, transaction"
	etcdWithLease   = "etcd, transaction and lease"
	redisAlways     = "Redis, AOF synced always"
	postgreSQL      = "PostgreSQL, synchronous commit"
	sqliteGrouped   = "SQLite in process, WAL, grouped"
	plainRead       = "this service without interceptors"
	plainCall       = "empty call without interceptors"
	chainedCall     = "empty call with all interceptors"
	constantCall    = "constant answer without interceptors"
)

// target is a system that is measured, or the reason why it is not.
type target struct {
	name          string
	conversations int
	system        system
	version       string
	missing       error
}

// targets are all systems of a run. They must be closed, also after an error.
type targets struct {
	settings
	dir      string // directory of all files of the run
	progress io.Writer

	all     []*target
	service *parley
	stream  *appendStream
	large   *parley // with settings.large conversations
	ceiling *ceiling
	closers []func() error

	filled time.Duration // time to fill the largest store
	starts []float64     // times of the service's starts with it, in seconds
	notes  []string
}

// close ends all systems in reverse order.
func (t *targets) close() error {
	var err error
	for _, end := range slices.Backward(t.closers) {
		err = errors.Join(err, end())
	}
	t.closers = nil
	return err
}

// competitor is another system than this service.
type competitor struct {
	name string
	// start starts the system with its files in dir, and returns its version.
	start func(ctx context.Context, dir string) (s system, version string, err error)
}

func competitors() []competitor {
	return []competitor{
		{etcdTransaction, func(ctx context.Context, dir string) (system, string, error) { return openEtcd(ctx, dir, false) }},
		{etcdWithLease, func(ctx context.Context, dir string) (system, string, error) { return openEtcd(ctx, dir, true) }},
		{redisAlways, startRedis},
		{postgreSQL, startPostgres},
		{sqliteGrouped, openSQLite},
	}
}

// open starts this service and the competitors. After an error, some of them may have to be closed.
func (t *targets) open(ctx context.Context) error {
	if err := t.openOwn(ctx); err != nil {
		return err
	}
	for _, c := range competitors() {
		if !t.wanted(c.name, appending, reading) {
			continue
		}
		if err := t.add(ctx, c); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

// add starts a competitor, fills it and checks it. If its program is missing, add records that.
func (t *targets) add(ctx context.Context, c competitor) error {
	began := time.Now()
	dir, err := t.subdir(c.name)
	if err != nil {
		return err
	}
	s, version, err := c.start(ctx, dir)
	if missing, ok := errors.AsType[*missingError](err); ok {
		t.all = append(t.all, &target{name: c.name, missing: missing})
		fmt.Fprintf(t.progress, "%s: %v\n", c.name, missing)
		return nil
	}
	if err != nil {
		return err
	}
	t.closers = append(t.closers, s.close)
	t.all = append(t.all, &target{name: c.name, conversations: t.conversations, system: s, version: version})
	if err := errors.Join(s.fill(ctx, t.conversations), check(ctx, s)); err != nil {
		return err
	}
	fmt.Fprintf(t.progress, "%s: filled and checked in %.1f s\n", c.name, time.Since(began).Seconds())
	return nil
}

// wantedIn reports whether any measurement of a part is wanted.
func (t *targets) wantedIn(p part) bool {
	if p.appending == appendingSizes {
		return t.wanted(sizedName(t.settings.large), p.appending, p.reading)
	}
	names := []string{
		service, serviceWithLog, serviceBefore, serviceStream, inProcess, plainRead, plainCall, chainedCall, constantCall,
	}
	for _, r := range competitors() {
		names = append(names, r.name)
	}
	return slices.ContainsFunc(names, func(name string) bool { return t.wanted(name, p.appending, p.reading) })
}

// wanted reports whether any of the operations of a target is to be measured.
func (t *targets) wanted(name string, operations ...string) bool {
	for _, operation := range operations {
		for _, callers := range clientCounts() {
			c := measurement{operation: operation, name: name, callers: callers}
			if t.only.MatchString(c.String()) {
				return true
			}
		}
	}
	return false
}

// subdir creates a directory for a target.
func (t *targets) subdir(name string) (string, error) {
	dir := filepath.Join(t.dir, fileName(name))
	return dir, os.Mkdir(dir, 0o700)
}

// fileName returns a name that is safe in a path: it replaces all characters except letters and digits
// with dashes.
func fileName(name string) string {
	out := []byte(name)
	for i, b := range out {
		if (b < 'a' || b > 'z') && (b < 'A' || b > 'Z') && (b < '0' || b > '9') {
			out[i] = '-'
		}
	}
	return string(out)
}
