package redisstore

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// parsed is what a URL says.
type parsed struct {
	Addresses    []string
	User, Master string
	Database     int
	TLS          bool
}

func summaryOfOptions(o rueidis.ClientOption) parsed {
	return parsed{
		Addresses: o.InitAddress, User: o.Username, Master: o.Sentinel.MasterSet, Database: o.SelectDB, TLS: o.TLSConfig != nil,
	}
}

func TestParseURL(t *testing.T) {
	for text, want := range map[string]parsed{
		"redis://localhost":                {Addresses: []string{"localhost:6379"}},
		"redis://localhost/":               {Addresses: []string{"localhost:6379"}},
		"redis://[::1]":                    {Addresses: []string{"[::1]:6379"}},
		"redis://[::1]:7000/0":             {Addresses: []string{"[::1]:7000"}},
		"redis://parley@db.example:7000/3": {Addresses: []string{"db.example:7000"}, User: "parley", Database: 3},
		"redis://a%3Ab@db:7000":            {Addresses: []string{"db:7000"}, User: "a:b"},
		"redis://a:1,b:2,c:3":              {Addresses: []string{"a:1", "b:2", "c:3"}},
		"redis://me@a:1,b,c:3/0":           {Addresses: []string{"a:1", "b:6379", "c:3"}, User: "me"},
		"rediss://a:1":                     {Addresses: []string{"a:1"}, TLS: true},
		"redis+sentinel://a:1,b/main":      {Addresses: []string{"a:1", "b:26379"}, Master: "main"},
		"rediss+sentinel://me@a:1/my%20main/2": {
			Addresses: []string{"a:1"}, User: "me", Master: "my main", Database: 2, TLS: true,
		},
	} {
		o, err := ParseURL(text, Access{Password: "secret"})
		if err != nil {
			t.Errorf("ParseURL(%q) = %v, want nil", text, err)
			continue
		}
		if d := cmp.Diff(want, summaryOfOptions(o)); d != "" {
			t.Errorf("ParseURL(%q) (-want +got):\n%s", text, d)
		}
		if !o.DisableCache || o.ConnWriteTimeout != 2*time.Second ||
			o.ClusterOption.MaxMovedRedirections != 5 {
			t.Errorf("ParseURL(%q) = cache off %t, time to write %v, redirections %d, want true, 2s, 5",
				text, o.DisableCache, o.ConnWriteTimeout, o.ClusterOption.MaxMovedRedirections)
		}
		if o.Password != "secret" || o.Sentinel.Password != "" {
			t.Errorf("ParseURL(%q): password %q, of Sentinels %q, want secret and none", text, o.Password, o.Sentinel.Password)
		}
	}
}

func TestParseURLFaults(t *testing.T) {
	const scheme = "must begin with redis://, rediss://, redis+sentinel:// or rediss+sentinel://"
	const password = "must not have a password; remove it, and set --redis-password-file or --redis-password-env"
	const query = "must not have a query or a fragment; use redis://host:port/database"
	const database = "has no valid number of a database at its end; use 0 to 65535"
	host := func(text string) string {
		return fmt.Sprintf("has no host and port at %q; use host:port, several separated by commas", text)
	}
	for text, want := range map[string]string{
		"":                            scheme,
		"localhost:6379":              scheme,
		"http://localhost":            scheme,
		"redis:localhost":             scheme,
		"redis://:hunter2@a:1":        password,
		"redis://me:hunter2@a:1":      password,
		"redis://me:hun/ter@2@a:1":    password,
		"redis://a:1,me:hunter2@b:1":  password,
		"redis://@a:1":                "has no valid name of a user before @",
		"redis://a b@a:1":             "has no valid name of a user before @",
		"redis://%zz@a:1":             "has no valid name of a user before @",
		"redis://a:1?password=h":      query,
		"redis://a:1/0#h":             query,
		"redis://":                    host(""),
		"redis://a:1,":                host(""),
		"redis://:7000":               host(":7000"),
		"redis://a:0":                 host("a:0"),
		"redis://a:70000":             host("a:70000"),
		"redis://a:b":                 host("a:b"),
		"redis://a b:1":               host("a b:1"),
		"redis://[::1":                host("[::1"),
		"redis://a:1/x":               database,
		"redis://a:1/-1":              database,
		"redis://a:1/70000":           database,
		"redis://a:1/1/2":             database,
		"redis://a:1,b:1/1":           "must not name a database: a cluster has only database 0",
		"redis+sentinel://a:1":        "has no name of a master; use redis+sentinel://host:port,host:port/name",
		"redis+sentinel://a:1/main/x": database,
	} {
		if _, err := ParseURL(text, Access{}); err == nil || err.Error() != want {
			t.Errorf("ParseURL(%q) = %v, want %s", text, err, want)
		}
	}
	if _, err := ParseURL("redis://"+strings.Repeat("a", maxURLBytes), Access{}); err == nil {
		t.Error("ParseURL(a long text) = nil, want an error")
	}
}

