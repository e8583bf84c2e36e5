package adk_test

import (
	"sync/atomic"
	"testing"

	"google.golang.org/adk/v2/session"
	"google.golang.org/adk/v2/session/sessiontestsuite"
)

// TestSuite runs the framework's tests of a session service. No test is left out. Each service of the suite has a
// server of its own, since the suite uses the same ids again.
func TestSuite(t *testing.T) {
	var services atomic.Int32
	options := sessiontestsuite.SuiteOptions{SupportsUserProvidedSessionID: true}
	sessiontestsuite.RunServiceTests(t, options, func(t *testing.T) session.Service {
		t.Helper()
		services.Add(1)
		return newService(t, startServer(t).address)
	})
	if n := services.Load(); n < 20 {
		t.Errorf("the suite made %d services, want at least 20", n)
	}
}
