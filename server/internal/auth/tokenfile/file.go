package tokenfile

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/parleyhq/parley/server/internal/auth"
)

const (
	// fileVersion is the version of the format.
	fileVersion = "1"
	// MaxFileBytes is the maximum size of the file, about 60,000 tokens.
	MaxFileBytes = 16 << 20
	// maxNameBytes is the maximum length of a token's name.
	maxNameBytes = 128
	// never is the text of a time that does not come.
	never = "never"
	// forever is never in nanoseconds since 1970.
	forever = math.MaxInt64
)

const header = `# Tokens of the callers of parleyd. The commands "parleyd token create" and "parleyd token revoke"
# write this file; they drop other comments. It contains no token: sha256 is the hash of one.
# A running server reads the file again on SIGHUP.
`

// FaultsError contains all faults of a file. Each has its place, what is wrong and what to do.
type FaultsError struct {
	Faults []string // at least one; contains no secret
}

// Error returns the faults, one a line.
func (e *FaultsError) Error() string { return strings.Join(e.Faults, "\n") }

// List returns the tokens in the file path, in their order there. The error is a [*FaultsError] if the content or the
// permissions of the file have faults.
func List(path string) ([]Token, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, faultsOf("%v; use the path of a file that parleyd token create wrote", err)
	}
	defer file.Close() //nolint:errcheck // It was only read.
	return readFile(path, file)
}

// readFile checks the permissions of an open file and reads it.
func readFile(path string, file *os.File) ([]Token, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	switch {
	case !info.Mode().IsRegular():
		return nil, faultsOf("%s: is not a regular file; use the path of a file", path)
	case info.Mode().Perm()&0o077 != 0:
		return nil, faultsOf("%s: has mode %#o, so that others than its owner can access it; run: chmod 600 %s",
			path, info.Mode().Perm(), path)
	case info.Size() > MaxFileBytes:
		return nil, faultsOf("%s: has %d bytes, at most %d are allowed; revoke tokens that have expired",
			path, info.Size(), MaxFileBytes)
	}
	data, err := io.ReadAll(io.LimitReader(file, MaxFileBytes))
	if err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	return parse(path, data)
}

func faultsOf(format string, args ...any) error {
	return &FaultsError{Faults: []string{fmt.Sprintf(format, args...)}}
}

// parse returns the tokens in data. path is the file's name in faults.
func parse(path string, data []byte) ([]Token, error) {
	p := parser{path: path, ids: map[string]int{}, hashes: map[string]int{}}
	var document, second yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	err := decoder.Decode(&document)
	switch {
	case errors.Is(err, io.EOF):
		p.fault(1, "is empty; write a token with parleyd token create to a new file")
	case err != nil:
		p.faults = append(p.faults, fmt.Sprintf("%s: %s", path, strings.TrimPrefix(err.Error(), "yaml: ")))
	case !errors.Is(decoder.Decode(&second), io.EOF):
		p.fault(1, "has more than one document; keep one")
	default:
		p.document(document.Content[0])
	}
	if len(p.faults) > 0 {
		return nil, &FaultsError{Faults: p.faults}
	}
	return p.tokens, nil
}

// parser reads the nodes of a file and collects faults.
type parser struct {
	path        string
	tokens      []Token
	faults      []string
	ids, hashes map[string]int // lines
}

func (p *parser) fault(line int, format string, args ...any) {
	p.faults = append(p.faults, fmt.Sprintf("%s:%d: ", p.path, line)+fmt.Sprintf(format, args...))
}

func (p *parser) document(n *yaml.Node) {
	fields := p.fields(n, "version", "tokens")
	switch version := fields["version"]; {
	case n.Kind != yaml.MappingNode:
		return
	case version == nil:
		p.fault(n.Line, "version is missing; write version: %s", fileVersion)
		return
	case version.Value != fileVersion:
		p.fault(version.Line, "version is %.80q, this program reads version %s; use the program that wrote the file",
			version.Value, fileVersion)
		return
	}
	list := fields["tokens"]
	switch {
	case list == nil:
		p.fault(n.Line, "tokens is missing; write tokens: [] for none")
	case list.Kind != yaml.SequenceNode:
		p.fault(list.Line, "tokens must be a list")
	default:
		for _, item := range list.Content {
			p.token(item)
		}
	}
}

