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
	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/store"
)

const (
	// maxExclusionBytes limits the total size of exclusions in bytes. Each has at most about 2 KiB,
	// usually 100 bytes. Imports take at most half of it, so that they never prevent an erasure.
	maxExclusionBytes = 16 << 20
	// compactInterval is the number of bytes by which the exclusions grow before they are compacted.
	compactInterval = 1 << 20
	// maxImportAhead is the maximum time after the server's clock at which an import dates a message.
	maxImportAhead = time.Minute
)

// temporaryCheckpoint is the name of the file that is written to replace the checkpoint.
func temporaryCheckpoint() string { return dayfile.TemporaryName(checkpointName) }

// exclusion names messages for which CatchUp adds no entries: those of a conversation that were
// imported, or, without a UID, those of a conversation whose entries were erased. The store does not
// distinguish these messages from others. Exclusions follow the checkpoint in its file, one a line,
// until CatchUp searches only for later messages.
type exclusion struct {
	Tenant   string    `json:"tenant"`
	ID       string    `json:"conversation_id"`
	UID      string    `json:"uid,omitempty"`
	Sequence int32     `json:"sequence,omitempty"` // of the newest imported message
	Erased   time.Time `json:"erased_until,omitzero"`
	// Until is the latest time of the excluded messages. Earlier versions did not write it.
	Until time.Time `json:"until,omitzero"`
}

// key returns an exclusion with only the fields that identify the conversation.
func (e exclusion) key() exclusion {
	return exclusion{Tenant: e.Tenant, ID: e.ID, UID: e.UID}
}

// excludeImport adds an exclusion for a CREATED change if it is an import. following has the changes
// that follow it in the batch. If an append has created the conversation, messages of the same version
// follow. A conversation with more messages than its fork has copied was imported.
func (w *writer) excludeImport(c *store.Change, following []store.Change) {
	header := c.Conversation
	if header.GetLastSequence() <= header.GetForkedFrom().GetSequence() {
		return
	}
	if len(following) > 0 {
		next := &following[0]
		if next.Kind == parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED &&
			next.ConversationID == c.ConversationID && next.Tenant == c.Tenant && next.Version == c.Version {
			return
		}
	}
	err := w.addExclusion(exclusion{
		Tenant: c.Tenant, ID: c.ConversationID, UID: c.UID,
		Sequence: header.GetLastSequence(), Until: c.Time.Add(maxImportAhead),
	})
	if err != nil && !w.pending.exclusionFailed {
		w.pending.exclusionFailed = true
		w.options.Log.Warn("interaction log may get entries for imported messages after a crash; reported once", "error", err)
	}
}

// addExclusion appends an exclusion to the file of the checkpoint. The caller holds w.mu.
func (w *writer) addExclusion(e exclusion) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	p, most := &w.pending, maxExclusionBytes
	if e.Erased.IsZero() {
		most /= 2
	}
	if p.exclusionBytes+len(text) > most {
		return errors.New("too many imports and erasures while the files could not be made durable")
	}
	text = append(append([]byte{'\n'}, text...), '\n') // A crash may have cut off the previous one.
	p.exclusionBytes += len(text)
	if e.Until.After(p.exclusionsUntil) {
		p.exclusionsUntil = e.Until
	}
	f, _, err := dayfile.OpenFile(w.checkpointPath(), os.O_WRONLY|os.O_APPEND)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// exclusions reads the exclusions, by key.
func (w *writer) exclusions() (map[exclusion]exclusion, error) {
	f, _, err := dayfile.OpenFile(w.checkpointPath(), os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return readExclusions(io.NewSectionReader(f, checkpointBytes, maxExclusionBytes))
}

func readExclusions(r io.Reader) (map[exclusion]exclusion, error) {
	exclusions := map[exclusion]exclusion{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxExclusionBytes+1) // A power cut may leave zeros without a line break.
	for lines.Scan() {
		var e exclusion
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue // A crash has cut it off.
		}
		// If a conversation was imported twice, the last sequence counts, even if it is lower.
		known := exclusions[e.key()]
		if known.Erased.After(e.Erased) {
			e.Erased = known.Erased
		}
		if known.Until.After(e.Until) {
			e.Until = known.Until
		}
		exclusions[e.key()] = e
	}
	return exclusions, lines.Err()
}
