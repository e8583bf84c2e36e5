package faulttest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// killedStore is a directory of copies of a store, of which each is what a killed server has left.
type killedStore struct {
	dir     string
	clients []*client
}

// tail is the number of appends of each client before a kill. After the first one, no transaction follows.
const tail = 3

// makeKilledStores lets a server work and kills it twice. It returns the older and the newer state of its directory.
func makeKilledStores(t *testing.T) (older, newer killedStore) {
	t.Helper()
	clients, dataDir := newClients(8, 12), t.TempDir()
	var states []killedStore
	for range 2 {
		s := launch(t, dataDir, program(smallParleyd), "--interaction-log=false")
		if err := s.awaitServing(); err != nil {
			t.Fatal(err)
		}
		if err := verifyAll(t, s, clients); err != nil {
			t.Fatal(err)
		}
		for n := range 15 + tail {
			for _, c := range clients {
				next := c.next()
				if n >= 15 {
					next = &step{kind: appendStep, request: next.request, contents: []string{c.newContent()}}
				}
				if err := c.do(t.Context(), s, next); err != nil {
					t.Fatal(err)
				}
			}
		}
		s.kill()
		copied := killedStore{dir: t.TempDir()}
		for _, c := range clients {
			copied.clients = append(copied.clients, &client{id: c.id, random: rand.New(rand.NewPCG(1, 1)), state: c.state})
		}
		if err := os.CopyFS(copied.dir, os.DirFS(dataDir)); err != nil {
			t.Fatal(err)
		}
		states = append(states, copied)
	}
	return states[0], states[1]
}

// journalOf returns the directory of the journal in a data directory, and its segments, those with the oldest batches
// first.
func journalOf(t *testing.T, dataDir string) (dir string, segments []string) {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(dataDir, fileName+".journal-*"))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("journals %v, %v, want one", dirs, err)
	}
	names, err := filepath.Glob(filepath.Join(dirs[0], "*.segment"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if len(batches(t, name)) > 0 {
			segments = append(segments, name)
		}
	}
	slices.SortFunc(segments, func(a, b string) int { return bytes.Compare(firstIndex(t, a), firstIndex(t, b)) })
	return dirs[0], segments
}

// batches returns the offsets of the batches in a segment.
func batches(t *testing.T, segment string) (offsets []int) {
	t.Helper()
	content, err := os.ReadFile(segment)
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at+8 <= len(content); at += 8 {
		if bytes.HasPrefix(content[at:], []byte("plyj")) {
			offsets = append(offsets, at)
		}
	}
	return offsets
}

// firstIndex returns the encoded index of the first operation of a segment.
func firstIndex(t *testing.T, segment string) []byte {
	t.Helper()
	content, err := os.ReadFile(segment)
	if err != nil {
		t.Fatal(err)
	}
	return content[32:40]
}

