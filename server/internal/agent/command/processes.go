package command

import (
	"os/exec"
	"sync"
)

// Processes records the programs that run for the agents of a server. [Processes.Reap] does not
// reap them: the turn that started a program waits for it. The zero value is ready for use.
type Processes struct {
	mu       sync.Mutex
	starting int           // programs whose number is not known yet
	ours     map[int]int   // how many programs of that number were started and not waited for
	changed  chan struct{} // if not nil, closed when a program was started or waited for
}

// start starts a program. If it returns no error, wait must be called. Nothing else waits for a
// program that hangs while it starts, as on a dead network disk, but Reap: until its number is
// known it cannot be told from an orphan, and orphans stay zombies.
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

// announce tells who waits for a change that there was one. The caller holds mu.
func (p *Processes) announce() {
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// unlessOurs calls f unless a process of this number may be a program that was started and not
// waited for. Then it returns a channel that is closed when that may have changed. No program
// starts before f returns.
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
