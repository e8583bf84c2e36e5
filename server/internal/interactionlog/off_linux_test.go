package interactionlog

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
)

// TestTurnOffFullDisk checks that TurnOff reports entries for which there is no space. The next process
// with a log writes a loss entry, even if the disk is full at its start or its end.
func TestTurnOffFullDisk(t *testing.T) {
	for _, name := range []string{"space again", "full at the start", "full to the end"} {
		t.Run(name, func(t *testing.T) {
			dir := mountSmall(t)
			s := newTestService(t, filepath.Join(dir, "interactions"))
			s.add("acme", "c1", "one")
			path := s.log.path(dayfile.DayOf(noon).FileName())
			info, err := os.Stat(path)
			must(t, err)
			f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			must(t, err)
			// Leave no space in the last page.
			_, err = f.WriteString(strings.Repeat(" ", os.Getpagesize()-int(info.Size())-1) + "\n")
			must(t, err, f.Close())
			s.detached = true
			s.add("acme", "c1", "two")
			s.log.crash()
			empty := fillDisk(t, dir)
			err = s.turnOff(t.Context(), s.Store)
			if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "1 entries") {
				t.Errorf("TurnOff = %v, want %v for 1 entry", err, syscall.ENOSPC)
			}
			must(t, s.turnOff(t.Context(), s.Store))
			switch name {
			case "full at the start":
				s.turnOn()
				empty()
			case "full to the end":
				s.turnOn()
				must(t, s.log.Close())
				err = s.turnOff(t.Context(), s.Store)
				if !errors.Is(err, errLostBefore) || !strings.Contains(err.Error(), "1 entries") {
					t.Errorf("TurnOff = %v, want %v for 1 entry", err, errLostBefore)
				}
				s.turnOn()
				s.add("acme", "c1", "also lost")
				must(t, s.log.Close())
				err = s.turnOff(t.Context(), s.Store)
				if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "2 entries") {
					t.Errorf("TurnOff = %v, want %v for 2 entries", err, syscall.ENOSPC)
				}
				empty()
				s.turnOn()
			default:
				empty()
				s.turnOn()
			}
			s.add("acme", "c1", "three")
			want := "one ! -1 three"
			if name == "full to the end" {
				want = "one ! -2 three"
			}
			got := strings.Join(strings.Fields(strings.Join(fileContents(t, s.dir)[dayfile.DayOf(noon).FileName()], " ")), " ")
			if got != want {
				t.Errorf("file = %q, want %q", got, want)
			}
			must(t, s.log.Close())
		})
	}
}