// flipIn flips a bit of a random byte from one offset of a file to another.
func flipIn(t *testing.T, path string, from, to int, random *rand.Rand) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content[from+random.IntN(to-from)] ^= 1 << random.IntN(8)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// copyOver replaces a file or a directory with another one.
func copyOver(t *testing.T, from, to string) {
	t.Helper()
	info, err := os.Stat(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	if info.IsDir() {
		err = os.CopyFS(to, os.DirFS(from))
	} else {
		var content []byte
		if content, err = os.ReadFile(from); err == nil {
			err = os.WriteFile(to, content, 0o600)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// journalDamages returns the kinds of damage of a journal that must be refused. Each changes a copy of the newer
// state.
func journalDamages() map[string]func(t *testing.T, dataDir string, older killedStore, random *rand.Rand) {
	return map[string]func(t *testing.T, dataDir string, older killedStore, random *rand.Rand){
		"bad batch before a valid one": func(t *testing.T, dataDir string, _ killedStore, random *rand.Rand) {
			t.Helper()
			_, segments := journalOf(t, dataDir)
			newest := segments[len(segments)-1]
			at := batches(t, newest)
			n := random.IntN(len(at) - 1)
			flipIn(t, newest, at[n], at[n]+60, random)
		},
		"segment missing": func(t *testing.T, dataDir string, _ killedStore, _ *rand.Rand) {
			t.Helper()
			_, segments := journalOf(t, dataDir)
			if err := os.Remove(segments[len(segments)-1]); err != nil {
				t.Fatal(err)
			}
		},
		"segment of zeros": func(t *testing.T, dataDir string, _ killedStore, _ *rand.Rand) {
			t.Helper()
			_, segments := journalOf(t, dataDir)
			if err := os.WriteFile(segments[len(segments)-1], make([]byte, pageSize), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"journal missing": func(t *testing.T, dataDir string, _ killedStore, _ *rand.Rand) {
			t.Helper()
			dir, _ := journalOf(t, dataDir)
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		},
		"journal of another store": func(t *testing.T, dataDir string, _ killedStore, _ *rand.Rand) {
			t.Helper()
			other, _ := makeKilledStores(t)
			from, _ := journalOf(t, other.dir)
			to, _ := journalOf(t, dataDir)
			copyOver(t, from, to)
		},
		"older copy of the journal": func(t *testing.T, dataDir string, older killedStore, _ *rand.Rand) {
			t.Helper()
			from, _ := journalOf(t, older.dir)
			to, _ := journalOf(t, dataDir)
			copyOver(t, from, to)
		},
		"older copy of the file": func(t *testing.T, dataDir string, older killedStore, _ *rand.Rand) {
			t.Helper()
			copyOver(t, filepath.Join(older.dir, fileName), filepath.Join(dataDir, fileName))
		},
	}
}

// TestDamagedJournal checks that a server and parleyd check refuse a store whose journal is damaged, incomplete, or does
// not belong to it. With the right journal, a start has everything.
func TestDamagedJournal(t *testing.T) {
	older, newer := makeKilledStores(t)
	for name, damage := range journalDamages() {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(12, uint64(len(name))))
			for range rounds(2, 20) {
				if err := serveDamagedJournal(t, nil, newer, func(dataDir string) { damage(t, dataDir, older, random) }); err != nil {
					t.Error(err)
				}
				counts.add(t, "stores refused", 1)
			}
		})
	}
	dataDir := t.TempDir()
	copyOver(t, newer.dir, dataDir)
	s := start(t, dataDir)
	if err := verifyAll(t, s, newer.clients); err != nil {
		t.Error("without damage: ", err)
	}
	s.stop(t)
}

// serveDamagedJournal damages a copy of a store and returns an error unless parleyd check and a server refuse it.
func serveDamagedJournal(t *testing.T, wrapper []string, k killedStore, damage func(dataDir string)) error {
	t.Helper()
	dataDir := t.TempDir()
	copyOver(t, k.dir, dataDir)
	damage(dataDir)
	path := filepath.Join(dataDir, fileName)
	s := launch(t, dataDir, wrapper, "--interaction-log=false")
	defer s.kill()
	if s.awaitServing() == nil {
		return errors.New("the server serves a store with a damaged journal")
	}
	err := wantRefusedFile(t, s, path)
	if sound, checkErr := checkFile(t, path); sound || checkErr != nil {
		err = errors.Join(err, fmt.Errorf("parleyd check found no fault, %w", checkErr))
	}
	return err
}

// TestDamagedJournalUnchecked is the control: a server that takes a bad batch for the end of the journal serves the rest.
func TestDamagedJournalUnchecked(t *testing.T) {
	_, newer := makeKilledStores(t)
	found := serveDamagedJournal(t, buildSeeded(t)(bugEndUnchecked), newer, func(dataDir string) {
		_, segments := journalOf(t, dataDir)
		newest := segments[len(segments)-1]
		at := batches(t, newest)
		flipIn(t, newest, at[len(at)-3], at[len(at)-3]+60, rand.New(rand.NewPCG(13, 13)))
	})
	wantDetected(t, found)
}
