package faulttest

import (
	"slices"
	"testing"

	"github.com/parleyhq/parley/server/faulttest/crashfs"
	"github.com/parleyhq/parley/server/parleydtest"
)

// Bugs of the journal that a program of buildSeeded has.
const (
	bugBatchUnsynced     = "a batch is not synced"
	bugNameUnsynced      = "the name of a new segment is not synced"
	bugReusedEarly       = "segments are used again before the fold is committed"
	bugFoldedEarly       = "a transaction says that everything is folded"
	bugAppliedIgnored    = "what a fold has applied is applied again"
	bugTornAccepted      = "a torn batch is accepted"
	bugRecoveredUnsynced = "the journal is not synced when it is opened"
	bugFileUnsynced      = "the file is not synced when it is opened"
	bugEndUnchecked      = "a bad batch before a valid one is dropped"
	bugRecordsUnread     = "a recovery drops the records of appends"
	bugMessagesUnread    = "a recovery drops the messages of appends with records of the tenant"
	bugRecordsUnfolded   = "a fold drops the records of a conversation"
	bugRevisionReused    = "a recovery does not raise the revision of a tenant"
)

// seeded returns the changes that add the bugs to a program. A process has the bug that its environment names.
func seeded() changes {
	const (
		store   = "store/boltstore/"
		journal = store + "internal/journal/"
		// What an open journal has about conversations and tenants.
		recovery = store + "internal/overlay/recovery.go"
		is       = "boltfile.Seeded(`"
	)
	return changes{
		{File: store + "internal/boltfile/seeded.go", After: `package boltfile

import "os"

func Seeded(bug string) bool { return os.Getenv("SEEDED_BUG") == bug }
`},
		{
			File: journal + "journal.go", Before: "		err = dataSync(j.active.file)\n",
			After: "		if !" + is + bugBatchUnsynced + "`) { err = dataSync(j.active.file) }\n",
		},
		{
			File: journal + "segment.go", Before: "os.Rename(unfinished, path), boltfile.SyncDir(filepath.Dir(path)))\n",
			After: "os.Rename(unfinished, path))\n" +
				"if !" + is + bugNameUnsynced + "`) { err = errors.Join(err, boltfile.SyncDir(filepath.Dir(path))) }\n",
		},
		{
			File: store + "fold.go", Before: "		keys, through = s.tally.pending.Begin(s.tally.journalEntry.Through)\n",
			After: "		keys, through = s.tally.pending.Begin(s.tally.journalEntry.Through)\n" +
				"if " + is + bugReusedEarly + "`) { s.journal.Release(through) }\n",
		},
		{
			File: store + "fold.go", Before: "	e, err := t.encode(s.tenant, s.record)\n",
			After: "	if " + is + bugAppliedIgnored + "`) { s.record.Header.Applied = 0 }\n" +
				"	e, err := t.encode(s.tenant, s.record)\n",
		},
		{
			File: store + "txn.go", Before: "		e.Folded = max(e.Folded, t.foldedThrough)\n",
			After: "		e.Folded = max(e.Folded, t.foldedThrough)\n		if " + is + bugFoldedEarly + "`) { e.Folded = e.Through }\n",
		},
		{
			File: journal + "recover.go", Before: "!= binary.BigEndian.Uint32(s.bytes[4:]) {",
			After: "!= binary.BigEndian.Uint32(s.bytes[4:]) && !" + is + bugTornAccepted + "`) {",
		},
		{
			File: journal + "recover.go", Before: "	return j.syncRecovered()\n",
			After: "	if " + is + bugRecoveredUnsynced + "`) { return nil }\n	return j.syncRecovered()\n",
		},
		{
			File: journal + "recover.go", Before: "} else if found {",
			After: "} else if found && !" + is + bugEndUnchecked + "`) {",
		},
		{
			File: recovery, Before: "		ofThis := next\n",
			After: "		ofThis := next\n		if " + is + bugRecordsUnread + "`) { ofConversation = nil }\n",
		},
		{
			File: recovery, Before: "		c.operations = append(c.operations, ofThis)\n",
			After: "		if len(ofTenant) == 0 || !" + is + bugMessagesUnread + "`) {\n" +
				"			c.operations = append(c.operations, ofThis)\n		}\n",
		},
		{
			File: recovery, Before: "		p.Entry.Tenant.Revision = max(p.Entry.Tenant.Revision, o.revision)\n",
			After: "		if !" + is + bugRevisionReused + "`) {\n" +
				"			p.Entry.Tenant.Revision = max(p.Entry.Tenant.Revision, o.revision)\n		}\n",
		},
		{
			File: recovery, Before: "\"github.com/parleyhq/parley/store/boltstore/internal/journal\"\n",
			After: "\"github.com/parleyhq/parley/store/boltstore/internal/boltfile\"\n" +
				"\"github.com/parleyhq/parley/store/boltstore/internal/journal\"\n",
		},
		{
			File: store + "fold.go", Before: "	t.putRecords(s.scope(), s.values)\n",
			After: "	if !" + is + bugRecordsUnfolded + "`) { t.putRecords(s.scope(), s.values) }\n",
		},
		{
			File: store + "boltstore.go", Before: "		if err := s.db.Sync(); err != nil {",
			After: "		if " + is + bugFileUnsynced + "`) { } else if err := s.db.Sync(); err != nil {",
		},
	}
}

