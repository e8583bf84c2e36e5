package journal

import (
	"os"
	"syscall"
)

// dataSync syncs the data of a file, and of its metadata only what is needed to read the data.
func dataSync(f *os.File) error { return syscall.Fdatasync(int(f.Fd())) }
