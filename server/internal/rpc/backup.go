package rpc

import (
	"errors"
	"io"

	"google.golang.org/grpc"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// backupChunk is how many bytes of a backup a response has.
const backupChunk = 256 << 10

// errBackupUnsupported says that the store of this server cannot be copied.
var errBackupUnsupported = errors.New("the store has no backup")

// BackupStore streams a copy of the store, of all tenants. The copy is made before the first
// response, so that a client that reads slowly, which this may take, keeps the disk but
// nothing else.
func (s *Server) BackupStore(_ *parleyv1.BackupStoreRequest, stream grpc.ServerStreamingServer[parleyv1.BackupStoreResponse]) (err error) {
	if s.backuper == nil {
		return errBackupUnsupported
	}
	ctx, start := stream.Context(), s.now()
	backup, err := s.backuper.Backup(ctx)
	if err != nil {
		return err
	}
	made := s.now()
	sent, err := sendBackup(backup, stream)
	if closeErr := backup.Close(); err == nil { // An error of gRPC's is to stay one.
		err = closeErr
	}
	log := s.log.With("bytes", backup.Size, "sent", sent, "copying", made.Sub(start).String(), "sending", s.now().Sub(made).String())
	if err != nil {
		log.InfoContext(ctx, "backup broken off")
		return err
	}
	log.InfoContext(ctx, "backed up")
	return nil
}

// sendBackup sends a copy and returns how many of its bytes.
func sendBackup(backup *store.Backup, stream grpc.ServerStreamingServer[parleyv1.BackupStoreResponse]) (sent int64, err error) {
	for size := backup.Size; sent < backup.Size; size = 0 {
		chunk := make([]byte, min(backupChunk, backup.Size-sent)) // A new one: gRPC may look at it later.
		if _, err := io.ReadFull(backup, chunk); err != nil {
			return sent, err
		}
		if err := stream.Send(&parleyv1.BackupStoreResponse{Chunk: chunk, SizeBytes: size}); err != nil {
			return sent, err
		}
		sent += int64(len(chunk))
	}
	return sent, nil
}
