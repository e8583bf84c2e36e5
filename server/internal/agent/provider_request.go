package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/parleyhq/parley/server/internal/tracing"
)

const (
	// maxRetries is how often a request is repeated before an answer has begun: after a connection
	// error, or status 408, 409, 429 or 5xx. With the waits in between, all attempts fit in the time
	// that a turn may be silent.
	maxRetries = 2
	// firstWait is the wait before the first retry if the provider does not ask for another wait. It is
	// doubled for each further retry.
	firstWait = 500 * time.Millisecond
	// maxWait is the maximum wait before a request is repeated. If a provider asks for more, the error
	// is returned at once.
	maxWait = 10 * time.Second
)

// MakeBody makes the body of a request, which is encoded as JSON. If native is set, earlier answers are in their native
// forms, where these are known; hasNative reports whether any are.
type MakeBody func(native bool) (body any, hasNative bool)

// Stream posts a body to a path below Base and returns the events of the response. header contains the headers of the
// API; the configured headers have precedence. If the provider refuses a body with native forms because of its content,
// with status 400, 413 or 422, Stream posts one without them. If the provider accepts that, Stream sends no native
// forms for nativePause. The error is an *Error, unless ctx has ended. The caller must close the stream.
func (p *Provider) Stream(
	ctx context.Context, path string, header http.Header, makeBody MakeBody,
) (*EventStream, error) {
	address := p.Base.JoinPath(path)
	address.RawQuery = p.Base.Query().Encode()
	header = header.Clone()
	header.Set("Content-Type", "application/json")
	header.Set("Accept", "application/json") // The APIs use it for streams too.
	header.Set("User-Agent", "parley")
	for name, value := range p.model.Headers {
		header.Set(name, value)
	}
	body, hasNative := makeBody(!p.native.isPaused())
	response, err := p.post(ctx, address.String(), header, body)
	if err == nil && hasNative && isRefusedContent(response.StatusCode) && ctx.Err() == nil {
		response.Body.Close()
		body, _ = makeBody(false)
		response, err = p.post(ctx, address.String(), header, body)
		if err == nil && isSuccess(response) {
			p.native.pause()
		}
	}
	switch own, isOwn := errors.AsType[*Error](err); {
	case ctx.Err() != nil:
		if response != nil {
			response.Body.Close()
		}
		return nil, context.Cause(ctx)
	case isOwn:
		return nil, own
	case err != nil || !isSuccess(response):
		return nil, p.ResponseError(response, err)
	}
	return NewEventStream(response.Body), nil
}

// post sends a body as JSON. If it cannot be encoded, the error is an *Error.
func (p *Provider) post(ctx context.Context, address string, header http.Header, body any) (*http.Response, error) {
	var encoded bytes.Buffer
	encoder := json.NewEncoder(&encoded)
	encoder.SetEscapeHTML(false) // The reader is a model, not a browser.
	if err := encoder.Encode(body); err != nil {
		return nil, &Error{Message: "the request cannot be encoded as JSON", Detail: err.Error()}
	}
	return p.send(ctx, address, header, encoded.Bytes())
}

func isSuccess(response *http.Response) bool { return response.StatusCode < http.StatusMultipleChoices }

// nativePause is the time for which an agent sends no native forms after its provider has refused some. Without it,
// each request of a conversation with such forms would be sent twice.
const nativePause = 10 * time.Minute

// nativeForms is whether native forms are sent at present. Its methods may be called from many goroutines.
type nativeForms struct {
	now         func() time.Time
	pausedUntil atomic.Int64 // in nanoseconds since 1970
}

func (f *nativeForms) isPaused() bool { return f.now().UnixNano() < f.pausedUntil.Load() }

func (f *nativeForms) pause() { f.pausedUntil.Store(f.now().Add(nativePause).UnixNano()) }

// isRefusedContent reports whether the status says that the content of a request is invalid or too long.
func isRefusedContent(status int) bool {
	return status == http.StatusBadRequest || status == http.StatusRequestEntityTooLarge ||
		status == http.StatusUnprocessableEntity
}

// send sends a request and repeats it if a retry may succeed. It returns the last response or error.
func (p *Provider) send(ctx context.Context, address string, header http.Header, body []byte) (*http.Response, error) {
	for retries := 0; ; retries++ {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		request.Header = header.Clone()
		tracing.Inject(ctx, request.Header.Set)
		response, err := p.client.Do(request)
		wait, ok := retryWait(response, retries)
		if !ok || retries == maxRetries || ctx.Err() != nil {
			return response, err
		}
		if response != nil {
			response.Body.Close()
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
	}
}

// retryWait returns the wait before a request is repeated, and whether to repeat it. response is nil after a
// connection error. Providers can override the decision by the header X-Should-Retry.
func retryWait(response *http.Response, retries int) (wait time.Duration, ok bool) {
	wait = firstWait << retries
	wait -= rand.N(wait / 4) //nolint:gosec // It only keeps clients that failed together from returning together.
	switch {
	case response == nil:
		return wait, true
	case response.StatusCode < http.StatusBadRequest:
		return 0, false
	}
	switch response.Header.Get("X-Should-Retry") {
	case "true":
	case "false":
		return 0, false
	default:
		switch status := response.StatusCode; {
		case status == http.StatusRequestTimeout, status == http.StatusConflict, status == http.StatusTooManyRequests:
		case status < http.StatusInternalServerError:
			return 0, false
		}
	}
	if asked, ok := retryAfter(response.Header); ok {
		wait = max(asked, 0)
	}
	return wait, wait <= maxWait
}

// retryAfter returns the wait that a provider asks for: in milliseconds, in seconds or until a date. A wait
// that is too long to represent is a year. Retry-After-Ms has precedence if it is valid.
func retryAfter(header http.Header) (wait time.Duration, ok bool) {
	const year = 365 * 24 * time.Hour
	number := func(value string, unit time.Duration) (wait time.Duration, ok bool) {
		n, err := strconv.ParseFloat(value, 64)
		// ParseFloat returns an infinite number for one that is too large.
		ok = err == nil && n >= 0 || math.IsInf(n, 1)
		if !ok {
			return 0, false
		}
		return time.Duration(min(n*float64(unit), float64(year))), true
	}
	if wait, ok := number(header.Get("Retry-After-Ms"), time.Millisecond); ok {
		return wait, true
	}
	value := header.Get("Retry-After")
	if wait, ok := number(value, time.Second); ok {
		return wait, true
	}
	at, err := http.ParseTime(value)
	return min(time.Until(at), year), err == nil
}
