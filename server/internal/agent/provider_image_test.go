package agent_test

import (
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

func TestIsImage(t *testing.T) {
	for _, test := range []struct {
		uri, media string
		image, pdf bool
	}{
		{"https://h/a", "image/png", true, false},
		{"HTTP://h/a", "IMAGE/JPEG; q=1", true, false},
		{"https://h/a", "image/jpg", true, false},
		{"https://h/a", "image/gif", true, false},
		{"https://h/a", "image/webp", true, false},
		{"https://h/a", "image/svg+xml", false, false},
		{"https://h/a", "image/", false, false},
		{"https://h/a", "", false, false},
		{"https://h/a", "application/pdf", false, true},
		{"s3://h/a", "image/png", false, false},
		{"s3://h/a", "application/pdf", false, false},
		{"data:image/png;base64,AAAA", "image/png", false, false},
		{"httpx", "image/png", false, false},
	} {
		attachment := &parleyv1.Attachment{Uri: test.uri, MediaType: test.media}
		if image, pdf := agent.IsImage(attachment), agent.IsPDF(attachment); image != test.image || pdf != test.pdf {
			t.Errorf("IsImage, IsPDF of %v = %v, %v, want %v, %v", attachment, image, pdf, test.image, test.pdf)
		}
	}
}
