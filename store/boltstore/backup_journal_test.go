package boltstore

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/parleyhq/parley/store"
)

// hookContext calls a function when its error is asked for.
type hookContext struct {
	context.Context //nolint:containedctx // It is one.

	hook func()
}

func (c hookContext) Err() error {
	c.hook()
	return c.Context.Err()
}

// TestBackupOfInstant creates conversations while a backup is made, each before a message that names it. A backup that
// has the message must have the conversation.
func TestBackupOfInstant(t *testing.T) {
	s := openJournaled(t, newPath(t), store.Options{}, 64<<20)
	appendTo(t, s, "one", "creates it")
	appendTo(t, s, "one", "waits in the journal")
	n := 0
	done := make(chan struct{})
	close(done)
	b, err := s.Backup(hookContext{t.Context(), func() {
		<-done
		done = make(chan struct{})
		n++
		go func() {
			defer close(done)
			appendTo(t, s, fmt.Sprint(n), "creates it")
			appendTo(t, s, "one", fmt.Sprint(n))
		}()
		select {
		case <-done:
		case <-time.After(100 * time.Millisecond): // It waits for the backup.
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	<-done
	path := newPath(t)
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := io.Copy(file, b); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	restored := open(t, path, store.Options{})
	wantConsistent(t, restored)
	ids := listIDs(t, restored, "acme")
	snapshot, err := restored.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: "one", Newest: -1})
	if err != nil {
		t.Fatal(err)
	}
	messages, err := snapshot.Messages.Messages()
	if err != nil || len(messages) < 2 {
		t.Fatal(messages, err)
	}
	for _, m := range messages[2:] {
		if !slices.Contains(ids, m.GetContent()) {
			t.Errorf("the backup has a message that followed conversation %q, but not the conversation", m.GetContent())
		}
	}
}
