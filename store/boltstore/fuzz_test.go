package boltstore

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
)

// FuzzDamagedFile changes bytes of a small file and calls all methods of a store with it. Each
// conversation must have its original content or be refused. A file with sound pages is opened in
// this process and must not end it. Other files may end a process, because bbolt runs out of stack
// if pages form a cycle. They are opened in another process, which may end or be killed after a
// timeout.
func FuzzDamagedFile(f *testing.F) {
	source := newPath(f)
	sound, want := writeSoundFile(f, source), readSnapshots(f, source)
	other := &exerciser{source: source}
	f.Cleanup(other.end)
	page := os.Getpagesize()
	for at := 0; at < len(sound); at += page {
		for _, offset := range []int{8, 10, 20, page - 1} { // Flags, count, first element, data.
			f.Add(encodeChange(at+offset, 1))
		}
	}
	f.Add(encodeCut(len(sound) / 2))
	f.Add(encodeCut(page + 100))
	path, used := filepath.Join(f.TempDir(), "parley.db"), 0
	f.Fuzz(func(t *testing.T, damage []byte) {
		used++
		path := fmt.Sprint(path, used)
		if err := os.WriteFile(path, applyChanges(sound, damage), boltfile.FileMode); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(path)
		verdict := other.exercise(t, path)
		if verdict == pagesSound {
			late := time.AfterFunc(hangTimeout, func() { panic("calls with a damaged file do not return in time") })
			defer late.Stop()
			verdict = exerciseFile(t.Context(), path, want)
		}
		if verdict != "" {
			t.Error(verdict)
		}
	})
}

const (
	// hangTimeout is the limit for a file with sound pages. Only a hang reaches it.
	hangTimeout = 30 * time.Second
	// processTimeout is the limit for a file with damaged pages.
	processTimeout = 2 * time.Second
)

// changeSize is the size of one change in the fuzzer's input, in bytes: an offset and a value that
// is XORed with the byte there. If the highest bit of the offset is set, the file is truncated
// there.
const changeSize = 5

func encodeChange(at int, by byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(at)), by)
}

func encodeCut(length int) []byte { return encodeChange(1<<31|length, 0) }

// applyChanges returns the sound file with the changes in the fuzzer's input.
func applyChanges(sound, damage []byte) []byte {
	file := bytes.Clone(sound)
	for ; len(damage) >= changeSize; damage = damage[changeSize:] {
		at, by := binary.BigEndian.Uint32(damage), damage[4]
		if place := int(at&^(1<<31)) % len(sound); at>>31 == 1 {
			file = file[:min(place, len(file))]
		} else if place < len(file) {
			file[place] ^= by
		}
	}
	return file
}

// soundConversations is the number of conversations c0, c1 and so on in the sound file. With so
// many, its large buckets have pages of their own and branch pages.
const soundConversations = 16

