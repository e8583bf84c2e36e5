package records

import (
	"bytes"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// RequestKey returns the hidden key under which the records of a tenant contain a request.
func RequestKey(q *store.Request) string { return hidden + q.Method + hidden + q.ID }

// WriteTenant decides a store.WriteRecords without a conversation. first is the value under RequestKey; nil if there is
// none or w has no request. If edits.Any is false, there is nothing to write.
func WriteTenant(
	w *store.WriteRecords, in *Input, first []byte, now time.Time,
) (result *store.WrittenRecords, edits *Edits, err error) {
	var request Edit
	if w.Request != nil {
		request = Edit{TenantScope: true, Key: RequestKey(w.Request)}
		if first != nil {
			if request.Before, err = StateOf(request.Key, first); err != nil {
				return nil, nil, err
			}
		}
		if request.Before.Live(now) {
			result, err = replay(w.Request, first)
			return result, nil, err
		}
	}
	if edits, err = Decide(w.Writes, in, nil, now); err != nil {
		return nil, nil, err
	}
	if w.Request != nil {
		if err := request.remember(w.Request, edits.TenantRevision, now); err != nil {
			return nil, nil, err
		}
		edits.Add(request)
	}
	if !w.OnlyRemoves() || edits.TenantRevision == 0 { // 0: it deletes nothing and only adds a request.
		if err := in.Tenant.checkFull(edits.Tenant.Bytes); err != nil {
			return nil, nil, err
		}
	}
	return &store.WrittenRecords{TenantRevision: edits.TenantRevision}, edits, nil
}

// replay returns the first result of a request, whose value is first.
func replay(q *store.Request, first []byte) (*store.WrittenRecords, error) {
	r, err := Unmarshal(RequestKey(q), first)
	if err != nil {
		return nil, err
	}
	stored := new(storev1.Request)
	if err := proto.Unmarshal(r.GetValue(), stored); err != nil {
		return nil, fmt.Errorf("%w: request %.128q", store.ErrCorrupt, q.ID)
	}
	if !bytes.Equal(stored.GetDigest(), q.Digest[:]) {
		return nil, store.ErrRequestReused
	}
	return &store.WrittenRecords{TenantRevision: stored.GetTenantRevision(), Replayed: true}, nil
}

// remember makes the edit write a request. The record of a request always has revision 1.
func (e *Edit) remember(q *store.Request, tenantRevision int64, now time.Time) error {
	value, err := proto.Marshal(&storev1.Request{
		Id: q.ID, Method: q.Method, Digest: q.Digest[:], Time: timestamppb.New(now), TenantRevision: tenantRevision,
	})
	if err != nil {
		return fmt.Errorf("encode request: %w", err)
	}
	return e.put(&parleyv1.Record{
		Key: e.Key, Value: value, Revision: 1, UpdateTime: timestamppb.New(now),
		ExpireTime: timestamppb.New(now.Add(store.RequestTTL)),
	})
}
