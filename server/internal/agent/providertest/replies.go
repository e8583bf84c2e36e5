package providertest

import (
	"net/http"
	"strings"
)

// Parts sends an event stream that consists of the parts, each flushed separately. It ends after
// the last part, even if the answer is not complete.
func Parts(parts ...string) Reply {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		controller := http.NewResponseController(w)
		for _, part := range parts {
			if _, err := w.Write([]byte(part)); err != nil {
				return // The client disconnected.
			}
			if err := controller.Flush(); err != nil {
				return
			}
		}
	}
}

// Fail sends the status and the body. The media type is JSON, or HTML if the body begins with "<".
// Retry-After-Ms lets clients retry at once.
func Fail(status int, body string) Reply {
	return func(w http.ResponseWriter, _ *http.Request) {
		kind := "application/json"
		if strings.HasPrefix(body, "<") {
			kind = "text/html"
		}
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Retry-After-Ms", "1")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body)) // The client may have disconnected.
	}
}

// Stall sends nothing until the client disconnects.
func Stall(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// Break closes the connection.
func Break(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// Endless sends the part repeatedly until the client disconnects.
func Endless(part string) Reply {
	return func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			Parts(part)(w, r)
		}
	}
}

// Sequence sends several replies as one response.
func Sequence(replies ...Reply) Reply {
	return func(w http.ResponseWriter, r *http.Request) {
		for _, reply := range replies {
			reply(w, r)
		}
	}
}

// Call is a tool call of the model.
type Call struct {
	ID, Name string
	// Arguments is JSON or what the model writes instead. If empty, the call has no arguments.
	Arguments string
}

// ArgumentParts splits the arguments into parts of a few characters, as models send them.
func (c Call) ArgumentParts() []string {
	const partRunes = 5
	var parts []string
	for runes := []rune(c.Arguments); len(runes) > 0; {
		n := min(partRunes, len(runes))
		parts = append(parts, string(runes[:n]))
		runes = runes[n:]
	}
	return parts
}
