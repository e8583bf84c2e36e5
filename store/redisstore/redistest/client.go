package redistest

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// commandTime is the time limit of a command, with its connection.
const commandTime = 10 * time.Second

// client sends commands to one server, each on a connection of its own.
type client struct {
	addr     string
	password string
	tls      *tls.Config // nil without TLS
}

// replyError is an error that a server replies with.
type replyError string

func (e replyError) Error() string { return string(e) }

// do sends a command and returns the reply as text.
func (c client) do(args ...string) (string, error) {
	deadline := time.Now().Add(commandTime)
	conn, err := c.dial(deadline)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	replies := bufio.NewReader(conn)
	if c.password != "" {
		if _, err := exchange(conn, replies, "AUTH", c.password); err != nil {
			return "", err
		}
	}
	return exchange(conn, replies, args...)
}

func (c client) dial(deadline time.Time) (net.Conn, error) {
	d := &net.Dialer{Deadline: deadline}
	if c.tls != nil {
		return tls.DialWithDialer(d, "tcp", c.addr, c.tls)
	}
	return d.Dial("tcp", c.addr)
}

// exchange sends a command and reads its reply.
func exchange(w io.Writer, replies *bufio.Reader, args ...string) (string, error) {
	var command strings.Builder
	fmt.Fprintf(&command, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&command, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := io.WriteString(w, command.String()); err != nil {
		return "", err
	}
	return readReply(replies)
}

// readReply reads a reply of RESP version 2.
func readReply(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return "", errors.New("reply without a type")
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+', ':':
		return rest, nil
	case '-':
		return "", replyError(rest)
	case '$', '*':
	default:
		return "", fmt.Errorf("reply of unknown type: %q", line)
	}
	n, err := strconv.Atoi(rest)
	if err != nil {
		return "", fmt.Errorf("reply of unknown length: %q", line)
	}
	if n < 0 { // null
		return "", nil
	}
	if kind == '$' {
		text := make([]byte, n+len("\r\n"))
		_, err := io.ReadFull(r, text)
		return string(text[:n]), err
	}
	elements := make([]string, n)
	for i := range elements {
		if elements[i], err = readReply(r); err != nil {
			return "", err
		}
	}
	return strings.Join(elements, "\n"), nil
}
