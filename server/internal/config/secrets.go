package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxSecretBytes is what a secret may have, a line feed at the end of its file included.
const maxSecretBytes = 16 * kib

// Secret is text that nobody may see: a key, or a header's value, which may be one.
type Secret struct {
	env  string // names the variable that holds it; empty: none does
	file string // is the path of the file that holds it; empty: none does

	// fmt calls no method of what an unexported field holds, but follows no pointer there
	// either: with all of a config printed the text is still not seen.
	text *string // nil: there is none
}

// Reveal returns the text in the clear, empty if there is none. It is for those who send it.
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

// printed says where the text is, in the form that headers have in the file.
func (s Secret) printed() any {
	switch {
	case s.env != "":
		return map[string]any{"env": s.env}
	case s.file != "":
		return map[string]any{"file": s.file}
	}
	return "[set]"
}

// keyText accepts what an API key may be. The error does not quote it.
func keyText(s string) error {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return fmt.Errorf("holds what no key has, a blank, a control character or one beyond ASCII, in byte %d", i+1)
		}
	}
	return nil
}

// headerText accepts what a header's value may be. The error does not quote it.
func headerText(s string) error {
	if strings.Trim(s, " ") != s {
		return errors.New("begins or ends with a blank, which a header's value cannot")
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return fmt.Errorf("holds what a header's value cannot, a control character or one beyond ASCII, in byte %d", i+1)
		}
	}
	return nil
}

// secretIn keeps a text in target. Faults quote nothing of it.
func (f *file) secretIn(target *Secret, accept func(string) error) field {
	return func(key string, n *yaml.Node) {
		var literal string
		f.value(text(&literal, "", 1, maxSecretBytes, ""))(key, n)
		f.keep(key, n, target, Secret{text: &literal}, accept)
	}
}

// secretFromEnv reads the name of a variable, and what that holds into target. Faults quote
// neither: the name may be a key that was put in the wrong place.
func (f *file) secretFromEnv(target *Secret, accept func(string) error) field {
	return func(key string, n *yaml.Node) {
		var name string
		f.value(variableName(&name))(key, n)
		if name == "" {
			return // value has said why
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
			f.keep(key, n, target, Secret{env: name, text: &held}, accept)
		}
	}
}

// secretFromFile reads the path of a file, and what that holds into target, without line
// feeds at the end. Faults quote neither, as those of secretFromEnv do not.
func (f *file) secretFromFile(target *Secret, accept func(string) error) field {
	return func(key string, n *yaml.Node) {
		path, data := f.contents(key, n, maxSecretBytes)
		if data == nil {
			return
		}
		held := strings.TrimRight(string(data), "\r\n")
		if held == "" {
			f.fault(key, n, "names a file with nothing in it")
			return
		}
		f.warnReadable(key, n, path)
		f.keep(key, n, target, Secret{file: path, text: &held}, accept)
	}
}

// keep puts s into target unless its text is not acceptable.
func (f *file) keep(key string, n *yaml.Node, target *Secret, s Secret, accept func(string) error) {
	if err := accept(s.Reveal()); err != nil {
		f.fault(key, n, "%v", err)
		return
	}
	*target = s
}

// contents reads a path, and the file of that path, which has at most so many bytes. After
// a fault the data is nil.
func (f *file) contents(key string, n *yaml.Node, most int) (path string, data []byte) {
	f.value(text(&path, "", 1, 4*kib, ""))(key, n)
	if path == "" {
		return "", nil // value has said why
	}
	data, err := readRegular(path, most)
	if err != nil {
		f.fault(key, n, "%v", err)
		return path, nil
	}
	return path, data
}

// readRegular reads a file of at most so many bytes. Errors do not name it.
func readRegular(path string, most int) ([]byte, error) {
	unreadable := func(err error) error {
		if inPath, ok := errors.AsType[*fs.PathError](err); ok {
			err = inPath.Err
		}
		return fmt.Errorf("names a file that cannot be read: %w", err)
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, unreadable(err)
	case !info.Mode().IsRegular(): // To open a pipe would wait for one who writes.
		return nil, errors.New("must name a regular file")
	case info.Size() > int64(most):
		return nil, fmt.Errorf("names a file of more than %s", formatSize(int64(most)))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, unreadable(err)
	}
	return data, nil
}

// warnReadable warns of a file with a secret that other users may read or change. It is no
// fault: Docker and Kubernetes mount their secrets so.
func (f *file) warnReadable(key string, n *yaml.Node, path string) {
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
		f.warn(key, n, "file with a secret is open to other users", fmt.Sprintf("chmod 600 keeps them out; its mode is %#o", info.Mode().Perm()))
	}
}
