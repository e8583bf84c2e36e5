package storetest

import (
	"context"
	"errors"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/parleyhq/parley/store"
)

// tester is the common part of testing.T and rapid.T.
type tester interface {
	rapid.TB
	Context() context.Context
	Cleanup(func())
}

// same reports an error unless got equals want. The values may contain protos.
func same(t tester, what string, got, want any) {
	t.Helper()
	if cmp.Equal(want, got, cmp.Comparer(proto.Equal), cmpopts.EquateEmpty()) {
		return // The model test compares so often that cmp.Diff alone would take a minute.
	}
	t.Errorf("%s (-want +got):\n%s", what, cmp.Diff(want, got, protocmp.Transform(), cmpopts.EquateEmpty()))
}

// errorIs reports whether err is the sentinel want, or one of the store's error types with the same
// value. If want is nil, it reports whether err is any error.
func errorIs(err, want error) bool {
	if want == nil {
		return err != nil
	}
	var version, wantVersion *store.VersionError
	if errors.As(want, &wantVersion) {
		return errors.As(err, &version) && *version == *wantVersion
	}
	var full, wantFull *store.TenantBytesError
	if errors.As(want, &wantFull) {
		return errors.As(err, &full) && (*wantFull == store.TenantBytesError{} || *full == *wantFull)
	}
	var busy, wantBusy *store.BusyError
	if errors.As(want, &wantBusy) {
		return errors.As(err, &busy) && *busy == *wantBusy
	}
	var separated, wantSeparated *store.SeparatedError
	if errors.As(want, &wantSeparated) {
		return errors.As(err, &separated) && *separated == *wantSeparated
	}
	var revision, wantRevision *store.RevisionError
	if errors.As(want, &wantRevision) {
		return errors.As(err, &revision) && *revision == *wantRevision
	}
	var tooLarge, wantTooLarge *store.CopyTooLargeError
	if errors.As(want, &wantTooLarge) {
		return errors.As(err, &tooLarge) && *tooLarge == *wantTooLarge
	}
	var records, wantRecords *store.RecordsFullError
	if errors.As(want, &wantRecords) {
		return errors.As(err, &records) && (*records == *wantRecords ||
			wantRecords.Bytes == 0 && records.TenantScope == wantRecords.TenantScope)
	}
	return errors.Is(err, want)
}
