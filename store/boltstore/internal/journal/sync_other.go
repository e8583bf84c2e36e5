//go:build !linux

package journal

import "os"

// dataSync syncs a file.
func dataSync(f *os.File) error { return f.Sync() }
