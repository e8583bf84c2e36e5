package main

import (
	"bytes"
	"encoding/json"
)

// The types of an OpenAPI document, with the fields that are used. Maps are written sorted by key.

type document struct {
	OpenAPI    string                           `json:"openapi"`
	Info       info                             `json:"info"`
	Tags       []tag                            `json:"tags"`
	Paths      map[string]map[string]*operation `json:"paths"`
	Components components                       `json:"components"`
}

type info struct {
	Title       string            `json:"title"`
	Description string            `json:"description"`
	License     map[string]string `json:"license"`
	Version     string            `json:"version"`
}

type tag struct {
	Name        string `json:"name"`
	Description string `json:"description"`
}

type components struct {
	Schemas   map[string]*schema   `json:"schemas"`
	Responses map[string]*response `json:"responses"`
	Headers   map[string]*header   `json:"headers"`
}

type operation struct {
	OperationID string               `json:"operationId"`
	Tags        []string             `json:"tags"`
	Summary     string               `json:"summary"`
	Description string               `json:"description,omitempty"`
	Parameters  []*parameter         `json:"parameters,omitempty"`
	RequestBody *body                `json:"requestBody,omitempty"`
	Responses   map[string]*response `json:"responses"`
}

type parameter struct {
	Name        string  `json:"name"`
	In          string  `json:"in"`
	Description string  `json:"description"`
	Required    bool    `json:"required,omitempty"`
	Style       string  `json:"style,omitempty"`
	Explode     bool    `json:"explode,omitempty"`
	Schema      *schema `json:"schema"`
}

type body struct {
	Description string  `json:"description,omitempty"`
	Required    bool    `json:"required"`
	Content     content `json:"content"`
}

type response struct {
	Ref         string             `json:"$ref,omitempty"`
	Description string             `json:"description,omitempty"`
	Headers     map[string]*header `json:"headers,omitempty"`
	Content     content            `json:"content,omitempty"`
}

type header struct {
	Ref         string  `json:"$ref,omitempty"`
	Description string  `json:"description,omitempty"`
	Schema      *schema `json:"schema,omitempty"`
}

// content maps media types to the schemas of a body.
type content map[string]mediaType

type mediaType struct {
	Schema *schema `json:"schema"`
}

// schema is a JSON Schema. The zero value allows any JSON.
type schema struct {
	Ref                  string     `json:"$ref,omitempty"`
	Type                 string     `json:"type,omitempty"`
	Format               string     `json:"format,omitempty"`
	ContentEncoding      string     `json:"contentEncoding,omitempty"`
	Description          string     `json:"description,omitempty"`
	Enum                 []string   `json:"enum,omitempty"`
	Pattern              string     `json:"pattern,omitempty"`
	MinLength            uint64     `json:"minLength,omitempty"`
	MaxLength            uint64     `json:"maxLength,omitempty"`
	Minimum              *int32     `json:"minimum,omitempty"`
	Maximum              *int32     `json:"maximum,omitempty"`
	Items                *schema    `json:"items,omitempty"`
	MinItems             uint64     `json:"minItems,omitempty"`
	MaxItems             uint64     `json:"maxItems,omitempty"`
	Required             []string   `json:"required,omitempty"`
	Properties           properties `json:"properties,omitempty"`
	PropertyNames        *schema    `json:"propertyNames,omitempty"`
	AdditionalProperties *schema    `json:"additionalProperties,omitempty"`
	MaxProperties        uint64     `json:"maxProperties,omitempty"`
	AnyOf                []*schema  `json:"anyOf,omitempty"`
}

// properties are written in the order of the proto, which is chosen for readers.
type properties []property

type property struct {
	name   string
	schema *schema
}

// MarshalJSON returns the properties as an object.
func (p properties) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	separator := byte('{')
	for _, each := range p {
		name, err := encode(each.name, "")
		if err != nil {
			return nil, err
		}
		value, err := encode(each.schema, "")
		if err != nil {
			return nil, err
		}
		out.WriteByte(separator)
		out.Write(name)
		out.WriteByte(':')
		out.Write(value)
		separator = ','
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// encode works like json.Marshal, but does not escape "<", ">" and "&".
func encode(value any, indent string) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	err := encoder.Encode(value)
	return out.Bytes(), err
}

func schemaRef(name string) *schema {
	return &schema{Ref: "#/components/schemas/" + name}
}

func responseRef(name string) *response {
	return &response{Ref: "#/components/responses/" + name}
}
