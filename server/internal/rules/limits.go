package rules

// Limits of the texts in an error, in bytes: as much as a person reads.
const (
	MaxTextBytes  = 512 // of the message
	MaxFieldBytes = 128 // of a Fault's Field
	MaxFaultBytes = 256 // of a Fault's Rule
)
