package config

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/parleyhq/parley/server/internal/secretfile"
)

// maxSecretBytes is the maximum size of a secret, including a line feed at the end of its file.
const maxSecretBytes = 16 * kib

// Secret is a text that must not be printed or logged: an API key or the value of a header.
type Secret struct {
	env  string // name of the variable with the text; empty: none
	file string // path of the file with the text; empty: none

	// The unexported field is a pointer to the text. fmt neither calls methods of such a
	// field nor follows the pointer. The text stays hidden even if a config is printed.
	text *string // nil: no secret
}

// Reveal returns the text, empty if there is none. Call it only to send the text.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

func (s Secret) String() string { return "[redacted]" }

// GoString hides the text from the verb %#v.
func (s Secret) GoString() string { return s.String() }

// LogValue hides the text from logs.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// printed returns the source of the text, in the form of headers in the file.
func (s Secret) printed() any {
	switch {
	case s.env != "":
		return map[string]any{"env": s.env}
	case s.file != "":
		return map[string]any{"file": s.file}
	}
	return "[set]"
}

// keyText checks the characters of an API key. The error does not quote it.
func keyText(s string) error {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return fmt.Errorf("contains a character that no key has, "+
				"a space, a control character or one outside ASCII, at byte %d", i+1)
		}
	}
	return nil
}

// headerText checks the characters of a header value. The error does not quote it.
func headerText(s string) error {
	if strings.Trim(s, " ") != s {
		return errors.New("starts or ends with a space, which a header value cannot")
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return fmt.Errorf("contains a character that no header value has, "+
				"a control character or one outside ASCII, at byte %d", i+1)
		}
	}
	return nil
}

// secretLiteral returns a field that stores a text of the file in target. Faults do not quote it.
func (f *file) secretLiteral(target *Secret, accept func(string) error) field {
	return func(key string, n *yaml.Node) {
		var literal string
		f.value(text(&literal, "", 1, maxSecretBytes, ""))(key, n)
		f.setSecret(key, n, target, Secret{text: &literal}, accept)
	}
}

// secretFromEnv returns a field that reads the name of a variable and stores the value of that
// variable in target. Faults quote neither, because the name may be a key that was put there by
// mistake.
func (f *file) secretFromEnv(target *Secret, accept func(string) error) field {
	return func(key string, n *yaml.Node) {
		var name string
		f.value(variableName(&name))(key, n)
		if name == "" {
			return // The value has reported the fault.
		}
		held, found := f.loader.lookup(name)
		switch {
		case !found:
			f.fault(key, n, "names a variable that is not set in the server's environment")
		case held == "":
			f.fault(key, n, "names a variable that is empty in the server's environment")
		case len(held) > maxSecretBytes:
			f.fault(key, n, "names a variable of %d bytes, at most %d are allowed", len(held), maxSecretBytes)
		default:
			f.setSecret(key, n, target, Secret{env: name, text: &held}, accept)
		}
	}
}

// secretFromFile returns a field that reads the path of a file and stores the content of that file
// in target, without line feeds at the end. Faults quote neither, as in secretFromEnv.
func (f *file) secretFromFile(target *Secret, accept func(string) error) field {
	return func(key string, n *yaml.Node) {
		path, data := f.readPath(key, n, maxSecretBytes)
		if data == nil {
			return
		}
		held := strings.TrimRight(string(data), "\r\n")
		if held == "" {
			f.fault(key, n, "names an empty file")
			return
		}
		f.warnReadable(key, n, path)
		f.setSecret(key, n, target, Secret{file: path, text: &held}, accept)
	}
}

// setSecret sets target to s if the text is accepted.
func (f *file) setSecret(key string, n *yaml.Node, target *Secret, s Secret, accept func(string) error) {
	if err := accept(s.Reveal()); err != nil {
		f.fault(key, n, "%v", err)
		return
	}
	*target = s
}

// readPath reads a path and the content of its file, at most maximum bytes. After a fault the data
// is nil.
func (f *file) readPath(key string, n *yaml.Node, maximum int) (path string, data []byte) {
	f.value(text(&path, "", 1, 4*kib, ""))(key, n)
	if path == "" {
		return "", nil // The value has reported the fault.
	}
	data, err := secretfile.Read(path, maximum)
	if err != nil {
		f.fault(key, n, "%v", err)
		return path, nil
	}
	return path, data
}

// warnReadable adds a warning if other users can access a file with a secret. It is not a fault,
// because Docker and Kubernetes mount secrets this way.
func (f *file) warnReadable(key string, n *yaml.Node, path string) {
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
		f.warn(key, n, "file with a secret is accessible to other users",
			fmt.Sprintf("run chmod 600; its mode is %#o", info.Mode().Perm()))
	}
}

const (
	maxHeaders       = 64
	maxHeaderName    = 128
	headerAlphabet   = letters + digits + "!#$%&'*+-.^_`|~"
	metadataAlphabet = "abcdefghijklmnopqrstuvwxyz" + digits + "_.-"
)

// headers returns a field that reads the headers that agent a sends with every request. checkName
// returns what is wrong with a name in lower case, or "". Values may be secret, so faults quote none.
func (f *file) headers(a *Agent, checkName func(name string) string) field {
	return func(key string, n *yaml.Node) {
		a.Headers = map[string]Secret{}
		lines := map[string]int{}
		f.pairs(key, n, func(name, value *yaml.Node) {
			lower := strings.ToLower(name.Value)
			line, twice := lines[lower]
			lines[lower] = name.Line
			problem := checkName(lower)
			switch {
			case twice:
				problem = fmt.Sprintf("was already set in line %d; names are not case-sensitive", line)
			case len(lower) > maxHeaderName:
				problem = fmt.Sprintf("is too long; the maximum is %d", maxHeaderName)
			}
			if problem != "" {
				f.fault(key, name, "%.80q %s", name.Value, problem)
				return
			}
			var s Secret
			f.header(key+"."+name.Value, &s, value)
			a.Headers[name.Value] = s
		})
		if len(a.Headers) > maxHeaders {
			f.fault(key, n, "has %d headers, at most %d are allowed", len(a.Headers), maxHeaders)
		}
	}
}

// header reads the value of a header, or the variable or file that contains it.
func (f *file) header(key string, target *Secret, n *yaml.Node) {
	if n.Kind != yaml.MappingNode {
		f.secretLiteral(target, headerText)(key, n)
		return
	}
	f.mapping(key, n, map[string]field{
		"env":  f.secretFromEnv(target, headerText),
		"file": f.secretFromFile(target, headerText),
	})
	if (child(n, "env") == nil) == (child(n, "file") == nil) {
		f.fault(key, n, "must have exactly one of env and file, as in {env: NAME}")
	}
}
