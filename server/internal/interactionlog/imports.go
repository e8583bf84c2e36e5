package interactionlog

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// maxImportsBytes bounds what is remembered of imports, about 100 bytes for each.
const maxImportsBytes = 16 << 20

// imported is a conversation that came from elsewhere with messages that have no lines here,
// or, without UID, one whose lines were erased. Nothing in the store tells such messages from
// others, so that it is remembered behind the checkpoint, a line for each, until all that
// CatchUp looks for is later.
type imported struct {
	Tenant   string    `json:"tenant"`
	ID       string    `json:"conversation_id"`
	UID      string    `json:"uid,omitempty"`
	Sequence int32     `json:"sequence,omitempty"` // of the newest one
	Erased   time.Time `json:"erased_until,omitzero"`
}

// key is what tells the conversation from others.
func (i imported) key() imported {
	i.Sequence, i.Erased = 0, time.Time{}
	return i
}

// noteImport remembers a change, followed by others, if it is an import. What is begun by an
// append is followed by messages of the same version, and a fork says itself what it is: with
// more messages than it was made of, it is imported.
func (l *Log) noteImport(c *store.Change, then []store.Change) {
	h := c.Conversation
	if h.GetLastSequence() <= h.GetForkedFrom().GetSequence() {
		return
	}
	if len(then) > 0 && then[0].Kind == parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED &&
		then[0].ConversationID == c.ConversationID && then[0].Tenant == c.Tenant && then[0].Version == c.Version {
		return
	}
	// If that fails, what came from elsewhere may get lines after a crash.
	_ = l.remember(imported{Tenant: c.Tenant, ID: c.ConversationID, UID: c.UID, Sequence: h.GetLastSequence()}, c.Time)
}

// remember adds to what is remembered behind the checkpoint; it is of that time. l.mu is held.
func (l *Log) remember(i imported, at time.Time) error {
	text, err := json.Marshal(i)
	if err != nil {
		return err
	}
	p := &l.pending
	if p.importsBytes+len(text) > maxImportsBytes {
		return errors.New("too much was imported and erased while the files could not be made durable")
	}
	text = append(append([]byte{'\n'}, text...), '\n') // A crash may have cut off the one before.
	p.importsBytes += len(text)
	if at.After(p.imported) {
		p.imported = at
	}
	f, _, err := openFile(l.checkpointPath(), os.O_WRONLY|os.O_APPEND)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// foreign is what was remembered of a conversation.
type foreign struct {
	sequence int32     // of the newest message that was imported
	erased   time.Time // until when its lines were erased
}

// imports reads what was remembered.
func (l *Log) imports() (map[imported]foreign, error) {
	f, _, err := openFile(l.checkpointPath(), os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	found := map[imported]foreign{}
	lines := bufio.NewScanner(io.NewSectionReader(f, checkpointBytes, maxImportsBytes))
	lines.Buffer(nil, maxImportsBytes+1) // A power cut may leave zeros without a line break.
	for lines.Scan() {
		var i imported
		if json.Unmarshal(lines.Bytes(), &i) != nil {
			continue // A crash has cut it off.
		}
		known := found[i.key()]
		known.sequence = i.Sequence // One that is imported anew may be shorter.
		if i.Erased.After(known.erased) {
			known.erased = i.Erased
		}
		found[i.key()] = known
	}
	return found, lines.Err()
}
