//go:build unix

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// lockReplaced keeps the file that is to be replaced from being opened as a store, until it is
// closed. A server that serves it would go on in a file without a name, and all that it keeps from
// then on would go with it.
func lockReplaced(name string) (io.Closer, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = usageError(fmt.Sprintf("%q: a server has it open as its store, or another backup replaces it: choose another name", name))
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
