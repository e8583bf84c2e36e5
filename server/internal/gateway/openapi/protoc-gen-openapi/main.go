// Command protoc-gen-openapi is a protoc plugin that generates openapi.json, an OpenAPI 3.1 document
// of the HTTP API. The document covers all services that have paths. The only parameter,
// grpc_api_configuration, is the file with the paths, as for protoc-gen-grpc-gateway. Comments become
// descriptions. Rules of protovalidate become keywords of JSON Schema if there is an equivalent.
//
// The project has its own plugin because existing plugins cannot describe this API: streams of plain
// replies as lines or events, resumption, and statuses. The plugin fails on input that it does not
// support. Start at generate.
package main

import (
	"flag"
	"fmt"
	"os"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	var flags flag.FlagSet
	configuration := flags.String("grpc_api_configuration", "", "file with the HTTP path of each call")
	protogen.Options{ParamFunc: flags.Set}.Run(func(plugin *protogen.Plugin) error {
		plugin.SupportedFeatures = uint64(pluginpb.CodeGeneratorResponse_FEATURE_PROTO3_OPTIONAL)
		data, err := os.ReadFile(*configuration)
		if err != nil {
			return fmt.Errorf("grpc_api_configuration: %w", err)
		}
		paths, err := parseBindings(data)
		if err != nil {
			return fmt.Errorf("%s: %w", *configuration, err)
		}
		encoded, err := generate(plugin.Files, paths)
		if err != nil {
			return err
		}
		_, err = plugin.NewGeneratedFile("openapi.json", "").Write(encoded)
		return err
	})
}
