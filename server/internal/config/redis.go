package config

import (
	"fmt"
	"strings"

	"github.com/parleyhq/parley/server/internal/secretfile"
	"github.com/parleyhq/parley/store/redisstore"
)

// StoreRedis is the value of the setting store for Redis and Valkey.
const StoreRedis = "redis"

// MaxRedisConversation is the maximum of max-conversation-bytes with Redis.
const MaxRedisConversation = 32 * mib

// Values of the setting durability.
const (
	durabilityLocal      = "local"
	durabilityReplicated = "replicated"
)

// maxRedisPrefix is the maximum size of redis-prefix.
const maxRedisPrefix = 64

// Redis are the settings of the store on Redis or Valkey.
type Redis struct {
	URL                       string // empty if the store is another one
	Password                  Secret // empty: none
	PasswordFile, PasswordEnv string // where Password is from; empty: none
	CAFile                    string // empty: the authorities of the system
	CertFile, KeyFile         string // of the client; empty: none
	Prefix                    string // of all keys
	Buckets                   int    // of a new store; 0: the default
	Spread                    int    // buckets of a tenant
	Durability                string // durabilityLocal or durabilityReplicated
}

// Access returns what a client needs besides the URL. It contains the password.
func (r *Redis) Access() redisstore.Access {
	return redisstore.Access{
		Password: r.Password.Reveal(), CAFile: r.CAFile, CertFile: r.CertFile, KeyFile: r.KeyFile,
	}
}

// Replicated reports whether a write is acknowledged only when a replica has it.
func (r *Redis) Replicated() bool { return r.Durability == durabilityReplicated }

// redisSettings returns the rows of the table of settings for the store on Redis or Valkey.
func (c *Config) redisSettings() []*setting {
	r := &c.Redis
	return []*setting{
		newSetting("redis-url", redisURL(&r.URL),
			"Redis or Valkey of the store redis: redis[s]://[user@]host:port[/database], several hosts for a cluster, "+
				"or redis[s]+sentinel://host:port,host:port/name"),
		newSetting("redis-password-file", text(&r.PasswordFile, "", 0, 4*kib, "path"),
			"file of the password of Redis; readable by its owner only; empty: none"),
		newSetting("redis-password-env", optionalVariable(&r.PasswordEnv),
			"name of the environment variable with the password of Redis; empty: none"),
		newSetting("redis-ca-file", text(&r.CAFile, "", 0, 4*kib, "path"),
			"certificates of the authorities of Redis, in PEM form; empty: those of the system"),
		newSetting("redis-cert-file", text(&r.CertFile, "", 0, 4*kib, "path"),
			"certificate that the server presents to Redis, in PEM form; empty: none"),
		newSetting("redis-key-file", text(&r.KeyFile, "", 0, 4*kib, "path"),
			"private key of this certificate, in PEM form; readable by its owner only"),
		newSetting("redis-prefix", redisPrefix(&r.Prefix, "parley"),
			"beginning of all keys in Redis; stores with different prefixes share nothing"),
		newSetting("redis-buckets", count(&r.Buckets, 0, 0, redisstore.MaxBuckets),
			"number of parts into which a new store in Redis is divided, which cannot be changed later; 0: 64"),
		newSetting("redis-spread", count(&r.Spread, 1, 1, redisstore.MaxSpread),
			"number of these parts over which a new store in Redis spreads each tenant, a divisor of their number, which "+
				"cannot be changed later"),
		newSetting("durability", choice(&r.Durability, durabilityLocal, durabilityLocal, durabilityReplicated),
			"when a write to Redis is acknowledged: local, when Redis has made it; replicated, when a replica has it, too"),
	}
}

// redisURL is the URL of Redis, or empty. Faults do not quote a password.
func redisURL(target *string) value[string] {
	return value[string]{target, "url", func(s string) (string, error) {
		if s == "" {
			return "", nil
		}
		_, err := redisstore.ParseURL(s, redisstore.Access{})
		return s, err
	}, verbatim}
}

// optionalVariable is the name of an environment variable, or empty. Faults do not quote it, as in variableName.
func optionalVariable(target *string) value[string] {
	v := variableName(target)
	parse := v.parse
	v.parse = func(s string) (string, error) {
		if s == "" {
			return "", nil
		}
		return parse(s)
	}
	return v
}

// redisPrefix is the beginning of keys. It has no braces, in which Redis Cluster finds the slot of a key.
func redisPrefix(target *string, initial string) value[string] {
	*target = initial
	return value[string]{target, "name", func(s string) (string, error) {
		isOther := func(r rune) bool { return !strings.ContainsRune(letters+digits+"-_.:/", r) }
		if s == "" || len(s) > maxRedisPrefix || strings.ContainsFunc(s, isOther) {
			return "", fmt.Errorf("%.80q is not a prefix; use 1 to %d letters, digits and characters of -_.:/", s,
				maxRedisPrefix)
		}
		return s, nil
	}, verbatim}
}

