package store

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
)

// tokenVersion leads every page token, so that a later form can be told apart.
const tokenVersion = 1

// SealToken makes a page token of a position in a list. Scope names the list: its tenant,
// filter, order. The token is opaque, not secret, and only good for the same scope.
func SealToken(position []byte, scope ...string) string {
	b := append([]byte{tokenVersion}, position...)
	b = binary.BigEndian.AppendUint32(b, tokenSum(b, scope))
	return base64.RawURLEncoding.EncodeToString(b)
}

// OpenToken returns the position in a token, or ErrPageToken when the token was not made
// by SealToken with the same scope.
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

// tokenSum is a checksum of a token and its scope. It finds mistakes, not forgers: a token
// gives its holder nothing that the list itself would not.
func tokenSum(body []byte, scope []string) uint32 {
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	_, _ = h.Write(body)
	for _, s := range scope {
		_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(s))))
		_, _ = h.Write([]byte(s))
	}
	return h.Sum32()
}
