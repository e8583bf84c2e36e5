package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestPrintPurged(t *testing.T) {
	tests := []struct {
		purged int64
		ids    []string
		dryRun bool
		want   string
	}{
		{0, nil, false, "purged 0 conversations\n"},
		{1, []string{"a"}, false, "purged 1 conversation\na\n"},
		{102, []string{"a", "b\x1b"}, true, "would purge 102 conversations\na\nb\uFFFD\nand 100 more\n"},
	}
	for _, test := range tests {
		var got strings.Builder
		printPurged(&got, &parleyv1.PurgeConversationsResponse{PurgedCount: test.purged, SampleIds: test.ids}, test.dryRun)
		if diff := cmp.Diff(test.want, got.String()); diff != "" {
			t.Errorf("printPurged of %d (-want +got):\n%s", test.purged, diff)
		}
	}
}
