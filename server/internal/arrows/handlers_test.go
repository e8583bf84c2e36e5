package arrows

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// maxHandlerLines is the maximum length of a gRPC handler, from "func" to the closing brace. A longer
// handler does work that belongs to another package or function.
const maxHandlerLines = 20

const handlerPackage = "server/internal/rpc"

// handlerNames returns the names of all methods of the services.
func handlerNames() map[string]bool {
	names := make(map[string]bool)
	for _, file := range []protoreflect.FileDescriptor{
		parleyv1.File_parley_v1_conversation_service_proto,
		parleyv1.File_parley_v1_record_service_proto,
		parleyv1.File_parley_v1_interaction_log_service_proto,
		parleyv1.File_parley_v1_admin_service_proto,
	} {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for k := range methods.Len() {
				names[string(methods.Get(k).Name())] = true
			}
		}
	}
	return names
}

// handlerFaults returns a fault for each handler in a Go file that is too long, and the number of
// handlers.
func handlerFaults(name string, source []byte) (faults []string, handlers int) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, source, parser.SkipObjectResolution)
	if err != nil {
		return []string{err.Error()}, 0
	}
	names := handlerNames()
	for _, declaration := range file.Decls {
		f, ok := declaration.(*ast.FuncDecl)
		if !ok || f.Recv == nil || !names[f.Name.Name] {
			continue
		}
		handlers++
		lines := files.Position(f.End()).Line - files.Position(f.Type.Func).Line + 1
		if lines > maxHandlerLines {
			faults = append(
				faults,
				fmt.Sprintf("%s: handler %s has %d lines, at most %d", name, f.Name.Name, lines, maxHandlerLines),
			)
		}
	}
	return faults, handlers
}

func TestHandlersAreShort(t *testing.T) {
	total := 0
	for name, source := range readFiles(t) {
		if path.Dir(name) != handlerPackage || strings.HasSuffix(name, "_test.go") {
			continue
		}
		faults, handlers := handlerFaults(name, source)
		total += handlers
		for _, fault := range faults {
			t.Error(fault)
		}
	}
	if want := len(handlerNames()); total != want {
		t.Errorf("found %d handlers in %s, want %d", total, handlerPackage, want)
	}
}

// TestHandlerFaults checks a handler at the limit and one that is too long.
func TestHandlerFaults(t *testing.T) {
	handler := func(lines int) []byte {
		return []byte(
			"package rpc\n\n// Chat chats.\nfunc (s *Server) Chat() {\n" + strings.Repeat("\t_ = 1\n", lines-2) + "}\n",
		)
	}
	for lines, want := range map[int][]string{
		maxHandlerLines:     nil,
		maxHandlerLines + 1: {"a.go: handler Chat has 21 lines, at most 20"},
	} {
		got, handlers := handlerFaults("a.go", handler(lines))
		if diff := cmp.Diff(want, got); diff != "" || handlers != 1 {
			t.Errorf("%d lines: %d handlers, faults (-want +got):\n%s", lines, handlers, diff)
		}
	}
}
