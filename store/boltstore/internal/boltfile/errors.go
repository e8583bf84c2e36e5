package boltfile

import "errors"

// Errors that functions of this package return in addition to those of the file system. Each is wrapped in one line
// that names the file, the cause, and what to do.
var (
	// ErrInUse: another process has the file open.
	ErrInUse = errors.New("file is in use")
	// ErrDamaged: this package did not write the file, or the file is no longer complete.
	ErrDamaged = errors.New("file is damaged")
	// ErrSchema: a version of Parley with another layout wrote the file.
	ErrSchema = errors.New("file has another layout")
	// ErrOwner: the file belongs to another user than the process.
	ErrOwner = errors.New("file is of another user")
)
