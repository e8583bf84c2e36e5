package redisstore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store/redisstore/redistest"
)

func clientOf(t *testing.T, url string, a Access) rueidis.ClientOption {
	t.Helper()
	o, err := ParseURL(url, a)
	if err != nil {
		t.Fatalf("ParseURL(%q) = %v, want nil", url, err)
	}
	return o
}

// wantOpen opens a store and closes it. The test fails unless the error is one line with these words, or nil if there
// are none. It returns the warnings.
func wantOpen(t *testing.T, o Options, words ...string) (warnings []string) {
	t.Helper()
	o.Warn = func(text string) { warnings = append(warnings, text) }
	s, err := Open(t.Context(), o)
	if err == nil {
		err = s.Close()
	}
	if len(words) == 0 && err != nil {
		t.Errorf("Open = %v, want nil", err)
	}
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) || strings.Contains(err.Error(), "\n") {
			t.Errorf("Open = %v, want one line with %q", err, word)
		}
	}
	return warnings
}

func TestCheckPolicy(t *testing.T) {
	engine := redistest.Start(t)
	o := Options{Client: clientOf(t, engine.URL(), Access{}), Buckets: 1}
	for _, policy := range []string{"allkeys-lru", "volatile-ttl"} {
		engine.Config("maxmemory-policy", policy)
		wantOpen(t, o, engine.Addr(), fmt.Sprintf("has maxmemory-policy %q", policy), "set it to noeviction")
	}
	engine.Config("maxmemory-policy", "noeviction")
	wantOpen(t, o)
}

// TestCheckRights: the user of the store needs no CONFIG.
func TestCheckRights(t *testing.T) {
	engine := redistest.Start(t)
	setUser := func(rules ...string) {
		t.Helper()
		command := []string{"ACL", "SETUSER", "parley", "reset", "on", ">secret", "~parley:*", "&parley:*"}
		if _, err := engine.Do(append(command, rules...)...); err != nil {
			t.Fatal(err)
		}
	}
	url := "redis://parley@" + engine.Addr()
	o := Options{Client: clientOf(t, url, Access{Password: "secret"}), Buckets: 1}
	setUser("+@all", "-@dangerous", "+info") // as server/README.md says
	wantOpen(t, o)
	engine.Config("maxmemory-policy", "allkeys-lru")
	wantOpen(t, o, "set it to noeviction")
	setUser("+@all", "-@dangerous")
	wantOpen(t, o, engine.Addr(), "does not allow INFO")
	engine.Config("maxmemory-policy", "noeviction")
	setUser("+@all", "resetchannels")
	wantOpen(t, o, "subscribe to", "NOPERM")
}

func TestCheckInfo(t *testing.T) {
	for version, want := range map[string]string{
		"7.0.0": "", "7.2.4": "", "8.1.0": "", "10.0": "", "255.255.255": "",
		"6.2.14": `has version "6.2.14": use Redis 7.0 or Valkey 7.2, or later`,
		"":       `has version "": use Redis 7.0 or Valkey 7.2, or later`,
		"x.1":    `has version "x.1": use Redis 7.0 or Valkey 7.2, or later`,
	} {
		err := checkInfo(parseInfo("# Server\r\nredis_version:" + version + "\r\nmaxmemory_policy:noeviction\r\n"))
		if got := fmt.Sprint(err); err == nil && want != "" || err != nil && got != want {
			t.Errorf("checkInfo(version %q) = %v, want %q", version, err, want)
		}
	}
}