// token reads one item of the list.
func (p *parser) token(n *yaml.Node) {
	before := len(p.faults)
	fields := p.fields(n, "id", "sha256", "tenants", "role", "name", "created", "expires")
	if len(p.faults) > before {
		return
	}
	t := Token{Tenants: p.tenants(n.Line, fields["tenants"])}
	read := func(name string, set func(text string) error) {
		value := fields[name]
		if value == nil {
			if name != "name" {
				p.fault(n.Line, "%s is missing; add it, or delete the token and create another", name)
			}
			return
		}
		err := errors.New("must be one value, not a list or a mapping")
		if value.Kind == yaml.ScalarNode {
			err = set(value.Value)
		}
		if err != nil {
			p.fault(value.Line, "%s: %v", name, err)
		}
	}
	read("id", func(text string) (err error) { t.ID, err = text, p.unique(p.ids, checkID(text), text, n); return err })
	read("sha256", func(text string) error {
		hash, err := hex.DecodeString(text)
		if err != nil || copy(t.Hash[:], hash) != len(hash) || len(hash) < len(t.Hash) {
			// The text is not quoted: it may be a token by mistake.
			return fmt.Errorf("must be %d hexadecimal digits, the SHA-256 of a token", 2*len(t.Hash))
		}
		return p.unique(p.hashes, nil, hex.EncodeToString(hash), n)
	})
	read("role", func(text string) (err error) { t.Role, err = auth.ParseRole(text); return err })
	read("name", func(text string) error { t.Name = text; return CheckName(text) })
	read("created", func(text string) (err error) { t.Created, err = parseTime(text); return err })
	read("expires", func(text string) (err error) {
		if text != never {
			t.Expires, err = parseTime(text)
		}
		return err
	})
	p.tokens = append(p.tokens, t)
}

// unique returns err, or an error if a text was in an earlier token.
func (p *parser) unique(lines map[string]int, err error, text string, n *yaml.Node) error {
	if line, twice := lines[text]; twice && err == nil {
		return fmt.Errorf("is also that of the token in line %d; delete one of them", line)
	}
	lines[text] = n.Line
	return err
}

// tenants returns the tenants of a token that starts at line.
func (p *parser) tenants(line int, n *yaml.Node) []string {
	if n == nil {
		p.fault(line, "tenants is missing; write a list, as in [acme], or [\"*\"] for all")
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		p.fault(n.Line, "tenants must be a list, as in [acme], or [\"*\"] for all")
		return nil
	}
	names := make([]string, 0, len(n.Content))
	for _, item := range n.Content {
		if item.Kind != yaml.ScalarNode {
			p.fault(item.Line, "tenants must be a list of names")
			return nil
		}
		names = append(names, item.Value)
	}
	if err := auth.CheckTenants(names); err != nil {
		p.fault(n.Line, "tenants: %v", err)
	}
	return names
}

// fields returns the values of a mapping with the known keys.
func (p *parser) fields(n *yaml.Node, known ...string) map[string]*yaml.Node {
	if n.Kind != yaml.MappingNode {
		p.fault(n.Line, "must be a mapping with the keys %s", strings.Join(known, ", "))
		return nil
	}
	fields := make(map[string]*yaml.Node, len(known))
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch {
		case !slices.Contains(known, key.Value):
			p.fault(key.Line, "unknown key %.80q; the keys are %s", key.Value, strings.Join(known, ", "))
		case fields[key.Value] != nil:
			p.fault(key.Line, "key %s is set twice; delete one of them", key.Value)
		default:
			fields[key.Value] = value
		}
	}
	return fields
}

// CheckName returns an error if a token cannot have the name.
func CheckName(name string) error {
	control := func(r rune) bool { return !unicode.IsPrint(r) }
	if len(name) > maxNameBytes || !utf8.ValidString(name) || strings.ContainsFunc(name, control) {
		return fmt.Errorf("use at most %d bytes of printable text", maxNameBytes)
	}
	return nil
}

func checkID(id string) error {
	if len(id) != idLength || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return fmt.Errorf("%.80q is not an id; use %d lower-case letters and digits", id, idLength)
	}
	return nil
}

func parseTime(text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || t.Year() < 1970 || t.Year() > 2200 {
		return time.Time{}, fmt.Errorf("%.80q is not a time from 1970 to 2200; write it as in 2026-12-24T18:00:00Z", text)
	}
	return t.UTC(), nil
}

// format returns the content of a file with the tokens.
func format(tokens []Token) ([]byte, error) {
	type line struct {
		ID      string   `yaml:"id"`
		SHA256  string   `yaml:"sha256"`
		Tenants []string `yaml:"tenants,flow"`
		Role    string   `yaml:"role"`
		Name    string   `yaml:"name,omitempty"`
		Created string   `yaml:"created"`
		Expires string   `yaml:"expires"`
	}
	content := struct {
		Version int    `yaml:"version"`
		Tokens  []line `yaml:"tokens"`
	}{Version: 1, Tokens: []line{}}
	for _, t := range tokens {
		content.Tokens = append(content.Tokens, line{
			t.ID, hex.EncodeToString(t.Hash[:]), t.Tenants, t.Role.String(), t.Name,
			t.Created.Format(time.RFC3339), ExpiryText(t.Expires),
		})
	}
	var b bytes.Buffer
	b.WriteString(header)
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	err := cmp.Or(encoder.Encode(content), encoder.Close())
	if err == nil && b.Len() > MaxFileBytes {
		err = fmt.Errorf("it would have %d bytes, at most %d are allowed; revoke tokens that have expired",
			b.Len(), MaxFileBytes)
	}
	return b.Bytes(), err
}

// ExpiryText returns the text of a token's expiry, "never" if it is zero.
func ExpiryText(expires time.Time) string {
	if expires.IsZero() {
		return never
	}
	return expires.UTC().Format(time.RFC3339)
}