// checkRedis checks the settings of the store on Redis or Valkey, and reads the password.
func (l *loader) checkRedis() {
	c, r := l.config, &l.config.Redis
	if c.Store != StoreRedis {
		for _, name := range RedisSettings() {
			if s := l.setting(name); s.isSet && s.String() != newLoader(nil).setting(name).String() {
				l.fault(s.place, "needs --store redis")
			}
		}
		return
	}
	if r.URL == "" && !l.setting("redis-url").isSet {
		l.fault(l.place("store"), "redis needs --redis-url, for example redis://127.0.0.1:6379")
	} else if r.URL == "" {
		l.fault(l.place("redis-url"), "must not be empty with --store redis")
	}
	if bytes := c.MaxConversationBytes; bytes > MaxRedisConversation {
		l.fault(l.place("max-conversation-bytes"), "%s is too large for --store redis; the maximum is %s, because Redis "+
			"executes one command at a time, and a larger conversation would delay all others",
			formatSize(int64(bytes)), formatSize(MaxRedisConversation))
	}
	l.checkSpread()
	l.checkRedisAccess()
}

// checkSpread checks what a spread above 1 needs. If redis-buckets is 0, the store checks that the spread is a divisor
// of its number of buckets.
func (l *loader) checkSpread() {
	c, n := l.config, l.config.Redis.Spread
	if n == 1 {
		return
	}
	if buckets := c.Redis.Buckets; buckets%n != 0 {
		l.fault(l.place("redis-spread"), "%d does not divide the %d of %s evenly; use a divisor", n, buckets,
			l.place("redis-buckets"))
	}
	check := func(place string, capacity int) {
		if capacity > 0 && capacity/n < redisstore.MinShare {
			l.fault(place, "%d is too small for a spread of %d; use at least %d, or 0 for no limit, or set %s to 1", capacity,
				n, n*redisstore.MinShare, l.place("redis-spread"))
		}
	}
	check(l.place("max-conversations"), c.MaxConversations)
	for _, t := range c.Tenants {
		for _, row := range t.rows {
			if row.name == "max-conversations" && row.isSet {
				check(row.place, t.Limits.MaxConversations)
			}
		}
	}
}

// checkRedisAccess reads the password and checks the files of TLS.
func (l *loader) checkRedisAccess() {
	l.readRedisPassword()
	l.checkRedisTLS()
}

// RedisSettings returns the names of the settings of the store on Redis or Valkey, for [Offline.More].
func RedisSettings() (names []string) {
	for _, s := range new(Config).redisSettings() {
		names = append(names, s.name)
	}
	return names
}

// readRedisPassword reads the password from its file or variable. Faults do not quote it.
func (l *loader) readRedisPassword() {
	r := &l.config.Redis
	var password, name string
	switch {
	case r.PasswordFile != "" && r.PasswordEnv != "":
		l.fault(l.place("redis-password-file"), "cannot be used with %s; remove one", l.place("redis-password-env"))
		return
	case r.PasswordFile != "":
		name = "redis-password-file"
		data := l.checkSecretFile(name, r.PasswordFile, maxSecretBytes, "")
		if data == nil {
			return
		}
		if password = strings.TrimRight(string(data), "\r\n"); password == "" {
			l.fault(l.place(name), "names an empty file")
			return
		}
		r.Password.file = r.PasswordFile
	case r.PasswordEnv != "":
		name = "redis-password-env"
		if password = l.variable(r.PasswordEnv); password == "" {
			l.fault(l.place(name), "names a variable that is empty or not set in the server's environment")
			return
		}
		r.Password.env = r.PasswordEnv
	default:
		return
	}
	r.Password.text = &password
}

// checkRedisTLS checks the files of TLS for Redis.
func (l *loader) checkRedisTLS() {
	r := &l.config.Redis
	if (r.CertFile == "") != (r.KeyFile == "") {
		for _, pair := range [][2]string{{"redis-cert-file", "redis-key-file"}, {"redis-key-file", "redis-cert-file"}} {
			if l.setting(pair[0]).String() != "" {
				l.fault(l.place(pair[0]), "needs --%s", pair[1])
			}
		}
		return
	}
	first := "redis-ca-file"
	if r.CAFile == "" {
		first = "redis-cert-file"
	}
	if r.CAFile == "" && r.CertFile == "" || r.URL == "" {
		return
	}
	if !redisstore.HasTLS(r.URL) {
		l.fault(l.place(first), "needs TLS; use a --redis-url that begins with rediss")
		return
	}
	if r.CAFile != "" {
		if _, err := secretfile.Read(r.CAFile, secretfile.MaxPEMBytes); err != nil {
			l.fault(l.place("redis-ca-file"), "%v", err)
			return
		}
	}
	if r.KeyFile != "" && l.checkSecretFile("redis-key-file", r.KeyFile, secretfile.MaxPEMBytes, "") == nil {
		return
	}
	if _, err := redisstore.ParseURL(r.URL, r.Access()); err != nil {
		l.fault(l.place("redis-url"), "%v", err)
	}
}
