package boltstore

import (
	"encoding/binary"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

const (
	// schemaVersion is the version of the layout in the package comment. Files of schema 1 have no
	// values of format 2, see package record. The first write sets schema 2, so that versions that
	// cannot read such values refuse the file.
	schemaVersion, oldSchemaVersion = 2, 1

	schemaKey = "schema"
)

func makeBuckets(tx *bolt.Tx) error {
	for _, name := range []string{tenantsBucket, conversationsBucket, idsBucket, expiryBucket, turnsBucket, sessionsBucket, endsBucket} {
		if _, err := tx.CreateBucket([]byte(name)); err != nil {
			return err
		}
	}
	meta, err := tx.CreateBucket([]byte(metaBucket))
	if err != nil {
		return err
	}
	return errors.Join(meta.Put([]byte(schemaKey), encodeSchema(schemaVersion)), markClosed(tx))
}

func encodeSchema(version uint32) []byte { return binary.BigEndian.AppendUint32(nil, version) }

// checkSchema returns an error for files of other programs and of incompatible versions of Parley.
func checkSchema(tx *bolt.Tx) error {
	var version uint32
	if meta := tx.Bucket([]byte(metaBucket)); meta != nil {
		if value := meta.Get([]byte(schemaKey)); len(value) == 4 {
			version = binary.BigEndian.Uint32(value)
		}
	}
	switch {
	case version == 0:
		return fmt.Errorf("%w: it is a bbolt file of another program: use another file", ErrDamaged)
	case version != schemaVersion && version != oldSchemaVersion:
		return fmt.Errorf("%w: it has schema %d, this version of Parley reads %d: use the version that wrote it",
			ErrSchema, version, schemaVersion)
	}
	for _, name := range []string{tenantsBucket, conversationsBucket, idsBucket, expiryBucket, turnsBucket} {
		if tx.Bucket([]byte(name)) == nil {
			return fmt.Errorf("%w: bucket %q is missing: %s", ErrDamaged, name, remedy)
		}
	}
	return nil
}
