package auth_test

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
)

// TestRolesOfPage checks that the table of roles in proto/README.md is the one that the server applies.
func TestRolesOfPage(t *testing.T) {
	page, err := os.ReadFile("../../../proto/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(page), "| role | calls |\n|---|---|\n")
	got, _, ended := strings.Cut(after, "\n\n")
	if !found || !ended {
		t.Fatal("proto/README.md has no table of roles")
	}
	if want := rolesTable(); got != want {
		t.Errorf("table of roles in proto/README.md = \n%s\nwant\n%s", got, want)
	}
}

// rolesTable returns the rows of the table, with the calls of each role in the order of the protos.
func rolesTable() string {
	calls := map[auth.Role][]string{}
	files := []protoreflect.FileDescriptor{}
	name := parleyv1.File_parley_v1_conversation_service_proto.Package()
	protoregistry.GlobalFiles.RangeFilesByPackage(name, func(f protoreflect.FileDescriptor) bool {
		files = append(files, f)
		return true
	})
	rank := func(f protoreflect.FileDescriptor) string { // The service of conversations first.
		return strings.Replace(path.Base(f.Path()), "conversation_service", "", 1)
	}
	slices.SortFunc(files, func(a, b protoreflect.FileDescriptor) int { return cmp.Compare(rank(a), rank(b)) })
	for _, f := range files {
		for s := range f.Services().Len() {
			methods := f.Services().Get(s).Methods()
			for m := range methods.Len() {
				method := methods.Get(m)
				access, known := auth.AccessOf(fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name()))
				switch text := string(method.Name()); {
				case !known: // a method of AgentService
				case access.WholeServer:
					calls[access.Role] = append(calls[access.Role], text+" ²")
				case access.AnyTenant:
					calls[access.Role] = append(calls[access.Role], text+" ¹")
				default:
					calls[access.Role] = append(calls[access.Role], text)
				}
			}
		}
	}
	var rows []string
	for _, role := range []auth.Role{auth.Reader, auth.Writer, auth.Admin} {
		text := strings.Join(calls[role], ", ")
		if role == auth.Reader {
			text += "; reflection ¹"
		}
		rows = append(rows, fmt.Sprintf("| %s | %s |", role, text))
	}
	return strings.Join(rows, "\n")
}
