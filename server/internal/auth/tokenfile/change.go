package tokenfile

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// lockRetry is the time between two attempts to lock a file that another process changes. There is no event to
// wait for.
const lockRetry = 5 * time.Millisecond

// UnknownError means that a file has no token with an id.
type UnknownError struct{ Path, ID string }

// Error returns a text with the id and what to do.
func (e *UnknownError) Error() string {
	return fmt.Sprintf("there is no token %.80q in %s; parleyd token list lists the ids", e.ID, e.Path)
}

// Create adds a token to the file path, which is created if missing. t has the properties of the token; Create sets
// its ID and Hash. It returns the token itself, which is stored nowhere, and the entry in the file. Concurrent
// changes by other processes are not lost.
func Create(ctx context.Context, path string, t Token) (secret string, _ Token, err error) {
	err = change(ctx, path, true, func(tokens []Token) ([]Token, error) {
		hasID := func(o Token) bool { return o.ID == t.ID }
		for t.ID = newID(); slices.ContainsFunc(tokens, hasID); {
			t.ID = newID()
		}
		secret = newToken()
		t.Hash = sha256.Sum256([]byte(secret))
		t.Created = t.Created.UTC().Truncate(time.Second)
		if !t.Expires.IsZero() {
			t.Expires = t.Expires.UTC().Truncate(time.Second)
		}
		return append(tokens, t), nil
	})
	if err != nil {
		return "", Token{}, err
	}
	return secret, t, nil
}

// Revoke removes the token with an id from the file path, and returns the entry. The error is an [*UnknownError] if
// there is none.
func Revoke(ctx context.Context, path, id string) (revoked Token, err error) {
	err = change(ctx, path, false, func(tokens []Token) ([]Token, error) {
		i := slices.IndexFunc(tokens, func(t Token) bool { return t.ID == id })
		if i < 0 {
			return nil, &UnknownError{Path: path, ID: id}
		}
		revoked = tokens[i]
		return slices.Delete(tokens, i, i+1), nil
	})
	return revoked, err
}

// change replaces the file path by one with the tokens that edit returns. If create is set, it creates a missing
// file first. The new content is either durable and complete, or the file is unchanged.
func change(ctx context.Context, path string, create bool, edit func([]Token) ([]Token, error)) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // Replace the file, not the link.
	}
	locked, err := lock(ctx, path, create)
	if err != nil {
		return fmt.Errorf("token file: %w", err)
	}
	defer locked.Close() //nolint:errcheck // It was only read; closing it unlocks it.
	tokens, err := readFile(path, locked)
	if err != nil {
		return err
	}
	if tokens, err = edit(tokens); err != nil {
		return err
	}
	if err := write(path, tokens, locked, os.Rename); err != nil {
		return fmt.Errorf("token file: %w", err)
	}
	return nil
}

// lock opens and locks the file path. A process that waits for the lock finds another file at path after the lock
// was released, because each change replaces the file; it then locks that one.
func lock(ctx context.Context, path string, create bool) (*os.File, error) {
	retry := time.NewTicker(lockRetry)
	defer retry.Stop()
	for {
		file, err := os.Open(path)
		if create && errors.Is(err, fs.ErrNotExist) {
			if err = write(path, nil, nil, linkNew); err == nil || errors.Is(err, fs.ErrExist) {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		locked, err := tryLock(file)
		if locked && isAt(path, file) {
			return file, nil
		}
		_ = file.Close()
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("another process is changing %s; try again: %w", path, context.Cause(ctx))
		case <-retry.C:
		}
	}
}

// isAt reports whether path is still the name of an open file.
func isAt(path string, file *os.File) bool {
	opened, err := file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(path)
	return err == nil && os.SameFile(opened, named)
}

// linkNew gives the file from the name path, unless there is a file with that name. It removes from.
func linkNew(from, path string) error { return errors.Join(os.Link(from, path), os.Remove(from)) }

// write writes a file with the tokens, and moves it to path. The new file has the owner of the file old unless that
// is nil. All of it is durable when write returns.
func write(path string, tokens []Token, old *os.File, move func(from, to string) error) (err error) {
	data, err := format(tokens)
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	temporary, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*") // It has mode 0600.
	if errors.Is(err, fs.ErrNotExist) {
		return faultsOf("the directory %s does not exist; create it", dir)
	}
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temporary.Name())
		}
	}()
	_, writeErr := temporary.Write(data)
	if err := errors.Join(writeErr, keepOwner(temporary, old), temporary.Sync(), temporary.Close()); err != nil {
		return err
	}
	if err := move(temporary.Name(), path); err != nil {
		return err
	}
	return syncDirectory(dir)
}

func syncDirectory(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
