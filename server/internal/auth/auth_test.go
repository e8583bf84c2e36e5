package auth_test

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
)

// TestEveryMethodHasAccess checks that the table of access has a row for each method of the services that the server
// offers. parley.v1.AgentService is offered by agents.
func TestEveryMethodHasAccess(t *testing.T) {
	served := []string{"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"}
	file := parleyv1.File_parley_v1_conversation_service_proto
	protoregistry.GlobalFiles.RangeFilesByPackage(file.Package(), func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			if name := f.Services().Get(i).FullName(); name != "parley.v1.AgentService" {
				served = append(served, string(name))
			}
		}
		return true
	})
	if len(served) < 6 {
		t.Errorf("services = %v, want those of parley.v1, too", served)
	}
	for _, name := range served {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
		if err != nil {
			t.Fatal(err)
		}
		service, ok := d.(protoreflect.ServiceDescriptor)
		if !ok {
			t.Fatalf("%s is a %T, want a service", name, d)
		}
		methods := service.Methods()
		for i := range methods.Len() {
			method := "/" + name + "/" + string(methods.Get(i).Name())
			if _, ok := auth.AccessOf(method); !ok {
				t.Errorf("AccessOf(%q) = none, want a row in accessTable", method)
			}
		}
	}
}

func TestAnonymous(t *testing.T) {
	p := auth.Anonymous()
	if p.Tenant != auth.DefaultTenant || p.Tenant == "" || p.Role != auth.Admin || !p.AllTenants {
		t.Errorf("Anonymous() = %+v, want an admin of the default tenant and of the whole server", p)
	}
}