// buildSeeded builds a program with bugs and small parts. It returns the wrapper for the program with one of the bugs.
func buildSeeded(t *testing.T) func(bug string) (wrapper []string) {
	t.Helper()
	path := t.TempDir() + "/parleyd"
	if err := parleydtest.BuildChanged(t.Context(), path, slices.Concat(smallParts(), seeded())...); err != nil {
		t.Fatal(err)
	}
	return func(bug string) []string {
		return []string{"sh", "-c", `bug=$1; shift 2; exec env "SEEDED_BUG=$bug" "$0" "$@"`, path, bug}
	}
}

// TestCrashSeeded is the control: crashes of programs with a bug lose data, and the checks detect it.
func TestCrashSeeded(t *testing.T) {
	with := buildSeeded(t)
	for _, bug := range []string{
		bugBatchUnsynced, bugNameUnsynced, bugReusedEarly, bugFoldedEarly, bugAppliedIgnored,
		bugRecordsUnfolded,
	} {
		t.Run(bug, func(t *testing.T) {
			var err error
			for attempt := 0; attempt < 3 && err == nil; attempt++ { // A busy machine may write in another order.
				r := newRecording(t, with(bug), newClients(8, 4), crashfs.Mount)
				if err = r.run(t, false, life{smallJournal, 150}); err == nil {
					err = r.checkEverywhere(t)
				}
			}
			wantDetected(t, err)
		})
	}
	for _, bug := range []string{bugRecordsUnread, bugMessagesUnread, bugRevisionReused} {
		t.Run(bug, func(t *testing.T) {
			var err error
			for attempt := 0; attempt < 4 && err == nil; attempt++ { // A fold may have emptied the journal before each kill.
				r := newRecording(t, with(bug), newClients(8, 4), crashfs.Mount)
				err = r.run(t, false, slices.Repeat([]life{{smallJournal, 60}}, 12)...)
			}
			wantDetected(t, err)
		})
	}
	for bug, check := range map[string]func(*testing.T, *recording, *crashfs.Crash, []string) error{
		bugTornAccepted: func(t *testing.T, r *recording, c *crashfs.Crash, wrapper []string) error {
			t.Helper()
			next := r.afterPowerCut(t, c, crashfs.Torn)
			next.wrapper = wrapper
			return next.run(t, false, life{smallJournal, 0})
		},
		bugRecoveredUnsynced: recoverAfterKill,
		bugFileUnsynced:      recoverAfterKill,
	} {
		t.Run(bug, func(t *testing.T) {
			var err error
			for n := 0; n < 5 && err == nil; n++ { // The batches of a recording may all be too small to be torn.
				r := record(t, program(smallParleyd), false, life{smallJournal, 80})
				for c := range r.sampleOf(20, func(c *crashfs.Crash) (rare bool, weight int) {
					if c.Below() == (bug != bugFileUnsynced) && c.Unsynced() == 1 {
						weight = c.Sectors()
					}
					return false, weight
				}) {
					if err = check(t, r, c, with(bug)); err != nil {
						break
					}
				}
			}
			wantDetected(t, err)
		})
	}
}

// recoverAfterKill recovers with another program after the server was killed where it might have crashed.
func recoverAfterKill(t *testing.T, r *recording, c *crashfs.Crash, wrapper []string) error {
	t.Helper()
	next := r.afterKill(t, c)
	next.wrapper = wrapper
	return next.recover(t)
}

// wantDetected checks that a control was detected.
func wantDetected(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		t.Error("the bug was not detected; the test of crashes proves nothing")
		return
	}
	t.Logf("detected as expected: %.300v", err)
	counts.add(t, "control: bugs detected", 1)
}
