package main

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// redisList stores each conversation as a list. An append is RPUSH, LTRIM and EXPIRE in one MULTI and
// one round trip. Redis syncs the append-only file before every reply.
type redisList struct {
	*process
	client  *redis.Client
	version string
}

func startRedis(ctx context.Context, dir string) (system, string, error) {
	program, err := find("redis-server", "redis-server")
	if err != nil {
		return nil, "", err
	}
	port, err := freePort(ctx)
	if err != nil {
		return nil, "", err
	}
	r := &redisList{version: redisVersion(firstLine(ctx, program, "--version"))}
	r.process, err = startProcess(dir, nil, program, "--bind", "127.0.0.1", "--port", port, "--dir", dir,
		"--appendonly", "yes", "--appendfsync", "always", "--save", "")
	if err != nil {
		return nil, "", err
	}
	r.client = redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port, PoolSize: maxCallers})
	err = r.awaitReady(ctx, func(ctx context.Context) error { return r.client.Ping(ctx).Err() })
	if err != nil {
		return nil, "", errors.Join(err, r.client.Close())
	}
	return r, r.version, nil
}

// redisVersion returns the version in the output of redis-server, "Redis server v=7.0.15 sha=…".
func redisVersion(line string) string {
	for word := range strings.FieldsSeq(line) {
		if version, ok := strings.CutPrefix(word, "v="); ok {
			return "Redis " + version
		}
	}
	return line
}

func (r *redisList) append(ctx context.Context, id, message string) error {
	_, err := r.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.RPush(ctx, id, message)
		p.LTrim(ctx, id, -maxMessages, -1)
		p.Expire(ctx, id, ttl)
		return nil
	})
	return err
}

func (r *redisList) read(ctx context.Context, id string) ([]string, error) {
	messages, err := r.client.LRange(ctx, id, 0, -1).Result()
	if err == nil && len(messages) == 0 {
		return nil, errNoConversation
	}
	return messages, err
}

func (r *redisList) remaining(ctx context.Context, id string) (time.Duration, error) {
	return r.client.PTTL(ctx, id).Result()
}

// fill also rewrites the append-only file, so that Redis does not start that during a measurement.
func (r *redisList) fill(ctx context.Context, n int) error {
	values := make([]any, maxMessages)
	for i := range values {
		values[i] = message(messageBytes)
	}
	err := fillInSteps(ctx, n, 100, 8, func(ctx context.Context, first, end int) error {
		_, err := r.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := first; i < end; i++ {
				p.RPush(ctx, conversationID(i), values...)
				p.Expire(ctx, conversationID(i), ttl)
			}
			return nil
		})
		return err
	})
	if err != nil {
		return err
	}
	// A rewrite that is already in progress suffices.
	if err := r.client.BgRewriteAOF(ctx).Err(); err != nil && !strings.Contains(err.Error(), "in progress") {
		return err
	}
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		info, err := r.client.Info(ctx, "persistence").Result()
		if err != nil ||
			strings.Contains(info, "aof_rewrite_in_progress:0") && strings.Contains(info, "aof_rewrite_scheduled:0") {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (r *redisList) close() error {
	return errors.Join(r.client.Close(), r.stop(syscall.SIGTERM))
}
