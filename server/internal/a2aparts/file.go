package a2aparts

import (
	"encoding/base64"

	"github.com/a2aproject/a2a-go/v2/a2a"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TypeFile is the type of structured data that is a file: an object with url or raw, which is base64, and filename and
// mediaType if they are known.
const TypeFile = "a2a.file"

// Members of the data of a file.
const (
	urlField       = "url"
	rawField       = "raw"
	filenameField  = "filename"
	mediaTypeField = "mediaType"
)

// File returns the structured data of type [TypeFile] for a part, nil if the part is no file.
func File(p *a2a.Part) map[string]any {
	file := map[string]any{}
	switch content := p.Content.(type) {
	case a2a.URL:
		file[urlField] = string(content)
	case a2a.Raw:
		file[rawField] = base64.StdEncoding.EncodeToString(content)
	default:
		return nil
	}
	if p.Filename != "" {
		file[filenameField] = p.Filename
	}
	if p.MediaType != "" {
		file[mediaTypeField] = p.MediaType
	}
	return file
}

// OfAnswer returns a part for structured data of an answer. A file becomes a part with its URL or its bytes, and
// anything else is as in [OfData].
func OfAnswer(data *parleyv1.StructuredData) *a2a.Part {
	if data.GetType() == TypeFile {
		if part := ofFile(data.GetValue().AsInterface()); part != nil {
			return part
		}
	}
	return OfData(data)
}

// ofFile returns the part for a file, nil if the value has not the form of [TypeFile].
func ofFile(value any) *a2a.Part {
	file, isObject := value.(map[string]any)
	if !isObject {
		return nil
	}
	part, contents := new(a2a.Part), 0
	for name, member := range file {
		text, isText := member.(string)
		if !isText {
			return nil
		}
		switch name {
		case urlField:
			part.Content = a2a.URL(text)
			contents++
		case rawField:
			raw, err := base64.StdEncoding.DecodeString(text)
			if err != nil {
				return nil
			}
			part.Content = a2a.Raw(raw)
			contents++
		case filenameField:
			part.Filename = text
		case mediaTypeField:
			part.MediaType = text
		default:
			return nil
		}
	}
	if contents != 1 {
		return nil
	}
	return part
}
