//go:build unix

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// lockForReplacement locks the file name, which is to be replaced, so that no server opens it as its store until
// the result is closed. A server that has the file open would continue with a deleted file and lose everything
// that it stores from then on.
func lockForReplacement(name string) (io.Closer, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	locked, err := lock(file)
	if err == nil && !locked {
		err = usageError(fmt.Sprintf("%q: a server has it open as its store, or another backup is replacing it; "+
			"choose another name", name))
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// lock locks file until it is closed. It returns false if another process has locked it.
func lock(file *os.File) (locked bool, err error) {
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}
