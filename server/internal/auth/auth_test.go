package auth_test

import (
	"testing"

	"github.com/parleyhq/parley/server/internal/auth"
)

func TestAnonymous(t *testing.T) {
	if p := auth.Anonymous(); p.Tenant != auth.DefaultTenant || p.Tenant == "" || len(p.Roles) != 0 {
		t.Errorf("Anonymous() = %+v, want the default tenant and no roles", p)
	}
}