// writeSoundFile creates a file with entries in every bucket and returns its bytes.
func writeSoundFile(tb testing.TB, path string) []byte {
	tb.Helper()
	s := open(tb, path, store.Options{Now: newClock().Now})
	hold := &store.Hold{Tenant: "acme", DeleteAfter: time.Hour}
	for i := range soundConversations {
		a := &store.Append{
			Tenant: "acme", ConversationID: fmt.Sprint("c", i), Messages: text(strings.Repeat("hello ", 50+i%7*20)),
		}
		if i%4 == 0 {
			a.Begin, a.Events = &parleyv1.Turn{Id: "turn"}, &storev1.TurnEvents{Started: 1}
		}
		if i%3 == 0 {
			hold.ConversationIDs = append(hold.ConversationIDs, a.ConversationID)
		}
		if _, err := s.Append(tb.Context(), a); err != nil {
			tb.Fatal(err)
		}
	}
	if err := errors.Join(s.Hold(tb.Context(), hold), s.Release(tb.Context(), hold), s.Close()); err != nil {
		tb.Fatal(err)
	}
	if _, err := Compact(path, func(string) error { return nil }); err != nil {
		tb.Fatal(err)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	return file
}

// readSnapshots returns the conversations in a file. It reads a copy, so the file does not change.
func readSnapshots(tb testing.TB, source string) map[string]*store.Snapshot {
	tb.Helper()
	file, err := os.ReadFile(source)
	path := newPath(tb)
	if err = errors.Join(err, os.WriteFile(path, file, boltfile.FileMode)); err != nil {
		tb.Fatal(err)
	}
	s, want := open(tb, path, store.Options{Now: newClock().Now}), map[string]*store.Snapshot{}
	for i := range soundConversations {
		id := fmt.Sprint("c", i)
		if want[id], err = s.Read(tb.Context(), &store.Read{
			Tenant: "acme", ConversationID: id, Newest: -1, Turns: true,
		}); err != nil {
			tb.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		tb.Fatal(err)
	}
	return want
}

// pagesSound is the answer of an exerciser for a file with sound pages.
const pagesSound = "sound"

// exerciserEnv makes TestExerciseProcess the process of an exerciser, and names the sound file.
const exerciserEnv = "PARLEY_BOLTSTORE_EXERCISER"

// exerciser is a process that opens files, one for each line of its standard input. It is started
// again after a file has ended it.
type exerciser struct {
	source    string // the sound file
	process   *exec.Cmd
	files     io.WriteCloser
	out       io.Closer
	answers   *bufio.Scanner
	exercised int
}

// maxFilesPerProcess is the number of files after which the process is replaced: with damaged
// pages, bbolt may leak memory.
const maxFilesPerProcess = 500

// exercise returns pagesSound, or a description of wrong results. It returns "" if there were none,
// or if the process ended or took too long.
func (e *exerciser) exercise(t *testing.T, path string) string {
	t.Helper()
	if e.process == nil {
		e.start(t)
	}
	process, out := e.process.Process, e.out
	late := time.AfterFunc(processTimeout, func() {
		_ = process.Kill()
		_ = out.Close() // The process may end some time after the kill.
	})
	defer late.Stop()
	fmt.Fprintln(e.files, path)
	e.exercised++
	answered := e.answers.Scan()
	if !answered || e.exercised == maxFilesPerProcess {
		defer e.end()
	}
	if !answered {
		return ""
	}
	return e.answers.Text()
}

func (e *exerciser) start(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	e.process = exec.Command(self, "-test.run=^TestExerciseProcess$")
	e.process.Env = append(e.process.Environ(), exerciserEnv+"="+e.source)
	files, err := e.process.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	answers, err := e.process.StdoutPipe()
	if err == nil {
		err = e.process.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	e.files, e.out, e.answers, e.exercised = files, answers, bufio.NewScanner(answers), 0
}

// end ends the process, if it runs.
func (e *exerciser) end() {
	if e.process == nil {
		return
	}
	_ = e.process.Process.Kill()
	_ = e.process.Wait()
	e.process = nil
}

// TestExerciseProcess is the process of an exerciser.
func TestExerciseProcess(t *testing.T) {
	source := os.Getenv(exerciserEnv)
	if source == "" {
		t.Skip("only in a process that FuzzDamagedFile starts")
	}
	debug.SetMaxStack(16 << 20) // Far more than sound pages need.
	enough := syscall.Rlimit{Cur: 64 << 20, Max: 64 << 20}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &enough); err != nil {
		t.Fatal(err)
	}
	want := readSnapshots(t, source)
	for paths := bufio.NewScanner(os.Stdin); paths.Scan(); {
		if soundPages(paths.Text()) {
			fmt.Println(pagesSound)
		} else {
			fmt.Println(exerciseFile(t.Context(), paths.Text(), want))
		}
	}
}

// soundPages reports whether the pages form a tree and all their elements lie within them.
func soundPages(path string) bool {
	_, err := CheckPages(path, func(string) {})
	return err == nil
}

// exerciseFile opens a file and calls all methods of the store. It returns a description of wrong
// results. An error is not a wrong result.
func exerciseFile(ctx context.Context, path string, want map[string]*store.Snapshot) (wrong string) {
	clock := newClock()
	s, err := Open(path, Options{Options: store.Options{Now: clock.Now, MaxConversations: soundConversations + 1}})
	if err != nil {
		if !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "\n") {
			return fmt.Sprintf("Open = %q, want one line with the file", err)
		}
		return ""
	}
	s.db.NoSync = true
	var all []string
	addFault := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	for id, w := range want {
		got, err := s.Read(ctx, &store.Read{Tenant: "acme", ConversationID: id, Newest: -1, Turns: true})
		switch {
		case errors.Is(err, store.ErrCorrupt), errors.Is(err, store.ErrNotFound):
		case err != nil:
			addFault("read %s: %v", id, err)
		case !sameSnapshot(got, w):
			addFault("read %s = %v with %q, want %v with %q", id, got.Conversation, got.Messages, w.Conversation, w.Messages)
		}
	}
	for _, order := range []parleyv1.ListOrder{
		parleyv1.ListOrder_LIST_ORDER_CREATE_TIME_DESC, parleyv1.ListOrder_LIST_ORDER_UPDATE_TIME_DESC,
	} {
		page, err := s.List(ctx, &store.List{Tenant: "acme", PageSize: 100, Order: order})
		if err != nil {
			continue
		}
		for _, e := range page.Entries {
			c := e.GetConversation()
			if w := want[c.GetId()]; w == nil || !proto.Equal(c, w.Conversation) {
				addFault("list has %v", c)
			}
		}
	}
	_, _, _ = s.Abandoned(ctx, "")
	_, _ = s.Stats(ctx)
	for id, w := range want {
		result, err := s.Append(ctx, &store.Append{
			Tenant: "acme", ConversationID: id, MustExist: true, Messages: text("more"),
		})
		if err == nil && result.Conversation.GetVersion() != w.Conversation.GetVersion()+1 {
			addFault("%s was appended to at version %d", id, result.Conversation.GetVersion())
		}
	}
	clock.advance(90 * time.Minute)
	_, _ = s.Sweep(ctx, 10)
	_, _ = s.Purge(ctx, &store.Purge{Tenant: "acme", InactiveFor: time.Hour})
	for i := range 3 {
		_, _ = s.Append(ctx, &store.Append{Tenant: "acme", ConversationID: fmt.Sprint("new", i), Messages: text("new")})
	}
	for id := range want {
		_ = s.Delete(ctx, &store.Delete{Tenant: "acme", ConversationID: id})
	}
	_ = s.Close()
	return strings.Join(all, "; ")
}

// sameSnapshot compares all fields of two snapshots.
func sameSnapshot(a, b *store.Snapshot) bool {
	return proto.Equal(a.Conversation, b.Conversation) && bytes.Equal(a.Messages, b.Messages) &&
		a.DroppedBytes == b.DroppedBytes &&
		slices.EqualFunc(a.Turns, b.Turns, func(a, b *parleyv1.Turn) bool { return proto.Equal(a, b) }) &&
		slices.EqualFunc(a.Events, b.Events, func(a, b *storev1.TurnEvents) bool { return proto.Equal(a, b) })
}

// TestExerciseFinds checks that exerciseFile, and so FuzzDamagedFile, finds changes with correct
// checksums.
func TestExerciseFinds(t *testing.T) {
	for name, change := range map[string]func(*Store) error{
		"nothing": func(*Store) error { return nil },
		"another message": func(s *Store) error {
			_, err := s.Append(t.Context(), &store.Append{Tenant: "acme", ConversationID: "c5", Messages: text("more")})
			return err
		},
		"another conversation": func(s *Store) error {
			_, err := s.Create(t.Context(), &store.Create{Tenant: "acme", Conversation: &parleyv1.Conversation{Id: "another"}})
			return err
		},
		"another title": func(s *Store) error {
			_, err := s.Update(t.Context(), &store.Update{
				Tenant: "acme", ConversationID: "c7", Fields: []string{"title"}, Values: &parleyv1.Conversation{Title: "title"},
			})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			writeSoundFile(t, path)
			want := readSnapshots(t, path)
			s := open(t, path, store.Options{Now: newClock().Now})
			if err := errors.Join(change(s), s.Close()); err != nil {
				t.Fatal(err)
			}
			if wrong := exerciseFile(t.Context(), path, want); (wrong == "") != (name == "nothing") {
				t.Errorf("exerciseFile = %q", wrong)
			}
		})
	}
}
