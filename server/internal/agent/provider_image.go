package agent

import (
	"mime"
	"strings"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// IsImage reports whether a provider can fetch the attachment and show it to a model as an
// image: a JPEG, PNG, GIF or WebP at a URL of http or https. A provider refuses the whole
// conversation for another one.
func IsImage(attachment *parleyv1.Attachment) bool {
	switch webMedia(attachment) {
	case "image/jpeg", "image/jpg", "image/png", "image/gif", "image/webp":
		return true
	}
	return false
}

// IsPDF reports whether a provider can fetch the attachment and it is a PDF document.
func IsPDF(attachment *parleyv1.Attachment) bool { return webMedia(attachment) == "application/pdf" }

// webMedia is the media type of what is at a URL of http or https, in lower case and without
// parameters; empty: it is elsewhere, or nobody knows what it is.
func webMedia(attachment *parleyv1.Attachment) string {
	scheme, _, found := strings.Cut(attachment.GetUri(), "://")
	if !found || !strings.EqualFold(scheme, "https") && !strings.EqualFold(scheme, "http") {
		return ""
	}
	media, _, err := mime.ParseMediaType(attachment.GetMediaType())
	if err != nil {
		return ""
	}
	return media
}
