package providertest

import (
	"net/http"
	"strings"
)

// Parts answers with an event stream whose bytes are the parts, each flushed by itself,
// and leaves it where they end, whether or not that is a whole answer.
func Parts(parts ...string) Reply {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		controller := http.NewResponseController(w)
		for _, part := range parts {
			if _, err := w.Write([]byte(part)); err != nil {
				return // the client has gone
			}
			if err := controller.Flush(); err != nil {
				return
			}
		}
	}
}

// Fail answers with the status and the body, as JSON unless it begins like HTML. The client
// is told to try again at once where it does.
func Fail(status int, body string) Reply {
	return func(w http.ResponseWriter, _ *http.Request) {
		kind := "application/json"
		if strings.HasPrefix(body, "<") {
			kind = "text/html"
		}
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Retry-After-Ms", "1")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body)) // the client may have gone
	}
}

// Stall says nothing more until the client has gone.
func Stall(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// Break cuts the connection off.
func Break(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// Endless sends the part again and again until the client has gone.
func Endless(part string) Reply {
	return func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			Parts(part)(w, r)
		}
	}
}

// Sequence is one reply made of several: what the first begins the next goes on with.
func Sequence(replies ...Reply) Reply {
	return func(w http.ResponseWriter, r *http.Request) {
		for _, reply := range replies {
			reply(w, r)
		}
	}
}

// Call is a tool call that the model makes.
type Call struct {
	ID, Name string
	// Arguments is JSON, or what the model takes for it; empty is a call without any.
	Arguments string
}

// ArgumentParts are the arguments in parts of a few runes, as models write them.
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
