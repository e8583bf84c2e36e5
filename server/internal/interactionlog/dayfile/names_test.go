package dayfile

import "testing"

func TestNames(t *testing.T) {
	d, ok := ParseDay("2026-11-20")
	if !ok || d.String() != "2026-11-20" || DayOf(d.Start()) != d || DayOf(d.Start().Add(-1)) != d-1 {
		t.Errorf("ParseDay = %s, %t, want 2026-11-20", d, ok)
	}
	if got, ok := ParseFileName(d.FileName()); d.FileName() != "2026-11-20.jsonl" || got != d || !ok {
		t.Errorf("ParseFileName(%s) = %s, %t, want %s", d.FileName(), got, ok, d)
	}
	if got, ok := ParseIndexName(d.IndexName()); d.IndexName() != ".2026-11-20.sessions" || got != d || !ok {
		t.Errorf("ParseIndexName(%s) = %s, %t, want %s", d.IndexName(), got, ok, d)
	}
	for name, want := range map[string]string{
		d.FileName():      ".2026-11-20.jsonl.unfinished",
		d.IndexName():     ".2026-11-20.sessions.unfinished",
		"checkpoint.json": ".checkpoint.json.unfinished",
	} {
		if got := TemporaryName(name); got != want {
			t.Errorf("TemporaryName(%s) = %s, want %s", name, got, want)
		}
	}
	for name, want := range map[string]bool{
		TemporaryName(d.FileName()): true, TemporaryName(d.IndexName()): true,
		TemporaryName("checkpoint.json"): false, d.FileName(): false, d.IndexName(): false,
		"2026-11-20.jsonl.unfinished": false, ".2026-02-30.jsonl.unfinished": false, "notes.unfinished": false,
	} {
		if got := IsTemporary(name); got != want {
			t.Errorf("IsTemporary(%s) = %t, want %t", name, got, want)
		}
	}
	for _, name := range []string{"2026-02-30.jsonl", "2026-11-20.json", "2026-11-20.jsonl.1", "x2026-11-20.jsonl", ""} {
		if got, ok := ParseFileName(name); ok {
			t.Errorf("ParseFileName(%s) = %s, want none", name, got)
		}
	}
}
