//go:build !unix

package secretfile

import "io/fs"

const (
	// hasModes is false: access control lists tell who can access a file, and the mode is made up.
	hasModes = false
	// notBlocking has no effect on this system.
	notBlocking = 0
)

// isOfRoot returns false.
func isOfRoot(fs.FileInfo) bool { return false }
