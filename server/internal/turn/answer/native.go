package answer

import (
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules"
)

// NativeDropped is the key in the metadata of a message whose native form was left out. The value is the type of
// the native form.
const NativeDropped = "native_dropped"

// checkNative checks a native form.
func checkNative(n *parleyv1.Native) error {
	if !utf8.ValidString(n.GetType()) {
		return ruleError(rules.Fault{Field: "native.type", Rule: "is not valid UTF-8"})
	}
	return nil
}

// addNative sets the native form of the current message, or leaves it out if it has no value or does not fit. An
// answer must not fail for it.
func (a *Answer) addNative(n *parleyv1.Native) error {
	a.removeNative(a.current)
	delete(a.current.GetMetadata(), NativeDropped)
	size := proto.Size(n)
	if len(n.GetValue()) == 0 || a.bytes+size > a.limit || !a.currentOpen && len(a.messages) >= MaxMessages {
		markDropped(a.current, n.GetType())
		return nil
	}
	if err := a.openMessage(); err != nil {
		return err
	}
	a.current.Native = n
	a.bytes += size
	return nil
}

// fits reports whether the answer can grow by this number of bytes. If it cannot, fits leaves out all native forms
// first, because the other content is more important.
func (a *Answer) fits(size int) bool {
	if a.bytes+size > a.limit {
		for _, m := range a.messages {
			if n := m.GetNative(); n != nil {
				a.removeNative(m)
				markDropped(m, n.GetType())
			}
		}
	}
	return a.bytes+size <= a.limit
}

// removeNative removes the native form of a message, if it has one.
func (a *Answer) removeNative(m *parleyv1.Message) {
	if m.GetNative() == nil {
		return
	}
	a.bytes -= proto.Size(m.GetNative())
	m.Native = nil
}

// markDropped records that a native form of this type was left out.
func markDropped(m *parleyv1.Message, kind string) {
	if m.Metadata == nil {
		m.Metadata = make(map[string]string)
	}
	m.Metadata[NativeDropped] = kind
}
