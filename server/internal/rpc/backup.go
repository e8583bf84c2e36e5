package rpc

import (
	"errors"
	"io"

	"google.golang.org/grpc"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// backupChunk is the number of bytes of a backup in a response. The last response may have fewer.
const backupChunk = 256 << 10

// errBackupUnsupported means that the server's store does not support backups.
var errBackupUnsupported = errors.New("the store does not support backups")

// backupStream is the server's end of a BackupStore call.
type backupStream = grpc.ServerStreamingServer[parleyv1.BackupStoreResponse]

// BackupStore streams a copy of the store with all tenants. The server makes the copy before it sends
// the first response. So a client that reads slowly occupies disk space, but blocks nothing else.
func (s *Server) BackupStore(_ *parleyv1.BackupStoreRequest, stream backupStream) error {
	if s.backuper == nil {
		return errBackupUnsupported
	}
	ctx, start := stream.Context(), s.now()
	backup, err := s.backuper.Backup(ctx)
	if err != nil {
		return err
	}
	copied := s.now()
	sent, err := sendBackup(backup, stream)
	log := s.log.With("bytes", backup.Size, "sent", sent,
		"copying", copied.Sub(start).String(), "sending", s.now().Sub(copied).String())
	if err != nil {
		log.InfoContext(ctx, "backup aborted")
		return err
	}
	log.InfoContext(ctx, "backup sent")
	return nil
}

// sendBackup sends a copy and closes it. It returns the number of bytes sent.
func sendBackup(backup *store.Backup, stream backupStream) (sent int64, err error) {
	defer func() {
		if closeErr := backup.Close(); err == nil { // An error of the stream has priority.
			err = closeErr
		}
	}()
	for size := backup.Size; sent < backup.Size; size = 0 {
		// Each chunk needs its own memory, because gRPC may read it after Send returns.
		chunk := make([]byte, min(backupChunk, backup.Size-sent))
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
