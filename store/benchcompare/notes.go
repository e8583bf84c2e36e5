package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// standingNotes say what each system does, for whoever wants to judge the comparison.
func (r *report) standingNotes() []string {
	return []string{
		"Append adds one message, keeps the newest 20 and puts the end of the conversation off by 1 h, durable ahead of the reply. " +
			"Client and server share the processors; all data is in the page cache.",
		"This service keeps more of a message than its text: id, role, status, sequence, exchange and time.",
		"etcd: one value with the messages of a conversation, read and then written by a transaction that compares its revision; " +
			"without a lease the time of its end is in the value, with one the append also keeps the lease alive, at the same time. " +
			"A key for each message is slower at both operations.",
		"Redis: a list; RPUSH, LTRIM and EXPIRE in one MULTI, appendfsync always.",
		"PostgreSQL and SQLite: a row for the conversation and a ring of 20 rows for its messages; PostgreSQL in one prepared statement, " +
			"synchronous_commit on; SQLite with synchronous=FULL, one goroutine commits all that wait together.",
		"Empty call: a reply as large as that of a read, from a server that does nothing else; with all interceptors it is ListAgents of parleyd.",
		fmt.Sprintf("The store with %s conversations was filled in %.0f s.", count(r.settings.large), r.filled.Seconds()),
	}
}

// memoryOf is the machine's memory, for people.
func memoryOf() string {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return "unknown size"
	}
	return fmt.Sprintf("%.0f GB", float64(info.Totalram)*float64(info.Unit)/1e9)
}
