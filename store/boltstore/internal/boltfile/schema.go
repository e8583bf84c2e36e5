package boltfile

import (
	"encoding/binary"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

const (
	// SchemaVersion is the version of the layout in package layout. Files of schema 1 have no
	// values of format 2, see package record. The first write sets schema 2, so that versions that
	// cannot read such values refuse the file.
	SchemaVersion, oldSchemaVersion = 2, 1

	// JournaledSchemaVersion is the version while the journal of the file may have operations that the file does not
	// contain. Versions of Parley without a journal refuse such a file.
	JournaledSchemaVersion = 3

	// RecordsSchemaVersion is the version of a file with the buckets of records and chunks. Versions of Parley without
	// these refuse such a file. A conversation whose retention these versions misread makes the buckets, too.
	RecordsSchemaVersion = 4

	// JournaledRecordsSchemaVersion is the same while the journal may have operations that the file does not contain.
	JournaledRecordsSchemaVersion = 5

	// TurnsSchemaVersion is the version of a file that also has the buckets of turns. Earlier versions of Parley, which do
	// not maintain the index of turns, refuse such a file.
	TurnsSchemaVersion = 6

	// JournaledTurnsSchemaVersion is the same while the journal may have operations that the file does not contain.
	JournaledTurnsSchemaVersion = 7

	// MaxSchemaVersion is the newest version that this package reads.
	MaxSchemaVersion = JournaledTurnsSchemaVersion

	// SchemaKey is the key of the schema version in the bucket meta.
	SchemaKey = "schema"
	// JournalKey is the key of a layout.Journal in the bucket meta.
	JournalKey = "journal"
)

// MakeBuckets creates the buckets of a new store.
func MakeBuckets(tx *bolt.Tx) error {
	for _, name := range []string{
		layout.TenantsBucket, layout.ConversationsBucket, layout.IDsBucket, layout.ExpiryBucket, layout.TurnsBucket,
		layout.SessionsBucket, layout.EndsBucket,
	} {
		if _, err := tx.CreateBucket([]byte(name)); err != nil {
			return err
		}
	}
	meta, err := tx.CreateBucket([]byte(layout.MetaBucket))
	if err != nil {
		return err
	}
	return errors.Join(meta.Put([]byte(SchemaKey), EncodeSchema(SchemaVersion)), MarkClosed(tx))
}

// MakeRecordBuckets creates the buckets of records and chunks, if they do not exist. The file then has
// RecordsSchemaVersion.
func MakeRecordBuckets(tx *bolt.Tx) error {
	for _, name := range recordBuckets() {
		if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
			return err
		}
	}
	return nil
}

// MakeTurnBuckets creates the buckets of turns, of records and of chunks, if they do not exist. The caller must set the
// schema version, see SchemaOf.
func MakeTurnBuckets(tx *bolt.Tx) error {
	for _, name := range turnBuckets() {
		if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
			return err
		}
	}
	return MakeRecordBuckets(tx)
}

func turnBuckets() []string { return []string{layout.TurnIDsBucket, layout.TurnChunksBucket} }

func recordBuckets() []string {
	return []string{
		layout.RecordsBucket, layout.ScopesBucket, layout.RecordEndsBucket, layout.OrphansBucket, layout.ChunksBucket,
	}
}

// SchemaOf returns the schema version of a file. journaled is true if its journal may have operations that the file
// does not contain. records is true if the file has the buckets of records and chunks, and turns if it has those of
// turns.
func SchemaOf(journaled, records, turns bool) uint32 {
	version := uint32(SchemaVersion)
	switch {
	case turns:
		version = TurnsSchemaVersion
	case records:
		version = RecordsSchemaVersion
	}
	if journaled {
		version++
	}
	return version
}

// IsJournaled reports whether the journal of a file may have operations that the file does not contain.
func IsJournaled(tx *bolt.Tx) bool {
	version := Schema(tx)
	return version == JournaledSchemaVersion || version == JournaledRecordsSchemaVersion ||
		version == JournaledTurnsSchemaVersion
}

// EncodeSchema returns the value of a schema version.
func EncodeSchema(version uint32) []byte { return binary.BigEndian.AppendUint32(nil, version) }

// Schema returns the schema version of a file, or 0 if it has none.
func Schema(tx *bolt.Tx) uint32 {
	if meta := tx.Bucket([]byte(layout.MetaBucket)); meta != nil {
		if value := meta.Get([]byte(SchemaKey)); len(value) == 4 {
			return binary.BigEndian.Uint32(value)
		}
	}
	return 0
}

// ReadJournal returns the entry of the journal, and whether the journal may have operations that the file does not
// contain. If the file has no entry, it returns the zero value. If the entry is damaged, the error is ErrDamaged.
func ReadJournal(db *bolt.DB) (j layout.Journal, unfolded bool, err error) {
	key := []byte(JournalKey)
	err = db.View(func(tx *bolt.Tx) (err error) {
		unfolded = IsJournaled(tx)
		if meta := tx.Bucket([]byte(layout.MetaBucket)); meta != nil {
			j, err = layout.DecodeJournal(key, meta.Get(key))
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("%w: %w: %s", ErrDamaged, err, Remedy)
	}
	return j, unfolded, err
}

// CheckSchema returns an error for files of other programs and of incompatible versions of Parley.
func CheckSchema(tx *bolt.Tx) error {
	version := Schema(tx)
	switch {
	case version == 0:
		return fmt.Errorf("%w: it is a bbolt file of another program: use another file", ErrDamaged)
	case version > MaxSchemaVersion:
		return fmt.Errorf("%w: it has schema %d, this version of Parley reads at most %d: use the version that wrote it",
			ErrSchema, version, MaxSchemaVersion)
	}
	needed := []string{
		layout.TenantsBucket, layout.ConversationsBucket, layout.IDsBucket, layout.ExpiryBucket, layout.TurnsBucket,
	}
	if version >= RecordsSchemaVersion {
		needed = append(needed, recordBuckets()...)
	}
	if version >= TurnsSchemaVersion {
		needed = append(needed, turnBuckets()...)
	}
	for _, name := range needed {
		if tx.Bucket([]byte(name)) == nil {
			return fmt.Errorf("%w: bucket %q is missing: %s", ErrDamaged, name, Remedy)
		}
	}
	return nil
}