func TestParseURLFiles(t *testing.T) {
	missing, empty := filepath.Join(t.TempDir(), "missing"), filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		url    string
		access Access
		want   string
	}{
		{"rediss://a:1", Access{CAFile: missing}, "has authorities that cannot be read"},
		{"rediss://a:1", Access{CAFile: empty}, "which has no certificate in PEM form"},
		{"rediss://a:1", Access{CertFile: missing, KeyFile: missing}, "has a client certificate that cannot be used"},
		{"redis://a:1", Access{CAFile: empty}, "must begin with rediss:// or rediss+sentinel:// if there are files for TLS"},
	} {
		if _, err := ParseURL(test.url, test.access); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("ParseURL(%q, %+v) = %v, want %s", test.url, test.access, err, test.want)
		}
	}
}

// FuzzParseURL checks that no error contains a password, and that what is accepted can be dialed.
func FuzzParseURL(f *testing.F) {
	for _, seed := range []string{
		"redis://me@a:1/2", "rediss://[::1]:7", "redis+sentinel://a,b:1/main/3", "redis://%41@b", "redis://a:1,b:2", "x://",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		const password = "correct-horse"
		for _, scheme := range []string{"redis://", "rediss://", "redis+sentinel://"} {
			with := scheme + "me:" + password + "@" + text
			if _, err := ParseURL(with, Access{}); err == nil || strings.Contains(err.Error(), password) {
				t.Errorf("ParseURL(%q) = %v, want an error without the password", with, err)
			}
		}
		o, err := ParseURL(text, Access{})
		if err != nil {
			return
		}
		if len(o.InitAddress) == 0 || o.SelectDB < 0 || o.Password != "" {
			t.Errorf("ParseURL(%q) = %+v, want an address, a database and no password", text, summaryOfOptions(o))
		}
	})
}

// TestURLWithTLS uses a store with a password and TLS, with and without a certificate of the client, and with the
// certificate of another authority.
func TestURLWithTLS(t *testing.T) {
	engine := redistest.Start(t,
		redistest.TLS(), redistest.Password("secret"), redistest.Setting("tls-auth-clients", "yes"))
	stranger := redistest.Start(t, redistest.TLS())
	open := func(a Access) error {
		client, err := ParseURL(engine.URL(), a)
		if err != nil {
			t.Fatalf("ParseURL(%q) = %v, want nil", engine.URL(), err)
		}
		s, err := Open(t.Context(), Options{Client: client, Buckets: 1})
		if err != nil {
			return err
		}
		appendTo(t, s, "c", "hello")
		wantTexts(t, s, "c", "hello")
		return errors.Join(s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "c"}), s.Close())
	}
	full := Access{Password: "secret", CAFile: engine.CAFile, CertFile: engine.CertFile, KeyFile: engine.KeyFile}
	if err := open(full); err != nil {
		t.Errorf("Open = %v, want nil", err)
	}
	for _, test := range []struct {
		change func(a *Access)
		want   string
	}{
		{func(a *Access) { a.CAFile = "" }, "certificate signed by unknown authority"},
		{func(a *Access) { a.CAFile = stranger.CAFile }, "set --redis-ca-file to the certificate of the authority of the engine"},
		{func(a *Access) { a.CertFile, a.KeyFile = "", "" }, ""},
		{func(a *Access) { a.Password = "wrong-one" }, "refuses the user or the password"},
		{func(a *Access) { a.Password = "" }, "refuses the user or the password"},
	} {
		a := full
		test.change(&a)
		err := open(a)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "wrong-one") ||
			!strings.Contains(err.Error(), engine.Addr()) {
			t.Errorf("Open(%+v) = %v, want %q with the address and without the password", a, err, test.want)
		}
	}
	if plain, err := ParseURL(engine.URL(), full); err != nil || plain.TLSConfig.MinVersion != tls.VersionTLS12 {
		t.Errorf("ParseURL(%q) = %v, want TLS 1.2 at least", engine.URL(), err)
	}
}
