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

const (
	// maxImportsBytes limits the records of imports and erasures in bytes, about 100 for each.
	// Imports take at most half of it, so that they never prevent an erasure.
	maxExclusionBytes = 16 << 20
	// compactEvery is the number of bytes after which the records that are no longer needed are
	// dropped.
	compactInterval = 1 << 20
	// importedAhead is how far after the server's clock an import may date a message.
	maxImportAhead = time.Minute
	// unfinishedCheckpoint is the name of the file that is written to replace the checkpoint.
	temporaryCheckpoint = temporaryPrefix + checkpointName + temporarySuffix
)

// imported is a conversation that came from elsewhere with messages that have no lines here,
// or, without UID, one whose lines were erased. Nothing in the store tells such messages from
// others, so that it is remembered behind the checkpoint, a line for each, until all that
// CatchUp looks for is later.
type exclusion struct {
	Tenant   string    `json:"tenant"`
	ID       string    `json:"conversation_id"`
	UID      string    `json:"uid,omitempty"`
	Sequence int32     `json:"sequence,omitempty"` // of the newest one
	Erased   time.Time `json:"erased_until,omitzero"`
	// Until is the latest time that such a message may have. Earlier versions did not write it.
	Until time.Time `json:"until,omitzero"`
}

// key is what tells the conversation from others.
func (i exclusion) key() exclusion {
	return exclusion{Tenant: i.Tenant, ID: i.ID, UID: i.UID}
}

// noteImport remembers a change, followed by others, if it is an import. What is begun by an
// append is followed by messages of the same version, and a fork says itself what it is: with
// more messages than it was made of, it is imported.
func (l *Log) excludeImport(c *store.Change, then []store.Change) {
	h := c.Conversation
	if h.GetLastSequence() <= h.GetForkedFrom().GetSequence() {
		return
	}
	if len(then) > 0 && then[0].Kind == parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED &&
		then[0].ConversationID == c.ConversationID && then[0].Tenant == c.Tenant && then[0].Version == c.Version {
		return
	}
	err := l.addExclusion(exclusion{
		Tenant: c.Tenant, ID: c.ConversationID, UID: c.UID, Sequence: h.GetLastSequence(), Until: c.Time.Add(maxImportAhead),
	})
	if err != nil && !l.pending.exclusionFailed {
		l.pending.exclusionFailed = true
		l.options.Log.Warn("interaction log may get entries for imported messages after a crash; further warnings are left out", "error", err)
	}
}

// remember appends a record after the checkpoint. l.mu is held.
func (l *Log) addExclusion(i exclusion) error {
	text, err := json.Marshal(i)
	if err != nil {
		return err
	}
	p, most := &l.pending, maxExclusionBytes
	if i.Erased.IsZero() {
		most /= 2
	}
	if p.exclusionBytes+len(text) > most {
		return errors.New("too much was imported and erased while the files could not be made durable")
	}
	text = append(append([]byte{'\n'}, text...), '\n') // A crash may have cut off the one before.
	p.exclusionBytes += len(text)
	if i.Until.After(p.exclusionsUntil) {
		p.exclusionsUntil = i.Until
	}
	f, _, err := openFile(l.checkpointPath(), os.O_WRONLY|os.O_APPEND)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// imports reads the records, by key.
func (l *Log) exclusions() (map[exclusion]exclusion, error) {
	f, _, err := openFile(l.checkpointPath(), os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return readExclusions(io.NewSectionReader(f, checkpointBytes, maxExclusionBytes))
}

func readExclusions(r io.Reader) (map[exclusion]exclusion, error) {
	found := map[exclusion]exclusion{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxExclusionBytes+1) // A power cut may leave zeros without a line break.
	for lines.Scan() {
		var i exclusion
		if json.Unmarshal(lines.Bytes(), &i) != nil {
			continue // A crash has cut it off.
		}
		// If a conversation was imported twice, the last sequence counts: it may be lower.
		known := found[i.key()]
		if known.Erased.After(i.Erased) {
			i.Erased = known.Erased
		}
		if known.Until.After(i.Until) {
			i.Until = known.Until
		}
		found[i.key()] = i
	}
	return found, lines.Err()
}
