package a2a

import (
	"bytes"
	"net/http"
)

// rpcWriter is the response of a request of JSON-RPC. The SDK writes no result if a method returns nothing, but
// JSON-RPC requires one: the empty message of the protocol.
type rpcWriter struct{ http.ResponseWriter }

// Write writes a response, which the SDK writes at once, or a part of a stream.
func (w *rpcWriter) Write(p []byte) (int, error) {
	// In texts, quotes are escaped.
	if !bytes.HasPrefix(p, []byte("{")) || bytes.Contains(p, []byte(`,"result":`)) ||
		bytes.Contains(p, []byte(`,"error":`)) {
		return w.ResponseWriter.Write(p)
	}
	text := append(bytes.TrimSuffix(bytes.TrimSpace(p), []byte("}")), `,"result":{}}`...)
	if _, err := w.ResponseWriter.Write(text); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush sends what was written.
func (w *rpcWriter) Flush() {
	_ = http.NewResponseController(w.ResponseWriter).Flush() // It fails only if the client is gone.
}

// restWriter is the response of a request of HTTP+JSON. It holds the header back until the first byte of the body. If
// the operation has failed before that, it writes the error with the status and the headers that HTTP has
// for it. The SDK would write status 500, and begins a stream before it runs the operation.
type restWriter struct {
	http.ResponseWriter
	failed *exchange

	code     int // as the SDK set it; 0 if it did not
	begun    bool
	replaced bool // The error was written, and what the SDK writes is dropped.
}

// WriteHeader keeps the status for later.
func (w *restWriter) WriteHeader(code int) {
	if w.code == 0 {
		w.code = code
	}
}

// Write writes a part of the body.
func (w *restWriter) Write(p []byte) (int, error) {
	w.begin()
	if w.replaced {
		return len(p), nil
	}
	return w.ResponseWriter.Write(p)
}

// Flush sends what was written.
func (w *restWriter) Flush() {
	if w.begun && !w.replaced {
		_ = http.NewResponseController(w.ResponseWriter).Flush() // It fails only if the client is gone.
	}
}

// end writes the body of a response without one, which is an empty message of the protocol.
func (w *restWriter) end() {
	if w.begun {
		return
	}
	w.begin()
	if !w.replaced {
		_, _ = w.ResponseWriter.Write([]byte("{}"))
	}
}

func (w *restWriter) begin() {
	if w.begun {
		return
	}
	w.begun = true
	if w.failed.err != nil {
		w.replaced = true
		writeREST(w.ResponseWriter, w.failed.err)
		return
	}
	if w.code != 0 {
		w.ResponseWriter.WriteHeader(w.code)
	}
}
