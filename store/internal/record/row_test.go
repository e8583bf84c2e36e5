package record_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// TestRowIsTheHeader compares what a list reads of random values with their decoded headers.
func TestRowIsTheHeader(t *testing.T) {
	now := time.Unix(1_800_000_000, 500)
	labels := map[string]string{"team": "red", "empty": ""}
	instant := func(t *rapid.T, name string) *timestamppb.Timestamp {
		return timestamppb.New(now.Add(time.Duration(rapid.Int64Range(-3e9, 3e9).Draw(t, name))))
	}
	rapid.Check(t, func(t *rapid.T) {
		r := sample(t)
		c := r.Conversation()
		c.Id = rapid.SampledFrom([]string{"a", "Order-7", "über"}).Draw(t, "id")
		c.Title = rapid.SampledFrom([]string{"", "The ORDER", "Äpfel"}).Draw(t, "title")
		c.Labels = map[string]string{}
		for key, value := range labels {
			if rapid.Bool().Draw(t, key) {
				c.Labels[key] = value
			}
		}
		c.ActiveTurnId = rapid.SampledFrom([]string{"", "t"}).Draw(t, "turn")
		c.Retention = &parleyv1.Retention{NoExpiry: rapid.Bool().Draw(t, "no expiry"), MaxMessages: 7}
		c.CreateTime, c.UpdateTime, c.ExpireTime = instant(t, "created"), instant(t, "updated"), instant(t, "expires")
		r.SetNumber(rapid.Uint32().Draw(t, "number"))
		l := &store.List{
			Tenant: rapid.SampledFrom([]string{"acme", "acm", ""}).Draw(t, "tenant"),
			Text:   rapid.SampledFrom([]string{"", "order", "ÄPF", "Über", "none", "the "}).Draw(t, "text"),
			Labels: rapid.SampledFrom([]map[string]string{
				nil, {"team": "red"}, {"empty": ""}, {"team": ""}, {"team": "red", "empty": ""},
			}).Draw(t, "labels"),
			StructuredDataType: rapid.SampledFrom([]string{"", "list", "lis"}).Draw(t, "type"),
		}
		want := l.Tenant == "acme" && (c.GetActiveTurnId() != "" || c.GetRetention().GetNoExpiry() ||
			now.Before(c.GetExpireTime().AsTime())) && l.StructuredDataType != "lis"
		for key, value := range l.Labels {
			v, ok := c.GetLabels()[key]
			want = want && ok && v == value
		}
		lower := strings.ToLower(l.Text)
		want = want && (strings.Contains(strings.ToLower(c.GetId()), lower) ||
			strings.Contains(strings.ToLower(c.GetTitle()), lower))

		key, updated, listed, err := record.RowOf(marshal(t, r), l, now)
		if err != nil || !bytes.Equal(key, r.Key()) || !updated.Equal(c.GetUpdateTime().AsTime()) || listed != want {
			t.Errorf("row of %v = key %x, updated %v, listed %t, %v; want key %x, listed %t in %+v", c, key, updated, listed,
				err, r.Key(), want, l)
		}
	})
}

// FuzzRow reads values with correct checksums, whatever they contain.
func FuzzRow(f *testing.F) {
	f.Add(marshal(f, sample(f)))
	f.Fuzz(func(t *testing.T, value []byte) {
		value = record.Sealed(value)
		if _, _, _, err := record.RowOf(value, &store.List{}, time.Unix(0, 0)); err != nil && !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("error %v, want ErrCorrupt", err)
		}
	})
}
