package store

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
)

// tokenVersion is the first byte of every page token, so that a later format can be distinguished.
const tokenVersion = 1

// SealToken encodes a position in a list as a page token. Scope identifies the list: its tenant,
// filter and order. The token is opaque but not secret, and valid only for the same scope. It must
// survive restarts, so there is no key to encrypt it with: a position that contains a number of the
// complete store, such as that of a created conversation, can be read by its owner.
func SealToken(position []byte, scope ...string) string {
	b := append([]byte{tokenVersion}, position...)
	b = binary.BigEndian.AppendUint32(b, tokenSum(b, scope))
	return base64.RawURLEncoding.EncodeToString(b)
}

// OpenToken returns the position in a token. It returns ErrPageToken if the token was not made by
// SealToken with the same scope.
func OpenToken(token string, scope ...string) ([]byte, error) {
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) < 5 || b[0] != tokenVersion {
		return nil, ErrPageToken
	}
	body, sum := b[:len(b)-4], binary.BigEndian.Uint32(b[len(b)-4:])
	if tokenSum(body, scope) != sum {
		return nil, ErrPageToken
	}
	return body[1:], nil
}

// tokenSum returns a checksum of a token and its scope. It detects mistakes, not forgery: a forged
// token gives access to nothing that the list itself does not return.
func tokenSum(body []byte, scope []string) uint32 {
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	_, _ = h.Write(body)
	for _, s := range scope {
		_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(s))))
		_, _ = h.Write([]byte(s))
	}
	return h.Sum32()
}
