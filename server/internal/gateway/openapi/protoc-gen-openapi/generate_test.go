package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestGenerate(t *testing.T) {
	data := readHTTP(t)
	first, err := generated(t, data)
	if err != nil {
		t.Fatal(err)
	}
	second, err := generated(t, data)
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("second generate differs, error %v", err)
	}
}

func TestGenerateRefuses(t *testing.T) {
	data := readHTTP(t)
	for _, test := range []struct{ name, old, new, want string }{
		{
			"a call without a path", "selector: parley.v1.AdminService.GetStats", "selector: a.b.C",
			"parley.v1.AdminService: calls without a path: GetStats",
		},
		{"a path without a call", "  rules:", "  rules:\n    - {selector: a.b.C, get: /v1/c}", "paths without a call: a.b.C"},
		{
			"a call twice", "AdminService.GetStats", "AdminService.BackupStore",
			"parley.v1.AdminService.BackupStore: has two rules",
		},
		{"no method", "get: /v1/stats", "body: conversation", "parley.v1.AdminService.GetStats: has 0 paths, want 1"},
		{
			"two methods", "get: /v1/stats", "get: /v1/stats\n      put: /v1/stats",
			"parley.v1.AdminService.GetStats: has 2 paths, want 1",
		},
		{
			"a path twice", "get: /v1/stats", "get: /v1/agents",
			"ConversationService.ListAgents: get /v1/agents leads to two calls",
		},
		{"an unknown key", "get: /v1/stats", "head: /v1/stats", "field head not found"},
		{
			"an unknown field in a path", "get: /v1/stats", "get: /v1/stats/{a.b}",
			"/v1/stats/{a.b}: GetStatsRequest has no field a.b",
		},
		{"a pattern in a path", "{turn_id}/cancel", "{turn_id=turns/*}/cancel", "patterns in a path are not supported"},
		{
			"an unknown field as body", "body: conversation", "body: talk",
			"body: UpdateConversationRequest has no message talk",
		},
		{
			"a number as body", "body: conversation", "body: if_version",
			"body: UpdateConversationRequest has no message if_version",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			changed := strings.Replace(data, test.old, test.new, 1)
			if changed == data {
				t.Fatalf("%q is not in http.yaml", test.old)
			}
			if _, err := generated(t, changed); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("generate error = %v, want one with %s", err, test.want)
			}
		})
	}
}

func readHTTP(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../../../../../proto/parley/v1/http.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// generated runs the generator on the descriptors that are linked into the test, which have no
// comments.
func generated(t *testing.T, http string) ([]byte, error) {
	t.Helper()
	request := &pluginpb.CodeGeneratorRequest{}
	for _, file := range []protoreflect.FileDescriptor{
		parleyv1.File_parley_v1_admin_service_proto,
		parleyv1.File_parley_v1_agent_service_proto,
		parleyv1.File_parley_v1_conversation_service_proto,
		parleyv1.File_parley_v1_interaction_log_service_proto,
		parleyv1.File_parley_v1_record_service_proto,
	} {
		addFile(request, file)
		request.FileToGenerate = append(request.FileToGenerate, file.Path())
	}
	plugin, err := protogen.Options{}.New(request)
	if err != nil {
		t.Fatal(err)
	}
	paths, err := parseBindings([]byte(http))
	if err != nil {
		return nil, err
	}
	return generate(plugin.Files, paths)
}

// addFile adds a file after the files that it imports, in the order that protoc uses.
func addFile(request *pluginpb.CodeGeneratorRequest, file protoreflect.FileDescriptor) {
	added := func(f *descriptorpb.FileDescriptorProto) bool { return f.GetName() == file.Path() }
	if slices.ContainsFunc(request.ProtoFile, added) {
		return
	}
	for i := range file.Imports().Len() {
		addFile(request, file.Imports().Get(i).FileDescriptor)
	}
	converted := protodesc.ToFileDescriptorProto(file)
	if converted.GetOptions().GetGoPackage() == "" {
		converted.Options = &descriptorpb.FileOptions{GoPackage: new("example.com/x")}
	}
	request.ProtoFile = append(request.ProtoFile, converted)
}
