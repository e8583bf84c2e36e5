package rules

// MaxGRPCBytes is the maximum encoded size of a request, of a reply and of an agent's piece: gRPC's
// default limit of a message that is received. Package client has the same limit.
const MaxGRPCBytes = 4 << 20

// Limits of the texts in an error, in bytes: as much as a person reads.
const (
	MaxTextBytes  = 512 // of the message
	MaxFieldBytes = 128 // of a Fault's Field
	MaxFaultBytes = 256 // of a Fault's Rule
)
