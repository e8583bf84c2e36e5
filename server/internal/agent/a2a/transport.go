package a2a

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/parleyhq/parley/server/internal/tracing"
)

const (
	// maxRefusalBytes is the maximum size of the body of a refusal that is read.
	maxRefusalBytes = 64 << 10
	// connectTimeout limits each step of a connection: TCP and TLS.
	connectTimeout = 10 * time.Second

	mediaJSON, mediaEvents = "application/json", "text/event-stream"
)

// newHTTPClient returns a client that sends the headers, refuses redirects and limits responses.
func (a *Agent) newHTTPClient() *http.Client {
	return &http.Client{
		Transport: &limitedTransport{agent: a, Transport: http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: connectTimeout}).DialContext,
			TLSHandshakeTimeout: connectTimeout,
			TLSClientConfig:     a.tls.Clone(),
			ForceAttemptHTTP2:   true,
			MaxIdleConnsPerHost: 16,
			IdleConnTimeout:     90 * time.Second,
			// Compression would delay the events of a stream.
			DisableCompression:     true,
			MaxResponseHeaderBytes: 64 << 10,
		}},
	}
}

// limitedTransport adds the headers to requests, and limits and checks responses before the library reads them.
type limitedTransport struct {
	http.Transport

	agent *Agent
}

// RoundTrip sends the request. A redirect, and a status that the library would not explain, is a *statusError.
func (t *limitedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Header.Set("User-Agent", "parley")
	for name, value := range t.agent.headers {
		request.Header.Set(name, value)
	}
	tracing.Inject(request.Context(), request.Header.Set)
	response, err := t.Transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	media, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if err != nil {
		media = "" // A missing type is treated like an unknown one.
	}
	isJSON := media == mediaJSON || strings.HasSuffix(media, "+json")
	switch s := response.StatusCode; {
	case s >= http.StatusMultipleChoices && (s < http.StatusBadRequest || !isJSON || isOfGateway(s)):
		defer response.Body.Close()
		return nil, refusal(response, isJSON)
	case s < http.StatusMultipleChoices && isJSON && request.Header.Get("Accept") == mediaEvents:
		// Servers refuse a stream with JSON in place of events. The library reads events only.
		defer response.Body.Close()
		body, err := io.ReadAll(&limitedBody{ReadCloser: response.Body})
		if err != nil {
			return nil, err
		}
		var line bytes.Buffer
		if err := json.Compact(&line, body); err != nil {
			return nil, errors.New("the response is not JSON")
		}
		response.Body = io.NopCloser(strings.NewReader("data: " + line.String() + "\n\n"))
	default:
		if media == mediaEvents {
			response.Body = &eventBody{Closer: response.Body, in: bufio.NewReader(response.Body)}
		} else {
			response.Body = &limitedBody{ReadCloser: response.Body}
		}
	}
	return response, nil
}

// isOfGateway reports whether a status is the same in all protocols, and usually has no body of the protocol.
func isOfGateway(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// refusal returns the error for a response, with its text if it has one for people.
func refusal(response *http.Response, isJSON bool) *statusError {
	e := &statusError{status: response.StatusCode}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxRefusalBytes))
	if err != nil || len(body) == maxRefusalBytes || !isJSON {
		return e // The status is sufficient. A page of a gateway is not for people.
	}
	var report struct {
		Error   json.RawMessage
		Message string
	}
	if json.Unmarshal(body, &report) != nil {
		return e
	}
	e.text = report.Message
	var inner struct{ Message string }
	if json.Unmarshal(report.Error, &inner) == nil && inner.Message != "" {
		e.text = inner.Message
	}
	return e
}
