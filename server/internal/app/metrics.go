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
		LostSpans: s.tracer.LostSpans,
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
	if s.failureTime != nil {
		sources.LastFailure = s.failureTime.last
	}
	return sources
}

// monitor passes what happens in package rpc to the metrics.
type monitor struct {
	*metrics.Metrics
	backups *storedTime // nil: the store has no backups
}

// BackupSent records a backup.
func (m *monitor) BackupSent(began time.Time) {
	if m.backups != nil {
		m.backups.set(began)
		m.backups.save()
	}
}

// Names of files in the data directory. Each has the time of an event, see [storedTime].
const (
	backupTimeName  = "last-backup"
	failureTimeName = "last-store-failure"
)

// storedTime is the time of the last event of a kind. It is stored in a file of the data directory, so that it is
// known after a restart.
type storedTime struct {
	path string
	log  *slog.Logger

	mu sync.Mutex
	at time.Time // zero: there was no event

	writing sync.Mutex // of the file; held with mu unlocked, because the disk may hang
}

// openStoredTime reads the file. If it is missing or faulty, there was no event.
func openStoredTime(dataDir, name string, log *slog.Logger) *storedTime {
	s := &storedTime{path: filepath.Join(dataDir, name), log: log}
	text, err := os.ReadFile(s.path)
	if err == nil {
		s.at, err = time.Parse(time.RFC3339, strings.TrimSpace(string(text)))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("time not read from its file", "path", s.path, "error", err)
	}
	return s
}

// last returns the time of the last event, or the zero time. It does not block.
func (s *storedTime) last() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

// set sets the time of the last event, unless a later one is known. It does not block. The caller must call save.
func (s *storedTime) set(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at.After(s.at) {
		s.at = at
	}
}

// save writes the file. If that is impossible, the time is lost when the process ends.
func (s *storedTime) save() {
	s.writing.Lock()
	defer s.writing.Unlock()
	next := s.path + ".new"
	err := os.WriteFile(next, []byte(s.last().UTC().Format(time.RFC3339)+"\n"), 0o600)
	if err == nil {
		err = os.Rename(next, s.path)
	}
	if err != nil {
		s.log.Warn("time not written to its file", "path", s.path, "error", err)
	}
}

// onStoreFailure records a permanent failure of the store and makes the server stop. It does not block: close waits
// until the file is written.
func (s *server) onStoreFailure(err error) {
	s.failureTime.set(time.Now())
	s.saving.Go(s.failureTime.save)
	s.storeFailed(err)
}
