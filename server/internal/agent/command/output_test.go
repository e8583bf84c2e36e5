package command

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

func pipe(t *testing.T) (*output, *os.File) {
	t.Helper()
	o, w, err := newOutput()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		o.close()
		_ = w.Close()
	})
	return o, w
}

func TestOutputEndsWithTheLastWriter(t *testing.T) {
	o, w := pipe(t)
	go func() {
		_, _ = w.WriteString("all")
		_ = w.Close()
	}()
	if got, err := io.ReadAll(o); string(got) != "all" || err != nil {
		t.Errorf("ReadAll = %q, %v, want all", got, err)
	}
}

func TestOutputReadsTheRestAfterFinish(t *testing.T) {
	o, w := pipe(t)
	text := strings.Repeat("x", 60_000)
	if _, err := w.WriteString(text); err != nil {
		t.Fatal(err)
	}
	o.finish()
	if got, err := io.ReadAll(o); string(got) != text || err != nil {
		t.Errorf("ReadAll = %d of %d bytes, %v", len(got), len(text), err)
	}
}

func TestFinishWakesReader(t *testing.T) {
	o, _ := pipe(t)
	go o.finish()
	if got, err := io.ReadAll(o); len(got) != 0 || err != nil {
		t.Errorf("ReadAll = %q, %v, want nothing", got, err)
	}
}

func TestOutputEndsBeforeItsWriter(t *testing.T) {
	o, w := pipe(t)
	o.left = 10
	if _, err := w.WriteString("0123456789 and so on"); err != nil {
		t.Fatal(err)
	}
	o.finish()
	if got, err := io.ReadAll(o); string(got) != "0123456789" || err != nil {
		t.Errorf("ReadAll = %q, %v, want 10 bytes", got, err)
	}
}

func TestCloseWakesReader(t *testing.T) {
	o, _ := pipe(t)
	go o.close()
	if _, err := o.Read(make([]byte, 1)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Read = %v, want os.ErrClosed", err)
	}
}
