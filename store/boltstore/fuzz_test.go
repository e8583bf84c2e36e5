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
)

// FuzzDamagedFile changes bytes of a small file and has it served. Whatever they are, a
// conversation is served as it was or not at all. Files with sound pages are
// served in this process, which must not die of it. The others may be the end of a process,
// because bbolt runs out of stack where pages lead in a circle: they are for one that may go,
// or be told to when it takes too long.
func FuzzDamagedFile(f *testing.F) {
	source := newPath(f)
	sound, want := makeSound(f, source), served(f, source)
	examiner := &examiner{source: source}
	f.Cleanup(examiner.end)
	page := os.Getpagesize()
	for at := 0; at < len(sound); at += page {
		for _, offset := range []int{8, 10, 20, page - 1} { // Flags, count, the first element, data.
			f.Add(damageOf(at+offset, 1))
		}
	}
	f.Add(cutTo(len(sound) / 2))
	f.Add(cutTo(page + 100))
	path, used := filepath.Join(f.TempDir(), "parley.db"), 0
	f.Fuzz(func(t *testing.T, damage []byte) {
		used++
		path := fmt.Sprint(path, used)
		if err := os.WriteFile(path, damaged(sound, damage), fileMode); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(path)
		verdict := examiner.look(t, path)
		if verdict == pagesSound {
			late := time.AfterFunc(longest, func() { panic("a damaged file is not served in time") })
			defer late.Stop()
			verdict = serve(t.Context(), path, want)
		}
		if verdict != "" {
			t.Error(verdict)
		}
	})
}

const (
	// longest is how long a file with sound pages may take; only what hangs takes so long.
	longest = 30 * time.Second
	// worthwhile is how long another one is waited for.
	worthwhile = 2 * time.Second
)

// changeSize is how many bytes of the fuzzer's input are one change: where, and by what to change
// the byte there. Beyond the end, the file is cut.
const changeSize = 5

func damageOf(at int, by byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(at)), by)
}

func cutTo(length int) []byte { return damageOf(1<<31|length, 0) }

