package rules

import (
	"fmt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Retentions says which fields of [parleyv1.Retention] a server forbids. The zero value forbids none.
type Retentions struct {
	ForbidKeepAll, ForbidNoExpiry, ForbidNoEviction bool
}

// RetentionError means that a server forbids a field of a retention.
type RetentionError struct {
	// Field is the name of the field in the proto: "keep_all".
	Field string
	// Flag is the flag that allows the field: "--allow-keep-all".
	Flag string
}

// Error returns the field and a remedy.
func (e *RetentionError) Error() string {
	return fmt.Sprintf("retention.%s is forbidden on this server; leave it false, or start the server with %s",
		e.Field, e.Flag)
}

// Check returns a RetentionError for the first field that is set and forbidden, or nil. A nil retention is allowed.
func (r Retentions) Check(of *parleyv1.Retention) error {
	switch {
	case r.ForbidKeepAll && of.GetKeepAll():
		return &RetentionError{Field: "keep_all", Flag: "--allow-keep-all"}
	case r.ForbidNoExpiry && of.GetNoExpiry():
		return &RetentionError{Field: "no_expiry", Flag: "--allow-no-expiry"}
	case r.ForbidNoEviction && of.GetNoEviction():
		return &RetentionError{Field: "no_eviction", Flag: "--allow-no-eviction"}
	}
	return nil
}
