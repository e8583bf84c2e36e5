package hostile

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/parleyhq/parley/server/parleydtest"
)

// startSignedIn starts a server without TLS whose callers must sign in, and returns the token of a writer.
func startSignedIn(t *testing.T) (s *server, token string) {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	signIn := &parleydtest.SignIn{TokenFile: filepath.Join(t.TempDir(), "tokens.yaml")}
	create := parleydtest.Command(t.Context(), path, "")
	create.Env = append(create.Env, asServer+"=1", "GORACE=atexit_sleep_ms=0")
	if token, err = signIn.CreateToken(create, "--tenant=acme", "--role=writer"); err != nil {
		t.Fatal(err)
	}
	return startProgram(t, path, insecure.NewCredentials(), "--auth-token-file="+signIn.TokenFile), token
}

// sendUnfinished sends a message on each stream as fast as the server accepts it, until each message has been sent or
// refused.
func (c *rawConn) sendUnfinished(t *testing.T, streams int, b []byte) {
	t.Helper()
	const frame, window = 16 << 10, 65_535
	sent, total := make([]int, streams), 0
	for late := time.After(timeout); ; {
		waiting, progress := 0, false
		c.mu.Lock()
		more := c.more
		c.mu.Unlock()
		for i := range streams {
			c.mu.Lock()
			ended, of, all := c.results[streamID(i)] != "", c.windows[streamID(i)], c.windows[0]
			c.mu.Unlock()
			if ended || sent[i] == len(b) {
				continue
			}
			waiting++
			n := min(frame, len(b)-sent[i], window+of-sent[i], window+all-total)
			if n <= 0 {
				continue
			}
			if err := c.frames.WriteData(streamID(i), false, b[sent[i]:sent[i]+n]); err != nil {
				t.Fatal(err)
			}
			sent[i], total, progress = sent[i]+n, total+n, true
		}
		if waiting == 0 {
			t.Logf("sent %d MiB", total>>20)
			return
		}
		if progress {
			continue
		}
		select {
		case <-more:
		case <-late:
			t.Fatalf("%d streams are neither sent nor refused", waiting)
		}
	}
}

// TestHealthWatches opens more watches of the health, which need no credential, than the server allows.
func TestHealthWatches(t *testing.T) {
	t.Parallel()
	skipShort(t)
	s, _ := startSignedIn(t)
	const streams, most, conns = 1000, 1024, 3
	before, refused := s.usage(t), 0
	var all []*rawConn
	for range conns {
		c := dialHTTP2(t, s.grpcAddr)
		all = append(all, c)
		for i := range streams {
			_ = c.start(streamID(i), healthv1.Health_Watch_FullMethodName)
			_ = c.send(streamID(i), message(0, 0, nil), true)
		}
	}
	for late := time.After(timeout); refused < conns*streams-most; {
		results := make(map[string]int)
		for _, c := range all {
			c.mu.Lock()
			for _, result := range c.results {
				results[result]++
			}
			c.mu.Unlock()
		}
		refused = results["grpc-status 12"] // UNIMPLEMENTED; see TestTooManyHealthWatches of package rpc
		select {
		case <-time.After(10 * time.Millisecond):
		case <-late:
			t.Fatalf("%d watches are refused, want %d; results %v", refused, conns*streams-most, results)
		}
	}
	if refused != conns*streams-most {
		t.Errorf("%d watches are refused, want %d", refused, conns*streams-most)
	}
	for _, c := range all {
		c.close()
	}
	s.awaitRelease(t, before)
}

// TestUnfinished announces 4 MiB on each of many calls and sends all but a byte. A call without a valid credential is
// refused before that, and the others use a bounded part of the memory of the server.
func TestUnfinished(t *testing.T) {
	t.Parallel()
	skipShort(t)
	unfinished := message(0, 4<<20, make([]byte, 4<<20-1))
	for _, test := range []struct {
		name, method, credential string // credential "valid" is that of a writer
		streams                  int
		want                     string // results; empty if the server accepts the start of messages
		maxMiB                   int    // of memory
	}{
		{"no credential", appendM, "", 400, "400 x grpc-status 16", 300},
		{"wrong token", appendM, "wrong", 400, "400 x grpc-status 16", 300},
		{"no credential, stream", export, "", 400, "400 x grpc-status 16", 300},
		{"public method", healthv1.Health_Check_FullMethodName, "", 150, "", 300},
		{"valid token", appendM, "valid", 400, "", maxPeakBytes >> 20},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s, token := startSignedIn(t)
			before := s.usage(t)
			c := dialHTTP2(t, s.grpcAddr)
			defer c.close()
			var headers []string
			switch test.credential {
			case "":
			case "valid":
				headers = []string{"authorization", "Bearer " + token}
			default:
				headers = []string{"authorization", "Bearer " + test.credential}
			}
			for i := range test.streams {
				_ = c.start(streamID(i), test.method, headers...)
			}
			if test.want == "" {
				c.sendUnfinished(t, test.streams, unfinished)
			} else {
				results := make([]string, test.streams)
				for i := range results {
					results[i] = c.result(t, streamID(i)) // before the message has arrived
				}
				if got := tally(results); got != test.want {
					t.Errorf("results = %s, want %s", got, test.want)
				}
			}
			peak := s.peakBytes(t)
			t.Logf("peak %d MiB", peak>>20)
			if limit := raceFactor * test.maxMiB << 20; peak > limit {
				t.Errorf("peak memory = %d MiB, want at most %d MiB", peak>>20, limit>>20)
			}
			c.close()
			s.awaitRelease(t, before)
		})
	}
}
