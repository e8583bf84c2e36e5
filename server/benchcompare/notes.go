package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// fixedNotes returns the notes that explain what each system does.
func (r *report) fixedNotes() []string {
	return []string{
		"Append adds one message, keeps the newest 20 and extends the conversation's expiry to 1 h from now, durable " +
			"before the reply. Client and server share the processors; all data is in the page cache.",
		"This service stores more of a message than its text: id, role, status, sequence, exchange and time.",
		"etcd: one value with the messages of a conversation, read and then written by a transaction that compares its " +
			"revision; without a lease the expiry is in the value, with one the append also keeps the lease alive, " +
			"concurrently. A key for each message is slower in both operations.",
		"Redis: a list; RPUSH, LTRIM and EXPIRE in one MULTI, appendfsync always.",
		"PostgreSQL and SQLite: a row for the conversation and a ring of 20 rows for its messages; PostgreSQL in one " +
			"prepared statement, synchronous_commit on; SQLite with synchronous=FULL, one goroutine commits all waiting " +
			"appends together.",
		"Empty call: a reply as large as that of a read, from a server that does nothing else; with all interceptors it is " +
			"ListAgents of parleyd.",
		"Constant answer: the reply to an append or a read, kept by a server that has no interceptors and reads no store. " +
			"The client decodes it.",
		"Every read includes the decoding of 20 messages by the caller, also that in process; an empty call has nothing to " +
			"decode.",
		"No journal: --journal-budget=0 and --cache-bytes=0, so every append is a transaction of the file, as in versions " +
			"without a journal. AppendStream: one goroutine with 64 requests under way.",
		fmt.Sprintf("The store with %s conversations was filled in %.0f s.", count(r.settings.large), r.filled.Seconds()),
	}
}

// machineMemory returns the size of the machine's memory, or "unknown size".
func machineMemory() string {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return "unknown size"
	}
	return fmt.Sprintf("%.0f GB", float64(info.Totalram)*float64(info.Unit)/1e9)
}
