package remote

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Types, flags and codes of HTTP/2 frames (RFC 9113).
const (
	frameData, frameHeaders, frameReset, frameSettings, frameWindow = 0, 1, 3, 4, 8

	flagEndStream, flagAck, flagEndHeaders = 1, 1, 4

	refusedStream = 7

	// preface is the beginning of a client connection.
	preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
)

// TestRefused: a request that a closing server refuses without processing it is sent again,
// whatever its size.
func TestRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	requests := 0
	go func() {
		conn, err := l.Accept()
		if err == nil {
			defer conn.Close()
			err = (&rawHTTP2{conn}).serve(&requests)
		}
		ended <- err
	}()
	a, err := New(Config{Address: l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	request := &parleyv1.RespondRequest{SystemPrompt: strings.Repeat("x", 1<<20)}
	answer, err := collect(t.Context(), a, request)
	if len(answer) != 0 || err != nil {
		t.Errorf("Respond = %v, %v, want no pieces", answer, err)
	}
	a.Close()
	l.Close()
	if err := wait(t, "the agent's end", ended); err != nil {
		t.Error(err)
	}
	if requests != 2 {
		t.Errorf("%d requests, want the refused one and a second one", requests)
	}
}

// rawHTTP2 serves HTTP/2 frame by frame, because no library has an option to refuse streams.
type rawHTTP2 struct{ net.Conn }

// serve has no health service, refuses the first other request when it is complete, and answers the
// next one with OK. It returns when the client disconnects.
func (c *rawHTTP2) serve(requests *int) error {
	if _, err := io.CopyN(io.Discard, c, int64(len(preface))); err != nil {
		return err
	}
	// Windows of 64 MiB, so that each request fits.
	if err := c.write(frameSettings, 0, 0, []byte{0, 4, 4, 0, 0, 0}); err != nil {
		return err
	}
	if err := c.write(frameWindow, 0, 0, []byte{4, 0, 0, 0}); err != nil {
		return err
	}
	var header [9]byte
	for {
		if _, err := io.ReadFull(c, header[:]); err != nil {
			return nil //nolint:nilerr // The client disconnected.
		}
		length := int64(header[0])<<16 | int64(header[1])<<8 | int64(header[2])
		kind, flags, stream := header[3], header[4], binary.BigEndian.Uint32(header[5:])
		if _, err := io.CopyN(io.Discard, c, length); err != nil {
			return err
		}
		var err error
		switch {
		case kind == frameSettings && flags&flagAck == 0:
			err = c.write(frameSettings, flagAck, 0, nil)
		case kind != frameData || flags&flagEndStream == 0:
		case stream == 1: // The first call is the health check.
			err = c.status(stream, "12")
		default:
			*requests++
			if *requests == 1 {
				err = c.write(frameReset, 0, stream, binary.BigEndian.AppendUint32(nil, refusedStream))
			} else {
				err = c.status(stream, "0")
			}
		}
		if err != nil {
			return err
		}
	}
}

func (c *rawHTTP2) write(kind, flags byte, stream uint32, payload []byte) error {
	frame := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	frame = append(binary.BigEndian.AppendUint32(frame, stream), payload...)
	_, err := c.Write(frame)
	return err
}

// status ends a stream with only a gRPC status.
func (c *rawHTTP2) status(stream uint32, code string) error {
	var block bytes.Buffer
	block.WriteByte(0x88) // :status 200 by its index in HPACK's static table.
	for _, field := range [][2]string{{"content-type", "application/grpc"}, {"grpc-status", code}} {
		block.WriteByte(0) // Literal field without indexing.
		for _, s := range field {
			block.WriteByte(byte(len(s)))
			block.WriteString(s)
		}
	}
	return c.write(frameHeaders, flagEndHeaders|flagEndStream, stream, block.Bytes())
}
