package app

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/parleyhq/parley/server/internal/metrics"
	"github.com/parleyhq/parley/store"
)

// metricsSources returns what a scrape reads.
func (s *server) metricsSources(ctx context.Context) metrics.Sources {
	ctx = context.WithoutCancel(ctx) // Scrapes succeed while the server stops.
	sources := metrics.Sources{
		Stats:        func() (store.Stats, error) { return s.storage.Stats(ctx) },
		TenantStats:  func(tenant string) (store.Stats, error) { return s.storage.TenantStats(ctx, tenant) },
		RunningTurns: s.turns.Running, WaitingTurns: s.turns.Waiting, Watchers: s.hub.Watchers, WatchGaps: s.hub.Gaps,
	}
	if inspector, ok := s.storage.Store.(store.Inspector); ok {
		sources.State = inspector.State
	}
	if log := s.storage.interactions; log != nil {
		sources.InteractionLog = func() (int64, bool) { return log.Lost(), log.Failing() }
	}
	if s.stderr != nil {
		sources.Log = func() (int64, int) {
			dropped, queued := s.stderr.State()
			return dropped + s.storage.changes.total.Load(), queued
		}
	}
	if _, ok := s.transports.CertificateExpiry(); ok {
		sources.CertificateExpiry = func() time.Time { at, _ := s.transports.CertificateExpiry(); return at }
	}
	if s.backupTime != nil {
		sources.LastBackup = s.backupTime.last
	}
	return sources
}

// monitor passes what happens in package rpc to the metrics.
type monitor struct {
	*metrics.Metrics
	backups *backupTime // nil: the store has no backups
}

// BackupSent records a backup.
func (m *monitor) BackupSent(began time.Time) {
	if m.backups != nil {
		m.backups.record(began)
	}
}

// backupTimeName is the name of a file in the data directory.
const backupTimeName = "last-backup"

// backupTime is the time of the last complete backup. It is stored in a file of the data directory, so that it is
// known after a restart.
type backupTime struct {
	path string
	log  *slog.Logger

	mu sync.Mutex
	at time.Time // zero: there was none
}

// openBackupTime reads the file. If it is missing or faulty, there was no backup.
func openBackupTime(dataDir string, log *slog.Logger) *backupTime {
	b := &backupTime{path: filepath.Join(dataDir, backupTimeName), log: log}
	text, err := os.ReadFile(b.path)
	if err == nil {
		b.at, err = time.Parse(time.RFC3339, strings.TrimSpace(string(text)))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("time of the last backup unknown", "error", err)
	}
	return b
}

// last returns the time of the last backup, or the zero time.
func (b *backupTime) last() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.at
}

// record records a backup of the store at an instant. If the file cannot be written, the time is lost at the stop.
func (b *backupTime) record(at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if at.Before(b.at) {
		return
	}
	b.at = at
	next := b.path + ".new"
	err := os.WriteFile(next, []byte(at.UTC().Format(time.RFC3339)+"\n"), 0o600)
	if err == nil {
		err = os.Rename(next, b.path)
	}
	if err != nil {
		b.log.Warn("time of the last backup not stored", "error", err)
	}
}