// TestCheckCluster: the settings of each master count, and those of replicas do not.
func TestCheckCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 1, redistest.Setting("cluster-node-timeout", "5000"))
	o := Options{Client: clientOf(t, cluster.URL(), Access{}), Buckets: 3}
	if warnings := wantOpen(t, o); len(warnings) > 0 {
		t.Errorf("warnings = %q, want none", warnings)
	}
	cluster.Nodes[3].Config("maxmemory-policy", "allkeys-lru")
	wantOpen(t, o)

	second, third := cluster.Nodes[1], cluster.Nodes[2]
	for _, node := range []*redistest.Server{second, third} {
		node.Config("cluster-node-timeout", "15000")
	}
	third.Config("appendonly", "no")
	addresses := []string{second.Addr(), third.Addr()}
	slices.Sort(addresses)
	warnings := wantOpen(t, o)
	want := []string{
		"appendonly is off, so that a restart of the engine loses conversations: set appendonly yes at " + third.Addr(),
		"cluster-node-timeout is 15s, so that a failover takes longer than that: set it to 5s at " +
			strings.Join(addresses, ", "),
	}
	if !slices.Equal(warnings, want) {
		t.Errorf("warnings = %q, want %q", warnings, want)
	}

	third.Config("maxmemory-policy", "allkeys-lru")
	wantOpen(t, o, third.Addr(), "set it to noeviction")
}

func TestCheckWarnings(t *testing.T) {
	engine := redistest.Start(t, redistest.Setting("appendonly", "no"))
	warnings := wantOpen(t, Options{Client: clientOf(t, engine.URL(), Access{}), Buckets: 1})
	want := []string{
		"appendonly is off, so that a restart of the engine loses conversations: set appendonly yes at " + engine.Addr(),
		"no replica, so that nothing replaces the engine if it fails: add replicas at " + engine.Addr(),
	}
	if !slices.Equal(warnings, want) {
		t.Errorf("warnings = %q, want %q", warnings, want)
	}
}

func TestCheckClock(t *testing.T) {
	engine := redistest.Start(t)
	for shift, want := range map[time.Duration]string{
		time.Hour:  "behind this machine: set both clocks",
		-time.Hour: "ahead of this machine: set both clocks",
	} {
		o := Options{Client: clientOf(t, engine.URL(), Access{}), Buckets: 1}
		o.clock = func() time.Time { return time.Now().Add(shift) }
		wantOpen(t, o, engine.Addr(), want)
	}
	at := time.Unix(1000, 0)
	for _, test := range []struct {
		engine time.Duration
		faulty bool
	}{
		{-maxClockError, true},
		{-maxClockError + 1, false},
		{0, false},
		{time.Minute, false},
		{time.Minute + maxClockError - 1, false},
		{time.Minute + maxClockError, true},
	} {
		if err := compareClocks(at, at.Add(time.Minute), at.Add(test.engine)); (err != nil) != test.faulty {
			t.Errorf("compareClocks(0, 1m, %v) = %v, want an error: %t", test.engine, err, test.faulty)
		}
	}
}

func TestCheckSchema(t *testing.T) {
	engine := redistest.Start(t)
	o := Options{Client: clientOf(t, engine.URL(), Access{}), Buckets: 4}
	wantOpen(t, o)
	o.Buckets = 8
	wantOpen(t, o, `"parley:schema" has 4 buckets, which cannot be changed to 8: set 4 or none`)
	o.Buckets = 0
	wantOpen(t, o)
	o.Prefix = "other"
	wantOpen(t, o)
	if _, err := engine.Do("SET", "other:schema", "3 64"); err != nil {
		t.Fatal(err)
	}
	wantOpen(t, o, `"other:schema" has version 3, this program reads versions 1 and 2`)
	if _, err := engine.Do("SET", "other:schema", "text"); err != nil {
		t.Fatal(err)
	}
	wantOpen(t, o, "it is not a store of this program")
	o.Prefix = "a{b}"
	wantOpen(t, o, "choose one without braces")
}

// TestCheckUnavailable: the error of an engine that does not run, or has stopped, has its address.
func TestCheckUnavailable(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t, redistest.Password("secret"))
	o := Options{Client: clientOf(t, engine.URL(), Access{Password: "secret"}), Buckets: 1}
	for name, stop := range map[string]func(){"killed": engine.Kill, "paused": engine.Pause} {
		stop()
		_, err := Open(t.Context(), o)
		if !isUnavailable(err) || !strings.Contains(err.Error(), "engine at "+engine.Addr()) ||
			strings.Contains(err.Error(), "secret") {
			t.Errorf("Open, engine %s = %v, want ErrUnavailable with the address and without the password", name, err)
		}
		engine.Restart()
	}
	wantOpen(t, o)
}
