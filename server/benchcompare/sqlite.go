package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"time"

	"github.com/mattn/go-sqlite3" // the C library itself
)

const sqliteSchema = `
CREATE TABLE conversations (id TEXT PRIMARY KEY, last INTEGER NOT NULL, ends INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE messages (conversation TEXT NOT NULL, slot INTEGER NOT NULL, sequence INTEGER NOT NULL,
	content TEXT NOT NULL, PRIMARY KEY (conversation, slot)) WITHOUT ROWID;`

const (
	sqliteTouch = `
INSERT INTO conversations (id, last, ends) VALUES (?, 1, ?)
ON CONFLICT (id) DO UPDATE SET last = last + 1, ends = excluded.ends RETURNING last`
	sqlitePut  = `INSERT OR REPLACE INTO messages (conversation, slot, sequence, content) VALUES (?, ?, ?, ?)`
	sqliteRead = `
SELECT m.content FROM conversations c JOIN messages m ON m.conversation = c.id
WHERE c.id = ? AND c.ends > ? ORDER BY m.sequence`
)

// sqlite is SQLite in this process with a write-ahead log that is synced at every commit. One goroutine
// writes. It commits all waiting appends in one transaction.
type sqlite struct {
	version   string
	writes    *sql.DB // one connection
	reads     *sql.DB
	touch     *sql.Stmt
	put       *sql.Stmt
	selection *sql.Stmt
	waiting   chan *sqliteAppend
	stopped   chan struct{}
}

type sqliteAppend struct {
	id, message string
	done        chan error // with a capacity of 1
}

func openSQLite(ctx context.Context, dir string) (system, string, error) {
	version, _, _ := sqlite3.Version()
	s := &sqlite{version: "SQLite " + version, waiting: make(chan *sqliteAppend, maxCallers), stopped: make(chan struct{})}
	// The page cache is large enough, as for the other systems.
	name := "file:" + filepath.Join(dir, "sqlite.db") +
		"?_journal_mode=WAL&_synchronous=FULL&_busy_timeout=10000&_cache_size=-65536"
	var err1, err2 error
	s.writes, err1 = sql.Open("sqlite3", name+"&_txlock=immediate")
	s.reads, err2 = sql.Open("sqlite3", name)
	if err := errors.Join(err1, err2); err != nil {
		return nil, "", err
	}
	s.writes.SetMaxOpenConns(1)
	s.reads.SetMaxOpenConns(runtime.GOMAXPROCS(0))
	s.reads.SetMaxIdleConns(runtime.GOMAXPROCS(0))
	if _, err := s.writes.ExecContext(ctx, sqliteSchema); err != nil {
		return nil, "", errors.Join(err, s.writes.Close(), s.reads.Close())
	}
	var err3 error
	s.touch, err1 = s.writes.PrepareContext(ctx, sqliteTouch)
	s.put, err2 = s.writes.PrepareContext(ctx, sqlitePut)
	s.selection, err3 = s.reads.PrepareContext(ctx, sqliteRead)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, "", errors.Join(err, s.writes.Close(), s.reads.Close())
	}
	go s.write(context.WithoutCancel(ctx))
	return s, s.version, nil
}

func (s *sqlite) append(_ context.Context, id, message string) error {
	a := &sqliteAppend{id: id, message: message, done: make(chan error, 1)}
	s.waiting <- a
	return <-a.done
}

// write commits appends until waiting is closed.
func (s *sqlite) write(ctx context.Context) {
	defer close(s.stopped)
	for first := range s.waiting {
		batch := []*sqliteAppend{first}
		for more := true; more; {
			select {
			case a, open := <-s.waiting:
				if more = open; open {
					batch = append(batch, a)
				}
			default:
				more = false
			}
		}
		err := s.commit(ctx, batch)
		for _, a := range batch {
			a.done <- err
		}
	}
}

func (s *sqlite) commit(ctx context.Context, batch []*sqliteAppend) error {
	tx, err := s.writes.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	touch, put := tx.StmtContext(ctx, s.touch), tx.StmtContext(ctx, s.put)
	ends := time.Now().Add(ttl).UnixNano()
	for _, a := range batch {
		var last int64
		if err = touch.QueryRowContext(ctx, a.id, ends).Scan(&last); err == nil {
			_, err = put.ExecContext(ctx, a.id, last%maxMessages, last, a.message)
		}
		if err != nil {
			return errors.Join(err, tx.Rollback())
		}
	}
	return tx.Commit()
}

func (s *sqlite) read(ctx context.Context, id string) ([]string, error) {
	rows, err := s.selection.QueryContext(ctx, id, time.Now().UnixNano())
	if err != nil {
		return nil, err
	}
	messages := make([]string, 0, maxMessages)
	for rows.Next() {
		var content string
		if err := rows.Scan(&content); err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		messages = append(messages, content)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, err
	}
	if len(messages) == 0 {
		return nil, errNoConversation
	}
	return messages, nil
}

func (s *sqlite) remaining(ctx context.Context, id string) (time.Duration, error) {
	var ends int64
	err := s.reads.QueryRowContext(ctx, "SELECT ends FROM conversations WHERE id = ?", id).Scan(&ends)
	return time.Until(time.Unix(0, ends)), err
}

// fill also moves all data from the write-ahead log to the database file.
func (s *sqlite) fill(ctx context.Context, n int) error {
	ends, text := time.Now().Add(ttl).UnixNano(), message(messageBytes)
	err := fillInSteps(ctx, n, 1000, 1, func(ctx context.Context, first, end int) error {
		tx, err := s.writes.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		put := tx.StmtContext(ctx, s.put)
		for i := first; i < end && err == nil; i++ {
			id := conversationID(i)
			_, err = tx.ExecContext(ctx, "INSERT INTO conversations (id, last, ends) VALUES (?, ?, ?)", id, maxMessages, ends)
			for slot := range maxMessages {
				if err == nil {
					_, err = put.ExecContext(ctx, id, slot, (slot+maxMessages-1)%maxMessages+1, text)
				}
			}
		}
		if err != nil {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit()
	})
	if err != nil {
		return fmt.Errorf("fill: %w", err)
	}
	_, err = s.writes.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
	return err
}

func (s *sqlite) close() error {
	close(s.waiting)
	<-s.stopped
	return errors.Join(s.writes.Close(), s.reads.Close())
}