// damaged is a file with the changes that the fuzzer asks for.
func damaged(sound, damage []byte) []byte {
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

// filled is how many conversations the sound file has, c0 and so on: so many that its large
// buckets have pages of their own, and branches.
const filled = 16

// makeSound makes a file with something in every bucket, and returns its bytes.
func makeSound(tb testing.TB, path string) []byte {
	tb.Helper()
	s := open(tb, path, store.Options{Now: newClock().Now})
	hold := &store.Hold{Tenant: "acme", DeleteAfter: time.Hour}
	for i := range filled {
		a := &store.Append{Tenant: "acme", ConversationID: fmt.Sprint("c", i), Messages: text(strings.Repeat("hello ", 50+i%7*20))}
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

// served is what a file holds, which no store has open; it is left as it is.
func served(tb testing.TB, source string) map[string]*store.Snapshot {
	tb.Helper()
	file, err := os.ReadFile(source)
	path := newPath(tb)
	if err = errors.Join(err, os.WriteFile(path, file, fileMode)); err != nil {
		tb.Fatal(err)
	}
	s, want := open(tb, path, store.Options{Now: newClock().Now}), map[string]*store.Snapshot{}
	for i := range filled {
		id := fmt.Sprint("c", i)
		if want[id], err = s.Read(tb.Context(), &store.Read{Tenant: "acme", ConversationID: id, Newest: -1, Turns: true}); err != nil {
			tb.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		tb.Fatal(err)
	}
	return want
}

// pagesSound is what the examiner says of a file with sound pages.
const pagesSound = "sound"

// examinerEnv makes TestExaminer the process of an examiner, and names the sound file.
const examinerEnv = "PARLEY_BOLTSTORE_EXAMINER"

// examiner is a process that looks at files, one line of its standard input for each, and is
// started again when it has died of one.
type examiner struct {
	source  string // the sound file
	process *exec.Cmd
	files   io.WriteCloser
	out     io.Closer
	answers *bufio.Scanner
	looked  int
}

// most is how many files a process looks at: pages that make no sense may leave bbolt with
// memory that nobody gives back.
const most = 500

// look returns pagesSound, or else what is wrong with how the file was served; empty: nothing,
// or the process died of it, or took too long.
func (e *examiner) look(t *testing.T, path string) string {
	t.Helper()
	if e.process == nil {
		e.start(t)
	}
	process, out := e.process.Process, e.out
	late := time.AfterFunc(worthwhile, func() {
		_ = process.Kill()
		_ = out.Close() // It may die later than it is told to.
	})
	defer late.Stop()
	fmt.Fprintln(e.files, path)
	e.looked++
	answered := e.answers.Scan()
	if !answered || e.looked == most {
		defer e.end()
	}
	if !answered {
		return ""
	}
	return e.answers.Text()
}

func (e *examiner) start(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	e.process = exec.Command(self, "-test.run=^TestExaminer$")
	e.process.Env = append(e.process.Environ(), examinerEnv+"="+e.source)
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
	e.files, e.out, e.answers, e.looked = files, answers, bufio.NewScanner(answers), 0
}

// end ends the process, if there is one.
func (e *examiner) end() {
	if e.process == nil {
		return
	}
	_ = e.process.Process.Kill()
	_ = e.process.Wait()
	e.process = nil
}

// TestExaminer is the process of an examiner.
func TestExaminer(t *testing.T) {
	source := os.Getenv(examinerEnv)
	if source == "" {
		t.Skip("only in a process that FuzzDamagedFile starts")
	}
	debug.SetMaxStack(16 << 20) // Far more than sound pages take.
	enough := syscall.Rlimit{Cur: 64 << 20, Max: 64 << 20}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &enough); err != nil {
		t.Fatal(err)
	}
	want := served(t, source)
	for paths := bufio.NewScanner(os.Stdin); paths.Scan(); {
		if soundPages(paths.Text()) {
			fmt.Println(pagesSound)
		} else {
			fmt.Println(serve(t.Context(), paths.Text(), want))
		}
	}
}

// soundPages reports whether the pages are a tree, and all that is in them lies within them.
func soundPages(path string) bool {
	if _, err := CheckPages(path, func(string) {}); err != nil {
		return false
	}
	c := &checker{report: func(string) {}}
	return c.checkElements(path) == nil && c.Faults == 0
}

// serve opens a file and does everything with it. It returns what is wrong with the answers;
// no answer, an error, is right.
func serve(ctx context.Context, path string, want map[string]*store.Snapshot) (wrong string) {
	clock := newClock()
	s, err := Open(path, Options{Options: store.Options{Now: clock.Now, MaxConversations: filled + 1}})
	if err != nil {
		if !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "\n") {
			return fmt.Sprintf("not one line about the file: %q", err)
		}
		return ""
	}
	s.db.NoSync = true
	var all []string
	complain := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	for id, w := range want {
		got, err := s.Read(ctx, &store.Read{Tenant: "acme", ConversationID: id, Newest: -1, Turns: true})
		switch {
		case errors.Is(err, store.ErrCorrupt), errors.Is(err, store.ErrNotFound):
		case err != nil:
			complain("read %s: %v", id, err)
		case !sameSnapshot(got, w):
			complain("%s is %v with %q, was %v with %q", id, got.Conversation, got.Messages, w.Conversation, w.Messages)
		}
	}
	for _, order := range []parleyv1.ListOrder{parleyv1.ListOrder_LIST_ORDER_CREATE_TIME_DESC, parleyv1.ListOrder_LIST_ORDER_UPDATE_TIME_DESC} {
		page, err := s.List(ctx, &store.List{Tenant: "acme", PageSize: 100, Order: order})
		if err != nil {
			continue
		}
		for _, e := range page.Entries {
			c := e.GetConversation()
			if w := want[c.GetId()]; w == nil || !proto.Equal(c, w.Conversation) {
				complain("listed is %v", c)
			}
		}
	}
	_, _, _ = s.Abandoned(ctx, "")
	_, _ = s.Stats(ctx)
	for id, w := range want {
		result, err := s.Append(ctx, &store.Append{Tenant: "acme", ConversationID: id, MustExist: true, Messages: text("more")})
		if err == nil && result.Conversation.GetVersion() != w.Conversation.GetVersion()+1 {
			complain("%s was appended to at version %d", id, result.Conversation.GetVersion())
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

// sameSnapshot compares all that a snapshot is made of.
func sameSnapshot(a, b *store.Snapshot) bool {
	return proto.Equal(a.Conversation, b.Conversation) && bytes.Equal(a.Messages, b.Messages) && a.DroppedBytes == b.DroppedBytes &&
		slices.EqualFunc(a.Turns, b.Turns, func(a, b *parleyv1.Turn) bool { return proto.Equal(a, b) }) &&
		slices.EqualFunc(a.Events, b.Events, func(a, b *storev1.TurnEvents) bool { return proto.Equal(a, b) })
}

// TestServeFinds is the control of FuzzDamagedFile: files that were changed by somebody who
// knows about checksums are found out.
func TestServeFinds(t *testing.T) {
	for name, change := range map[string]func(*Store) error{
		"nothing": func(*Store) error { return nil },
		"a message more": func(s *Store) error {
			_, err := s.Append(t.Context(), &store.Append{Tenant: "acme", ConversationID: "c5", Messages: text("more")})
			return err
		},
		"a conversation more": func(s *Store) error {
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
			makeSound(t, path)
			want := served(t, path)
			s := open(t, path, store.Options{Now: newClock().Now})
			if err := errors.Join(change(s), s.Close()); err != nil {
				t.Fatal(err)
			}
			if wrong := serve(t.Context(), path, want); (wrong == "") != (name == "nothing") {
				t.Errorf("found: %q", wrong)
			}
		})
	}
}

// FuzzIDs takes keys apart that any tenants and ids make.
func FuzzIDs(f *testing.F) {
	f.Add("acme", "a", "acm", "ea")
	f.Add("", "", "\x00", "")
	f.Add(strings.Repeat("x", 200), "a", strings.Repeat("x", 128), "b")
	f.Fuzz(func(t *testing.T, tenant, id, otherTenant, otherID string) {
		key, other := idKey(tenant, id), idKey(otherTenant, otherID)
		if gotTenant, gotID, ok := cutTenant(key); !ok || gotTenant != tenant || string(gotID) != id {
			t.Errorf("%q of %q comes back as %q of %q, %v", id, tenant, gotID, gotTenant, ok)
		}
		if same := tenant == otherTenant && id == otherID; bytes.Equal(key, other) != same {
			t.Errorf("%q of %q and %q of %q have keys %x and %x", id, tenant, otherID, otherTenant, key, other)
		}
		if tenant != otherTenant && bytes.HasPrefix(key, tenantKey(otherTenant)) {
			t.Errorf("key %x of tenant %q is among those of %q", key, tenant, otherTenant)
		}
		entry := endKey(7, tenant, id)
		if e, ok := decodeDue(entry, encodeDue(entry, 7)); !ok || e.tenant != tenant || e.name != id || e.at != 7 {
			t.Errorf("the end of %q of %q comes back as %+v, %v", id, tenant, e, ok)
		}
	})
}
