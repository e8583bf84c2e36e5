package main

import (
	"context"
	"encoding/binary"
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
)

// etcdServer is an etcd member and a client of it.
type etcdServer struct {
	*process
	client  *clientv3.Client
	version string
}

// openEtcd starts etcd as a system of this benchmark.
func openEtcd(ctx context.Context, dir string, leases bool) (system, string, error) {
	s, err := startEtcd(ctx, dir)
	if err != nil {
		return nil, "", err
	}
	return &etcdValue{etcdServer: s, leases: leases}, s.version, nil
}

// startEtcd starts etcd with default settings, except the quota for the data and compaction, which a
// workload that overwrites keys needs.
func startEtcd(ctx context.Context, dir string) (*etcdServer, error) {
	program, err := find("etcd-server", "etcd")
	if err != nil {
		return nil, err
	}
	port, err1 := freePort(ctx)
	peerPort, err2 := freePort(ctx)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	address, peers := "http://127.0.0.1:"+port, "http://127.0.0.1:"+peerPort
	s := &etcdServer{version: etcdVersion(firstLine(ctx, program, "--version"))}
	s.process, err = startProcess(dir, nil, program, "--name=bench", "--data-dir="+filepath.Join(dir, "data"),
		"--listen-client-urls="+address, "--advertise-client-urls="+address,
		"--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers, "--initial-cluster=bench="+peers,
		"--quota-backend-bytes=8589934592", "--auto-compaction-mode=revision", "--auto-compaction-retention=1000",
		"--log-level=warn")
	if err != nil {
		return nil, err
	}
	s.client, err = clientv3.New(clientv3.Config{Endpoints: []string{address}, Logger: zap.NewNop()})
	if err != nil {
		return nil, errors.Join(err, s.stop(syscall.SIGTERM))
	}
	err = s.awaitReady(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := s.client.Get(ctx, "ready")
		return err
	})
	if err != nil {
		return nil, errors.Join(err, s.client.Close())
	}
	return s, nil
}

func (s *etcdServer) close() error {
	return errors.Join(s.client.Close(), s.stop(syscall.SIGTERM))
}

// etcdValue stores each conversation as one value: its expiry, then its messages. An append reads the
// value and writes it in a transaction that compares its revision. With leases, the key is bound to a
// lease of the conversation, and an append keeps the lease alive. Without leases, a read compares the
// time.
//
// An alternative was measured: a key for each of 20 slots and one for the head, of which an append
// writes two. It had half the speed of appends and a third of the speed of reads, which read 21 keys.
// Reads that may be stale are not faster on one member.
type etcdValue struct {
	*etcdServer
	leases bool
}

func (e *etcdValue) append(ctx context.Context, id, message string) error {
	key := id
	// The read may be stale, because the transaction detects that.
	reply, err := e.client.Get(ctx, key, clientv3.WithSerializable())
	if err != nil {
		return err
	}
	kvs := reply.Kvs
	for {
		var revision int64
		var old []byte
		var lease clientv3.LeaseID
		if len(kvs) > 0 {
			revision, old, lease = kvs[0].ModRevision, kvs[0].Value, clientv3.LeaseID(kvs[0].Lease)
		}
		var group errgroup.Group
		if e.leases && lease != 0 {
			group.Go(func() error {
				_, err := e.client.KeepAliveOnce(ctx, lease)
				return err
			})
		} else if e.leases {
			granted, err := e.client.Grant(ctx, int64(ttl.Seconds()))
			if err != nil {
				return err
			}
			lease = granted.ID
		}
		done, err := e.client.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).
			Then(clientv3.OpPut(key, encodeMessages(old, time.Now().Add(ttl), message), clientv3.WithLease(lease))).
			Else(clientv3.OpGet(key)).
			Commit()
		if err := errors.Join(err, group.Wait()); err != nil || done.Succeeded {
			return err
		}
		kvs = done.Responses[0].GetResponseRange().GetKvs()
	}
}

func (e *etcdValue) read(ctx context.Context, id string) ([]string, error) {
	reply, err := e.client.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	if len(reply.Kvs) == 0 {
		return nil, errNoConversation
	}
	messages, end := decodeMessages(reply.Kvs[0].Value)
	if !e.leases && time.Now().After(end) {
		return nil, errNoConversation
	}
	return messages, nil
}

func (e *etcdValue) remaining(ctx context.Context, id string) (time.Duration, error) {
	reply, err := e.client.Get(ctx, id)
	if err != nil || len(reply.Kvs) == 0 {
		return 0, errors.Join(errNoConversation, err)
	}
	if !e.leases {
		_, end := decodeMessages(reply.Kvs[0].Value)
		return time.Until(end), nil
	}
	left, err := e.client.TimeToLive(ctx, clientv3.LeaseID(reply.Kvs[0].Lease))
	if err != nil {
		return 0, err
	}
	return time.Duration(left.TTL) * time.Second, nil
}

func (e *etcdValue) fill(ctx context.Context, n int) error {
	const step = 100 // A transaction has 1 MiB then; the limit is 1.5.
	var value string
	for range maxMessages {
		value = encodeMessages([]byte(value), time.Now().Add(ttl), message(messageBytes))
	}
	return fillInSteps(ctx, n, step, maxCallers, func(ctx context.Context, first, end int) error {
		var puts []clientv3.Op
		for i := first; i < end; i++ {
			var lease clientv3.LeaseID
			if e.leases {
				granted, err := e.client.Grant(ctx, int64(ttl.Seconds()))
				if err != nil {
					return err
				}
				lease = granted.ID
			}
			puts = append(puts, clientv3.OpPut(conversationID(i), value, clientv3.WithLease(lease)))
		}
		_, err := e.client.Txn(ctx).Then(puts...).Commit()
		return err
	})
}

// encodeMessages returns the value with one more message, and without the oldest if it had maxMessages.
func encodeMessages(old []byte, end time.Time, message string) string {
	value := binary.BigEndian.AppendUint64(make([]byte, 0, len(old)+8+4+len(message)), uint64(end.UnixNano()))
	if messages, _ := decodeMessages(old); len(messages) > 0 {
		for _, m := range messages[max(0, len(messages)+1-maxMessages):] {
			value = append(binary.BigEndian.AppendUint32(value, uint32(len(m))), m...)
		}
	}
	value = append(binary.BigEndian.AppendUint32(value, uint32(len(message))), message...)
	return string(value)
}

// decodeMessages decodes a value of encodeMessages.
func decodeMessages(value []byte) (messages []string, end time.Time) {
	if len(value) < 8 {
		return nil, time.Time{}
	}
	end = time.Unix(0, int64(binary.BigEndian.Uint64(value)))
	for text := string(value[8:]); len(text) >= 4; {
		n := int(binary.BigEndian.Uint32([]byte(text[:4])))
		messages = append(messages, text[4:4+n])
		text = text[4+n:]
	}
	return messages, end
}

// etcdVersion returns the version in the output of etcd --version.
func etcdVersion(line string) string { return "etcd " + strings.TrimPrefix(line, "etcd Version: ") }
