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

// tester is what is in common to the tests of package testing and of package rapid.
type tester interface {
	rapid.TB
	Context() context.Context
	Cleanup(func())
}

// same compares anything with protos in it.
func same(t tester, what string, got, want any) {
	t.Helper()
	if cmp.Equal(want, got, cmp.Comparer(proto.Equal), cmpopts.EquateEmpty()) {
		return // The model test compares so much that the slow way below would take a minute.
	}
	t.Errorf("%s (-want +got):\n%s", what, cmp.Diff(want, got, protocmp.Transform(), cmpopts.EquateEmpty()))
}

// is compares an error with a sentinel, or with one of the store's error types by value.
func is(err, want error) bool {
	if want == nil {
		return err != nil
	}
	var version, wantVersion *store.VersionError
	if errors.As(want, &wantVersion) {
		return errors.As(err, &version) && *version == *wantVersion
	}
	var busy, wantBusy *store.BusyError
	if errors.As(want, &wantBusy) {
		return errors.As(err, &busy) && *busy == *wantBusy
	}
	return errors.Is(err, want)
}
