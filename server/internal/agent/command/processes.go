package command

import (
	"os/exec"
	"sync"
)

// Processes records the programs that run for the agents of a server. [Processes.Reap] does not
// reap them: the turn that started a program waits for it. The zero value is ready for use.
type Processes struct {
	mu       sync.Mutex
	starting int           // Number of programs whose process id is not known yet.
	ours     map[int]int   // Number of programs by process id that were started and not waited for.
	changed  chan struct{} // If not nil, closed when a program is started or waited for.
}

// start starts a program. If it returns no error, wait must be called. While a program hangs during
// its start, for example on an unreachable network disk, only Reap waits for it. Until its process
// id is known, it cannot be distinguished from an orphan, so orphans stay zombies.
func (p *Processes) start(cmd *exec.Cmd) error {
	p.mu.Lock()
	p.starting++
	p.mu.Unlock()
	err := cmd.Start()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.starting--
	if err == nil {
		if p.ours == nil {
			p.ours = make(map[int]int)
		}
		p.ours[cmd.Process.Pid]++
	}
	p.announce()
	return err
}

// wait waits for a program to end and removes it from the record.
func (p *Processes) wait(cmd *exec.Cmd) error {
	err := cmd.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	// The process id may already belong to the next program.
	p.ours[cmd.Process.Pid]--
	if p.ours[cmd.Process.Pid] == 0 {
		delete(p.ours, cmd.Process.Pid)
	}
	p.announce()
	return err
}

// announce notifies waiters of a change. The caller must hold mu.
func (p *Processes) announce() {
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// unlessOurs calls f unless the process id may belong to a program that was started and not waited
// for. In that case it returns a channel that is closed when that may have changed. No program
// starts while f runs.
func (p *Processes) unlessOurs(pid int, f func()) (changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.starting == 0 && p.ours[pid] == 0 {
		f()
		return nil
	}
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed
}
