package agent

import (
	"mime"
	"strings"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// IsImage reports whether a provider can fetch the attachment and show it to a model as an image: a
// JPEG, PNG, GIF or WebP at an http or https URL. For any other image, a provider refuses the complete
// conversation.
func IsImage(attachment *parleyv1.Attachment) bool {
	switch webMedia(attachment) {
	case "image/jpeg", "image/jpg", "image/png", "image/gif", "image/webp":
		return true
	}
	return false
}

// IsPDF reports whether the attachment is a PDF document that a provider can fetch.
func IsPDF(attachment *parleyv1.Attachment) bool { return webMedia(attachment) == "application/pdf" }

// webMedia returns the media type of an attachment at an http or https URL, in lower case and
// without parameters. It returns "" for other URLs and unknown media types.
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
