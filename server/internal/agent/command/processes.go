package command

import (
	"os/exec"
	"sync"
)

// Processes are the programs that run for the agents of a server. [Processes.Reap] keeps away
// from them: a program's end is for the turn that started it. The zero value is ready for use.
type Processes struct {
	// starting is held for reading from a program's start until its number is known, so that
	// Reap cannot take it for an orphan.
	starting sync.RWMutex

	mu    sync.Mutex
	ours  map[int]int   // how many programs of that number were started and not waited for
	ended chan struct{} // closed when another one was waited for
}

// start starts a program. If it returns no error, wait must be called.
func (p *Processes) start(cmd *exec.Cmd) error {
	p.starting.RLock()
	defer p.starting.RUnlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ours == nil {
		p.ours = make(map[int]int)
	}
	p.ours[cmd.Process.Pid]++
	return nil
}

// wait waits for a program to end.
func (p *Processes) wait(cmd *exec.Cmd) error {
	err := cmd.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	// The number may belong to the next program already.
	p.ours[cmd.Process.Pid]--
	if p.ours[cmd.Process.Pid] == 0 {
		delete(p.ours, cmd.Process.Pid)
	}
	if p.ended != nil {
		close(p.ended)
		p.ended = nil
	}
	return err
}

// isOurs reports whether a program of this number was started and not waited for. If so, the
// channel is closed when that may have changed.
func (p *Processes) isOurs(pid int) (bool, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ours[pid] == 0 {
		return false, nil
	}
	if p.ended == nil {
		p.ended = make(chan struct{})
	}
	return true, p.ended
}
