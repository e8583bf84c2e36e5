package redisstore

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// proxy passes connections on to an engine. It can lose requests and replies: it counts commands, so that a test does
// not depend on time.
type proxy struct {
	addr     string
	listener net.Listener
	engine   string

	mu    sync.Mutex // guards what follows
	fault *fault
	sent  map[string]int // bytes of requests by the first word
	conns map[net.Conn]bool
}

// fault is what a proxy does to commands. Each of them ends the connection of the command.
type fault struct {
	matches   func(args []string) bool
	skip      int    // commands that match and are left alone first
	times     int    // commands that it concerns then
	unsent    bool   // whether the request is lost, too
	lost      int    // commands that it concerned
	afterward func() // called when the engine has replied, before the connection ends; may be nil
	sentNone  func() // called in its place if the request is lost; may be nil
}

// newProxy starts a proxy, which ends with the test.
func newProxy(t *testing.T, engine string) *proxy {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{
		addr: l.Addr().String(), listener: l, engine: engine, sent: map[string]int{}, conns: map[net.Conn]bool{},
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.cut()
		wg.Wait()
	})
	return p
}

// isWrite reports whether a command calls a script with keys of tenant "acme".
func isWrite(args []string) bool {
	return strings.HasPrefix(args[0], "EVAL") && len(args) > 3 && strings.HasSuffix(args[3], "t:4:acme:")
}

// set makes the proxy lose what f says, in place of an earlier fault.
func (p *proxy) set(f *fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
}

// lost returns the number of commands that the fault concerned.
func (p *proxy) lost() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fault.lost
}

// sentBytes returns the bytes of the requests so far that begin with one of these words.
func (p *proxy) sentBytes(words ...string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, word := range words {
		n += p.sent[word]
	}
	return n
}

// cut ends all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	engine, err := net.Dial("tcp", p.engine)
	if err != nil {
		return
	}
	defer engine.Close()
	p.mu.Lock()
	p.conns[client] = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.conns, client)
		p.mu.Unlock()
	}()
	// What is to become of the replies, in the order of the requests.
	fates := make(chan *fault, 1<<16)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer client.Close()
		p.replies(engine, client, fates)
	}()
	p.requests(client, engine, fates)
	engine.Close()
	<-done
}

// requests passes on requests until one is lost.
func (p *proxy) requests(client io.Reader, engine io.Writer, fates chan<- *fault) {
	from := bufio.NewReader(client)
	for {
		raw, args, err := readMessage(from)
		if err != nil || len(args) == 0 {
			return
		}
		fate := p.fate(len(raw), args)
		if fate != nil && fate.unsent {
			if fate.sentNone != nil {
				fate.sentNone()
			}
			return
		}
		if !strings.EqualFold(args[0], "SSUBSCRIBE") { // It is answered by a push.
			fates <- fate
		}
		if _, err := engine.Write(raw); err != nil {
			return
		}
		if fate != nil { // Nothing after it reaches the engine. The end of the reply ends the connection.
			_, _ = io.Copy(io.Discard, from)
			return
		}
	}
}

// fate decides on a request of n bytes.
func (p *proxy) fate(n int, args []string) *fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent[strings.ToUpper(args[0])] += n
	f := p.fault
	if f == nil || f.times == 0 || !f.matches(args) {
		return nil
	}
	if f.skip > 0 {
		f.skip--
		return nil
	}
	f.times--
	f.lost++
	return f
}

// replies passes on replies until one is lost.
func (p *proxy) replies(engine io.Reader, client io.Writer, fates <-chan *fault) {
	from := bufio.NewReader(engine)
	for {
		raw, _, err := readMessage(from)
		if err != nil {
			return
		}
		if raw[0] != '>' { // Pushes answer no request.
			if fate := <-fates; fate != nil {
				if fate.afterward != nil {
					fate.afterward()
				}
				return
			}
		}
		if _, err := client.Write(raw); err != nil {
			return
		}
	}
}

// readMessage reads a message of RESP version 2 or 3, and returns its bytes and, if it is an array of texts, these.
func readMessage(r *bufio.Reader) (raw []byte, texts []string, err error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, nil, err
	}
	raw = line
	number := func() int {
		n, _ := strconv.Atoi(strings.TrimSpace(string(line[1:])))
		return n
	}
	switch line[0] {
	case '$', '=', '!':
		if n := number(); n >= 0 {
			text := make([]byte, n+2)
			if _, err := io.ReadFull(r, text); err != nil {
				return nil, nil, err
			}
			return append(raw, text...), []string{string(text[:n])}, nil
		}
	case '*', '~', '>', '%', '|':
		n := number()
		if line[0] == '%' || line[0] == '|' {
			n *= 2
		}
		for range n {
			part, text, err := readMessage(r)
			if err != nil {
				return nil, nil, err
			}
			raw, texts = append(raw, part...), append(texts, text...)
		}
	case '+', '-', ':', '_', ',', '#', '(':
	default:
		return nil, nil, fmt.Errorf("unknown type of message: %q", line)
	}
	return raw, texts, nil
}
