package boltfile

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/parleyhq/parley/store"
)

// PanicError is a panic of bbolt. It wraps store.ErrCorrupt.
type PanicError struct {
	cause any
	stack []byte
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("%v: panic: %v\n%s", store.ErrCorrupt, e.cause, e.stack)
}

func (e *PanicError) Unwrap() error { return store.ErrCorrupt }

// IsRead reports whether bbolt panicked while it read a page: by a memory fault, an index out of
// range, or a page of another kind than expected.
func (e *PanicError) IsRead() bool {
	if _, ok := e.cause.(runtime.Error); ok {
		return true
	}
	text := fmt.Sprint(e.cause)
	return slices.ContainsFunc([]string{
		"invalid page type", "unexpected type/flags", "Page expected to be", "read: zero-length",
	}, func(part string) bool { return strings.Contains(text, part) })
}

// PanicGuard runs functions that read pages of bbolt. The zero value is usable.
type PanicGuard struct {
	Panicked atomic.Bool // at least one panic occurred, so the file is damaged
}

// Do calls run and turns a panic into store.ErrCorrupt. bbolt panics when it reads damaged pages or
// pages that do not exist. Only the stack shows whether the cause is a bug of this package instead.
func (g *PanicGuard) Do(run func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if cause := recover(); cause != nil {
			g.Panicked.Store(true)
			err = &PanicError{cause: cause, stack: debug.Stack()}
		}
	}()
	return run()
}

// RecoverDamage calls do and turns a panic or a memory fault of bbolt, which damaged pages cause,
// into ErrDamaged.
func RecoverDamage(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: %v: %s", ErrDamaged, cause, Remedy)
		}
	}()
	return do()
}

// IsFull reports whether a commit failed because the disk or a quota is full. When bbolt grows the
// file, its error has only the text of the cause.
func IsFull(err error) bool {
	for _, cause := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		if errors.Is(err, cause) || strings.HasSuffix(err.Error(), cause.Error()) {
			return true
		}
	}
	return false
}
