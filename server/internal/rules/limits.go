package rules

// MaxGRPCBytes is the maximum encoded size of a request, of a reply and of an agent's piece: gRPC's
// default limit of a message that is received. Package client has the same limit.
const MaxGRPCBytes = 4 << 20

// MaxDecodedBytes is the maximum memory of a request or piece in decoded form. It is enough for any valid
// one: 4 MiB of the smallest values in structured data, null, need 104 MiB.
const MaxDecodedBytes = 128 << 20

// MaxDepth is the maximum nesting depth of the messages in a request or piece. The deepest structured
// data that is valid has three messages for each of its levels.
const MaxDepth = 100

// Limits of the texts in an error, in bytes: as much as a person reads.
const (
	MaxTextBytes  = 512 // of the message
	MaxFieldBytes = 128 // of a Fault's Field
	MaxFaultBytes = 256 // of a Fault's Rule
)
