package rules

import (
	"errors"
	"fmt"
	"reflect"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Parts of the estimate of a footprint, in bytes. TestFootprint compares the sums with measured allocations.
const (
	// growth is how many times its final memory a slice needs while it grows.
	growth = 3
	// mapEntryBytes is the memory of an entry of a map with its share of the growth.
	// firstEntryBytes is added for the first entry of a map.
	mapEntryBytes, firstEntryBytes = 96, 320
	// wrapperBytes is the memory of a value that has a pointer of its own: the wrapper of a oneof, or an optional scalar.
	wrapperBytes = 16
	// pointerBytes, stringBytes, sliceBytes are the sizes of an element of a slice.
	pointerBytes, stringBytes, sliceBytes = 8, 16, 24
)

// Faults of encoded messages.
var (
	// ErrMalformed means that bytes are not an encoded message of the expected type.
	ErrMalformed = errors.New("not a valid message")
	// ErrTooManyValues means that a message needs more than MaxDecodedBytes in decoded form.
	ErrTooManyValues = errors.New("too many values")
)

// TooDeepError means that the messages in a message are nested more than MaxDepth deep.
type TooDeepError struct {
	// Field is the path of the field that contains them, up to a field of a type of another package, such as
	// [structpb.Value]: "messages[1].structured_data[0].value".
	Field string
}

// Error returns the field and the limit.
func (e *TooDeepError) Error() string {
	return fmt.Sprintf("%s: is more than %d levels deep", e.Field, MaxDepth)
}

// shape describes a message type: how many bytes a decoded message of this type needs.
type shape struct {
	bytes  int64
	isOurs bool // the type is one of Parley's
	fields map[protowire.Number]*fieldShape
}

// fieldShape describes a field: how many bytes each of its values needs.
type fieldShape struct {
	name    protoreflect.Name
	isList  bool
	bytes   int64
	perByte int64  // for each byte of a length-delimited value that is not a message
	message *shape // nil if values are not messages
	isMap   bool
}

// newShape returns the shape of m's type. known has the shapes of types that contain m.
func newShape(m protoreflect.Message, known map[protoreflect.FullName]*shape) *shape {
	descriptor := m.Descriptor()
	if s := known[descriptor.FullName()]; s != nil {
		return s
	}
	s := &shape{
		bytes:  allocated(int64(reflect.TypeOf(m.Interface()).Elem().Size())),
		isOurs: descriptor.FullName().Parent() == "parley.v1",
		fields: make(map[protowire.Number]*fieldShape),
	}
	known[descriptor.FullName()] = s
	for i := range descriptor.Fields().Len() {
		field := descriptor.Fields().Get(i)
		f := newFieldShape(m, field, known)
		f.name, f.isList = field.Name(), field.IsList()
		s.fields[field.Number()] = f
	}
	return s
}

func newFieldShape(
	m protoreflect.Message, field protoreflect.FieldDescriptor, known map[protoreflect.FullName]*shape,
) *fieldShape {
	switch {
	case field.IsMap():
		entry := &shape{bytes: mapEntryBytes, fields: map[protowire.Number]*fieldShape{
			field.MapKey().Number():   newScalarShape(field.MapKey(), 0),
			field.MapValue().Number(): newScalarShape(field.MapValue(), 0),
		}}
		if field.MapValue().Message() != nil {
			value := newShape(m.NewField(field).Map().NewValue().Message(), known)
			entry.fields[field.MapValue().Number()] = &fieldShape{message: value}
		}
		return &fieldShape{message: entry, isMap: true}
	case field.Message() != nil && field.IsList():
		return &fieldShape{
			bytes: growth * pointerBytes, message: newShape(m.NewField(field).List().NewElement().Message(), known),
		}
	case field.Message() != nil:
		f := &fieldShape{message: newShape(m.NewField(field).Message(), known)}
		if field.ContainingOneof() != nil {
			f.bytes = wrapperBytes
		}
		return f
	case field.IsList():
		return newScalarShape(field, growth)
	}
	f := newScalarShape(field, 0)
	if field.HasPresence() {
		f.bytes += wrapperBytes
	}
	return f
}

// newScalarShape returns the shape of a field whose values are not messages. copies is how many times
// the memory of an element the slice that contains it needs. It is 0 for a field that is not a list.
func newScalarShape(field protoreflect.FieldDescriptor, copies int64) *fieldShape {
	switch field.Kind() {
	case protoreflect.StringKind:
		return &fieldShape{bytes: copies * stringBytes, perByte: 1}
	case protoreflect.BytesKind:
		return &fieldShape{bytes: copies * sliceBytes, perByte: 1}
	default: // In a packed list, each byte can be a value.
		return &fieldShape{bytes: copies * pointerBytes, perByte: copies * pointerBytes}
	}
}

// allocated returns how many bytes the allocator uses for n bytes.
func allocated(n int64) int64 { return int64(cap(append([]byte(nil), make([]byte, n)...))) }

// footprint adds to total how many bytes the decoded form of b needs, where b is an encoded message of
// this shape. Fields that the shape does not have need nothing, since [Unmarshal] drops them.
func (s *shape) footprint(b []byte, depth int, total *int64) error {
	if *total += s.bytes; *total > MaxDecodedBytes {
		return ErrTooManyValues
	}
	if depth == 0 {
		return new(TooDeepError)
	}
	message, hasEntry := b, false
	for len(b) > 0 {
		number, wireType, n := protowire.ConsumeTag(b)
		if n < 0 {
			return ErrMalformed
		}
		b = b[n:]
		field := s.fields[number]
		if wireType != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, wireType, b); n < 0 {
				return ErrMalformed
			}
			b = b[n:]
			if field != nil {
				*total += field.bytes
			}
			continue
		}
		value, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return ErrMalformed
		}
		b = b[n:]
		if field == nil {
			continue
		}
		*total += field.bytes
		if field.message == nil {
			*total += field.perByte * int64(len(value))
			continue
		}
		if field.isMap && !hasEntry {
			hasEntry = true
			*total += firstEntryBytes
		}
		if err := field.message.footprint(value, depth-1, total); err != nil {
			if deep, ok := errors.AsType[*TooDeepError](err); ok && s.isOurs {
				deep.addField(field, number, message[:len(message)-len(b)-len(value)])
			}
			return err
		}
	}
	return nil
}

// addField puts a field before the path. before is the encoded message up to the field's value.
func (e *TooDeepError) addField(field *fieldShape, number protowire.Number, before []byte) {
	name := string(field.name)
	if field.isList {
		index := -1 // The tag of the value itself is in before.
		for len(before) > 0 {
			other, wireType, n := protowire.ConsumeTag(before)
			if n < 0 {
				break
			}
			if other == number {
				index++
			}
			before = before[n:]
			if n = protowire.ConsumeFieldValue(other, wireType, before); n < 0 {
				break // It is the value itself.
			}
			before = before[n:]
		}
		name = fmt.Sprintf("%s[%d]", name, index)
	}
	if e.Field != "" {
		name += "." + e.Field
	}
	e.Field = name
}
