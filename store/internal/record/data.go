package record

import (
	"bytes"
	"maps"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// Data is an index of the structured data of the retained messages: the field data of
// storev1.Header in wire form, oldest message first, each type once a message. It may be as large
// as the messages, so a write appends to its end and cuts its beginning without decoding it.

var (
	dataField     = store.FieldNumber(new(storev1.Header), "data")
	sequenceField = store.FieldNumber(new(storev1.DataUse), "sequence")
	typeField     = store.FieldNumber(new(storev1.DataUse), "type")
	countField    = store.FieldNumber(new(storev1.DataUse), "count")
)

// appendUse appends an entry to an index: the message has data of that type.
func appendUse(data []byte, sequence int32, kind string) []byte {
	number, size := uint64(sequence), 0
	size += protowire.SizeTag(sequenceField) + protowire.SizeVarint(number)
	size += protowire.SizeTag(typeField) + protowire.SizeBytes(len(kind))
	data = protowire.AppendTag(data, dataField, protowire.BytesType)
	data = protowire.AppendVarint(data, uint64(size))
	data = protowire.AppendVarint(protowire.AppendTag(data, sequenceField, protowire.VarintType), number)
	return protowire.AppendString(protowire.AppendTag(data, typeField, protowire.BytesType), kind)
}

// decodeUse decodes an entry of an index. Fields that the entry lacks are zero.
func decodeUse(entry []byte) (sequence int32, kind []byte) {
	for number, whole := range fields(itemOf(entry)) {
		switch number {
		case sequenceField:
			v, _ := protowire.ConsumeVarint(whole[protowire.SizeTag(number):])
			sequence = int32(v)
		case typeField:
			kind = itemOf(whole)
		}
	}
	return sequence, kind
}

// typesIn returns how many bytes at the beginning of an index are entries with a count, see Record.Types.
func typesIn(data []byte) int {
	n := 0
	for _, entry := range fields(data) {
		if sequence, _ := decodeUse(entry); sequence != 0 {
			break
		}
		n += len(entry)
	}
	return n
}

// TypesOf returns the types, see Record.Types, of chunks without the messages before a sequence.
func TypesOf(chunks []*Chunk, first int32) []byte {
	var data []byte
	for _, c := range chunks {
		data = append(data, c.Data[dataBefore(c.Data, first):]...)
	}
	return addTypes(nil, data, 1)
}

// maxTypes is the maximum number of types that are counted: every write of a conversation decodes and encodes them.
// Without it, an append to a conversation with 200,000 types took 22 ms.
const maxTypes = 1000

// uncounted is a type that no message has. Its entry in Record.Types says that there may be types that are not counted.
const uncounted = ""

// CountsAll reports whether Types has all types of the messages in chunks.
func (r *Record) CountsAll() bool {
	for _, entry := range fields(r.Types) { // They are sorted.
		_, kind := decodeCount(entry)
		return kind != uncounted
	}
	return true
}

// addTypes returns types, see Record.Types, with the messages of an index. If sign is -1, it subtracts them. Types
// above maxTypes are not counted.
func addTypes(types, data []byte, sign int) []byte {
	if len(data) == 0 {
		return types
	}
	counts := map[string]int{}
	for _, entry := range fields(types) {
		count, kind := decodeCount(entry)
		counts[kind] += count
	}
	for _, entry := range fields(data) {
		_, kind := decodeUse(entry)
		if _, counted := counts[string(kind)]; !counted && (sign < 0 || len(counts) >= maxTypes) {
			if sign > 0 {
				counts[uncounted] = 1
			}
			continue
		}
		counts[string(kind)] += sign
	}
	var out []byte
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		if count := counts[kind]; count > 0 {
			out = appendCount(out, count, kind)
		}
	}
	return out
}

// appendCount appends an entry with a count to an index.
func appendCount(data []byte, count int, kind string) []byte {
	size := protowire.SizeTag(typeField) + protowire.SizeBytes(len(kind))
	size += protowire.SizeTag(countField) + protowire.SizeVarint(uint64(count))
	data = protowire.AppendTag(data, dataField, protowire.BytesType)
	data = protowire.AppendVarint(data, uint64(size))
	data = protowire.AppendString(protowire.AppendTag(data, typeField, protowire.BytesType), kind)
	return protowire.AppendVarint(protowire.AppendTag(data, countField, protowire.VarintType), uint64(count))
}

// decodeCount decodes an entry with a count.
func decodeCount(entry []byte) (count int, kind string) {
	for number, whole := range fields(itemOf(entry)) {
		switch number {
		case countField:
			v, _ := protowire.ConsumeVarint(whole[protowire.SizeTag(number):])
			count = int(v)
		case typeField:
			kind = string(itemOf(whole))
		}
	}
	return count, kind
}

// hasType reports whether an index has an entry with that type.
func hasType(data []byte, kind string) bool {
	if !bytes.Contains(data, []byte(kind)) {
		return false // This fast check avoids comparing each entry of most indexes.
	}
	for _, entry := range fields(data) {
		if _, t := decodeUse(entry); string(t) == kind {
			return true
		}
	}
	return false
}

// dataBefore returns how many bytes of an index belong to messages before that sequence.
func dataBefore(data []byte, sequence int32) int {
	n := 0
	for _, entry := range fields(data) {
		if of, _ := decodeUse(entry); of >= sequence {
			break
		}
		n += len(entry)
	}
	return n
}

// filterData returns the entries of an index that belong to the messages that a write keeps.
func filterData(data []byte, keeps func(sequence int32) bool) []byte {
	var kept []byte
	for _, entry := range fields(data) {
		if sequence, _ := decodeUse(entry); keeps(sequence) {
			kept = append(kept, entry...)
		}
	}
	return kept
}

// cutData removes the index from a header in wire form, where older versions stored it.
func cutData(header []byte) (rest, data []byte) {
	for number, whole := range fields(header) {
		if number == dataField {
			data = append(data, whole...)
		}
	}
	if data == nil {
		return header, nil
	}
	for number, whole := range fields(header) {
		if number != dataField {
			rest = append(rest, whole...)
		}
	}
	return rest, data
}

// indexMessage adds the types of a message's structured data to the index, and sets the preview.
func (r *Record) indexMessage(m *parleyv1.Message, types []string, sequence int32) {
	r.Header.Preview = preview(m.GetContent())
	for _, kind := range types {
		r.newData = appendUse(r.newData, sequence, kind)
	}
}

// dropData removes the entries of messages before the oldest retained one from the index.
func (r *Record) dropData() {
	if len(r.Data) == 0 && len(r.newData) == 0 {
		return
	}
	oldest := r.oldestSequence()
	r.Data = r.Data[dataBefore(r.Data, oldest):]
	r.newData = r.newData[dataBefore(r.newData, oldest):]
}
