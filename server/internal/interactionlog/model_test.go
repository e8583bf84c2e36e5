package interactionlog

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
)

// crashModel is a service that crashes repeatedly, with the expected state of its log.
type crashModel struct {
	*testService

	t       *rapid.T
	sent    map[string]int   // messages of each conversation
	erased  map[string]int   // how many of these were erased
	synced  map[string]int64 // size of each file when it was last made durable
	durable []byte           // the checkpoint at that time, or an earlier one
	partial int              // partial lines that crashes and edits have left
}

// TestCrashes checks that every message is in the files once and in order after any sequence of messages,
// syncs, edits, crashes, power cuts and changes of the clock. Unless the clock is set back, it also checks
// that an erased conversation stays erased.
func TestCrashes(t *testing.T) {
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		c := &crashModel{
			testService: newTestService(t, filepath.Join(t.TempDir(), fmt.Sprint(run))), t: rt,
			sent: map[string]int{}, erased: map[string]int{},
		}
		c.recordDurable()
		back := rapid.Bool().Draw(rt, "clock goes back")
		rt.Repeat(map[string]func(*rapid.T){
			"append": func(*rapid.T) { c.append(false) },
			"sync":   func(*rapid.T) { must(t, c.log.sync()); c.recordDurable() },
			"stop":   func(*rapid.T) { must(t, c.log.Close()); c.open(); must(t, c.catchUp()); c.recordDurable() },
			"crash":  func(*rapid.T) { c.crash() },
			"power":  func(*rapid.T) { c.powerCut() },
			"editor": func(*rapid.T) { c.edit() },
			"erase": func(rt *rapid.T) {
				if back || len(c.erased) > 0 {
					rt.Skip("one is erased, where the clock does not go back")
				}
				c.erase()
			},
			"clock": func(rt *rapid.T) {
				by := time.Duration(rapid.Int64Range(-int64(time.Hour), int64(7*time.Hour)).Draw(rt, "by"))
				if !back {
					by = max(0, by)
				}
				if c.now = c.now.Add(by); by < 0 {
					// The log must receive the first message that is older than the checkpoint.
					c.sent["acme new"+fmt.Sprint(len(c.sent))]++
					c.add("acme", "new"+fmt.Sprint(len(c.sent)-1), fmt.Sprint("acme new", len(c.sent)-1, " 1"))
				}
			},
			"": func(*rapid.T) { c.check() },
		})
		c.crash()
		c.check()
		must(t, c.log.Close())
	})
}

// append appends random messages. If detached, they do not reach the log.
func (c *crashModel) append(detached bool) {
	tenant := rapid.SampledFrom([]string{"acme", "default"}).Draw(c.t, "tenant")
	id := rapid.SampledFrom([]string{"a", "b"}).Draw(c.t, "id")
	var texts []string
	for range rapid.IntRange(1, 3).Draw(c.t, "messages") {
		c.sent[tenant+" "+id]++
		texts = append(texts, fmt.Sprint(tenant, " ", id, " ", c.sent[tenant+" "+id]))
	}
	c.detached = detached
	c.add(tenant, id, texts...)
	c.detached = false
}

// erase erases a random conversation.
func (c *crashModel) erase() {
	tenant := rapid.SampledFrom([]string{"acme", "default"}).Draw(c.t, "tenant")
	id := rapid.SampledFrom([]string{"a", "b"}).Draw(c.t, "id")
	key := tenant + " " + id
	n, err := c.log.Erase(context.Background(), tenant, id)
	if want := c.sent[key] - c.erased[key]; err != nil || n != int64(want) {
		c.t.Fatalf("erased %d entries of %s, %v, want %d", n, key, err, want)
	}
	c.erased[key] = c.sent[key]
	must(c.tb, c.log.sync())
	c.recordDurable()
}

// sizes returns the sizes of the day files.
func (c *crashModel) sizes() map[string]int64 {
	sizes := map[string]int64{}
	for name := range fileContents(c.tb, c.dir) {
		info, err := os.Stat(filepath.Join(c.dir, name))
		must(c.tb, err)
		sizes[name] = info.Size()
	}
	return sizes
}

// recordDurable records what a power cut leaves.
func (c *crashModel) recordDurable() {
	var err error
	c.synced = c.sizes()
	c.durable, err = os.ReadFile(c.log.writer.checkpointPath())
	must(c.tb, err)
}

// crash kills the process after some commits that do not reach the log.
func (c *crashModel) crash() {
	for range rapid.IntRange(0, 3).Draw(c.t, "detached commits") {
		c.append(true)
	}
	c.restart()
	c.recordDurable()
}

// powerCut removes random parts of the files that were not made durable.
func (c *crashModel) powerCut() {
	for range rapid.IntRange(0, 3).Draw(c.t, "detached commits") {
		c.append(true)
	}
	c.log.crash()
	sizes := c.sizes()
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		size := rapid.Int64Range(c.synced[name], sizes[name]).Draw(c.t, name)
		must(c.tb, os.Truncate(filepath.Join(c.dir, name), size))
	}
	c.partial += len(sizes)
	now, _, err := readCheckpoint(c.log.writer.checkpointPath())
	must(c.tb, err)
	old := filepath.Join(c.dir, "old")
	must(c.tb, os.WriteFile(old, c.durable, dayfile.FileMode))
	before, _, err := readCheckpoint(old)
	must(c.tb, err)
	if !before.CompleteUntil.After(now.CompleteUntil) && rapid.Bool().Draw(c.t, "old checkpoint") {
		must(c.tb, os.Rename(old, c.log.writer.checkpointPath()))
	}
	c.open()
	must(c.tb, c.catchUp())
	must(c.tb, c.log.sync())
	c.recordDurable()
}

// edit appends a partial line to a file whose last line is complete.
func (c *crashModel) edit() {
	names := slices.Sorted(maps.Keys(c.sizes()))
	if len(names) == 0 {
		return
	}
	path := filepath.Join(c.dir, rapid.SampledFrom(names).Draw(c.t, "file"))
	text, err := os.ReadFile(path)
	must(c.tb, err)
	if len(text) > 0 && !bytes.HasSuffix(text, []byte("\n")) {
		text = append(text, '\n') // as editors do
	}
	must(c.tb, os.WriteFile(path, append(text, `{"by":"hand"`...), dayfile.FileMode))
	c.partial++
}

// check compares all files with the model. While the service runs they have every message it committed.
func (c *crashModel) check() {
	found, broken := map[string]int{}, 0
	files := fileContents(c.tb, c.dir)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for _, line := range files[name] {
			if strings.HasPrefix(line, "!") {
				broken++
				continue
			}
			var tenant, id string
			var n int
			if _, err := fmt.Sscan(line, &tenant, &id, &n); err != nil {
				c.t.Fatalf("%s: line %q", name, line)
			}
			found[tenant+" "+id]++
			if want := c.erased[tenant+" "+id] + found[tenant+" "+id]; want != n {
				c.t.Fatalf("%s: message %d of %s %s, want %d: %q", name, n, tenant, id, want, files)
			}
		}
	}
	for key, n := range c.erased {
		if n > 0 {
			found[key] += n
		}
	}
	if !maps.Equal(found, c.sent) {
		c.t.Fatalf("messages in the files = %v, want %v", found, c.sent)
	}
	if broken > c.partial {
		c.t.Fatalf("%d invalid lines, want at most %d", broken, c.partial)
	}
	if c.log.Lost() != 0 {
		c.t.Fatalf("Lost() = %d, want 0", c.log.Lost())
	}
}
