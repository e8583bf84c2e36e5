package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// PostgreSQL and SQLite have a row for each conversation and a row for each of its
// messages, in a ring of slots. An append updates two rows in place. The update of the conversation's
// row serializes the writers of the conversation. Nothing is deleted, and there are no indexes except
// the primary keys. Free space in the pages allows PostgreSQL to update rows without the indexes.
const postgresSchema = `
CREATE TABLE conversations (id uuid PRIMARY KEY, last bigint NOT NULL, ends timestamptz NOT NULL)
	WITH (fillfactor = 70);
CREATE TABLE messages (conversation uuid NOT NULL, slot smallint NOT NULL, sequence bigint NOT NULL,
	content text NOT NULL, PRIMARY KEY (conversation, slot)) WITH (fillfactor = 85);`

// An append and a read are one statement each. pgx prepares it on every connection.
const (
	postgresAppend = `
WITH c AS (
	INSERT INTO conversations AS c (id, last, ends) VALUES ($1, 1, now() + interval '1 hour')
	ON CONFLICT (id) DO UPDATE SET last = c.last + 1, ends = excluded.ends
	RETURNING last
)
INSERT INTO messages (conversation, slot, sequence, content) SELECT $1, last % 20, last, $2 FROM c
ON CONFLICT (conversation, slot) DO UPDATE SET sequence = excluded.sequence, content = excluded.content`
	postgresRead = `
SELECT m.content FROM conversations c JOIN messages m ON m.conversation = c.id
WHERE c.id = $1 AND c.ends > now() ORDER BY m.sequence`
)

// postgres is a new cluster with default settings except the size of its buffers. Commits are synchronous.
type postgres struct {
	*process
	pool    *pgxpool.Pool
	version string
}

func startPostgres(ctx context.Context, dir string) (system, string, error) {
	const pkg, programs = "postgresql", "/usr/lib/postgresql/*/bin/"
	program, err1 := find(pkg, programs+"postgres", "postgres")
	initdb, err2 := find(pkg, programs+"initdb", "initdb")
	if err := errors.Join(err1, err2); err != nil {
		return nil, "", errors.Join(err1, err2)
	}
	owner, err := credential("postgres")
	if err != nil {
		return nil, "", err
	}
	if owner != nil {
		if err := os.Chown(dir, int(owner.Uid), int(owner.Gid)); err != nil {
			return nil, "", err
		}
	}
	data := filepath.Join(dir, "data")
	prepare := exec.CommandContext(ctx, initdb, "--pgdata="+data, "--username=bench", "--auth=trust", "--encoding=UTF8",
		"--locale=C")
	prepare.Dir, prepare.SysProcAttr = dir, &syscall.SysProcAttr{Credential: owner}
	if output, err := prepare.CombinedOutput(); err != nil {
		return nil, "", fmt.Errorf("initdb: %w: %s", err, output)
	}
	port, err := freePort(ctx)
	if err != nil {
		return nil, "", err
	}
	p := &postgres{version: postgresVersion(firstLine(ctx, program, "--version"))}
	p.process, err = startProcess(dir, owner, program, "-D", data, "-c", "listen_addresses=127.0.0.1", "-c", "port="+port,
		"-c", "unix_socket_directories=", "-c", "synchronous_commit=on", "-c", "shared_buffers=2GB")
	if err != nil {
		return nil, "", err
	}
	config, err := pgxpool.ParseConfig(fmt.Sprintf(
		"postgres://bench@127.0.0.1:%s/postgres?sslmode=disable&pool_max_conns=%d", port, maxCallers))
	if err != nil {
		return nil, "", errors.Join(err, p.stop(syscall.SIGINT))
	}
	if p.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, "", errors.Join(err, p.stop(syscall.SIGINT))
	}
	if err := p.awaitReady(ctx, p.pool.Ping); err != nil {
		p.pool.Close()
		return nil, "", err
	}
	if _, err := p.pool.Exec(ctx, postgresSchema); err != nil {
		return nil, "", errors.Join(err, p.close())
	}
	return p, p.version, nil
}

// postgresVersion shortens "postgres (PostgreSQL) 15.18 (Debian …)".
func postgresVersion(line string) string {
	_, version, found := strings.Cut(line, "(PostgreSQL) ")
	if !found {
		return line
	}
	version, _, _ = strings.Cut(version, " ")
	return "PostgreSQL " + version
}

func (p *postgres) append(ctx context.Context, id, message string) error {
	_, err := p.pool.Exec(ctx, postgresAppend, id, message)
	return err
}

func (p *postgres) read(ctx context.Context, id string) ([]string, error) {
	rows, err := p.pool.Query(ctx, postgresRead, id)
	if err != nil {
		return nil, err
	}
	messages, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err == nil && len(messages) == 0 {
		return nil, errNoConversation
	}
	return messages, err
}

func (p *postgres) remaining(ctx context.Context, id string) (time.Duration, error) {
	var ends time.Time
	err := p.pool.QueryRow(ctx, "SELECT ends FROM conversations WHERE id = $1", id).Scan(&ends)
	return time.Until(ends), err
}

// fill also writes all data to the files of the tables and updates the statistics.
func (p *postgres) fill(ctx context.Context, n int) error {
	ends, text := time.Now().Add(ttl), message(messageBytes)
	err := fillInSteps(ctx, n, 1000, 2, func(ctx context.Context, first, end int) error {
		return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
			_, err1 := tx.CopyFrom(ctx, pgx.Identifier{"conversations"}, []string{"id", "last", "ends"},
				pgx.CopyFromSlice(end-first, func(i int) ([]any, error) {
					return []any{conversationID(first + i), maxMessages, ends}, nil
				}))
			_, err2 := tx.CopyFrom(ctx, pgx.Identifier{"messages"}, []string{"conversation", "slot", "sequence", "content"},
				pgx.CopyFromSlice((end-first)*maxMessages, func(i int) ([]any, error) {
					sequence := i%maxMessages + 1
					return []any{conversationID(first + i/maxMessages), sequence % maxMessages, sequence, text}, nil
				}))
			return errors.Join(err1, err2)
		})
	})
	for _, statement := range []string{"VACUUM ANALYZE", "CHECKPOINT"} {
		if err == nil {
			_, err = p.pool.Exec(ctx, statement)
		}
	}
	return err
}

func (p *postgres) close() error {
	p.pool.Close()
	return p.stop(syscall.SIGINT)
}
