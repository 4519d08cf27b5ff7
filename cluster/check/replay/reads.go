package replay

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"fencepost/fsm/model"
	"fencepost/httpapi/wire"
)

// judgeRead compares a read with the state as it is now, after the entry at its index.
func (r *replay) judgeRead(a *asked) {
	difference := ""
	switch a.call {
	case callGetKey:
		difference = a.differsFromKey(r.m.Keys[a.name])
	case callGetLease:
		difference = a.differsFromLease(r.m)
	case callListKeys:
		difference = a.differsFromKeys(r.m)
	case callListLeases:
		difference = a.differsFromLeases(r.m)
	}
	if difference != "" {
		r.reading.Find("%v: %s", a, difference)
	}
}

func (a *asked) differsFromKey(k *model.Key) string {
	told := a.Told[wire.HeaderWatermark]
	if k == nil {
		k = &model.Key{}
	} else if told != strconv.FormatUint(k.Watermark, 10) {
		return fmt.Sprintf("watermark %q, want %d", told, k.Watermark)
	}
	if !k.Present {
		var p wire.Problem
		if a.Status != http.StatusNotFound {
			return fmt.Sprintf("got %d, want none: %q", a.Status, a.Answer)
		}
		if difference := a.unlike(&p, &p, nil); difference != "" || p.Watermark != nil && *p.Watermark != k.Watermark {
			return fmt.Sprintf("got %s, want watermark %d", a.Answer, k.Watermark)
		}
		return ""
	}
	if a.Status != http.StatusOK {
		return fmt.Sprintf("got none, want %+v", *k)
	}
	if etag, token := a.Told["Etag"], a.Told[wire.HeaderFencingToken]; etag != fmt.Sprintf("%q", strconv.FormatUint(k.Version, 10)) || token != strconv.FormatUint(k.Token, 10) {
		return fmt.Sprintf("got version %s by token %s, want %+v", etag, token, *k)
	}
	if strings.Contains(a.Header["Accept"], "json") {
		want := keyOf(a.name, k, true)
		return a.unlike(&wire.Key{}, &want, nil)
	}
	contentType := k.ContentType
	if contentType == "" {
		contentType = "application/octet-stream"
	}
	if string(a.Answer) != k.Value || a.Told["Content-Type"] != contentType {
		return fmt.Sprintf("got %q, %s, want %q, %s", a.Answer, a.Told["Content-Type"], k.Value, contentType)
	}
	return ""
}

func keyOf(name string, k *model.Key, value bool) wire.Key {
	w := wire.Key{Key: name, Version: k.Version, Token: k.Token, Watermark: k.Watermark, ContentType: k.ContentType}
	if value {
		encoded := base64.StdEncoding.EncodeToString([]byte(k.Value))
		w.ValueBase64 = &encoded
	}
	return w
}

func (a *asked) differsFromLease(m *model.Machine) string {
	l := m.Leases[a.name]
	if l == nil || a.Status != http.StatusOK {
		if l == nil && a.Status == http.StatusNotFound {
			return ""
		}
		return fmt.Sprintf("got %d, want %+v", a.Status, l)
	}
	want := leaseOf(m, l)
	return a.unlike(&wire.Lease{}, &want, nil)
}

// leaseOf is a lease as the contract shows it.
func leaseOf(m *model.Machine, l *model.Lease) wire.Lease {
	l = m.Shown(l)
	w := wire.Lease{
		Name: l.Name, Held: l.Held(), Metadata: map[string]string{}, LastToken: l.LastToken, QueueLength: uint64(len(m.Queues[l.Name])),
		GraceMS: m.Left(l.GraceUntilMS), Slots: l.Slots, Free: l.Slots, Holders: []wire.Holder{},
	}
	first := uint64(0) // deadline of the holder that ends first
	for _, h := range l.Holders {
		one := wire.Holder{
			Holder: h.Holder, Token: h.Token, Take: h.Take, TTLMS: h.TTLMS, ExpiresInMS: m.Left(h.DeadlineMS),
			Renewals: h.Renewals, Metadata: metadataOf(h.Metadata),
		}
		w.Holders = append(w.Holders, one)
		w.Free -= h.Take
		if first == 0 || h.DeadlineMS < first {
			first = h.DeadlineMS
			w.Holder, w.Token, w.TTLMS, w.ExpiresInMS, w.Renewals, w.Metadata = one.Holder, one.Token, one.TTLMS, one.ExpiresInMS, one.Renewals, one.Metadata
		}
	}
	if w.GraceMS > 0 {
		w.Free = 0
	}
	return w
}

func (a *asked) differsFromLeases(m *model.Machine) string {
	names, next := a.page(slices.Collect(maps.Keys(m.Leases)))
	want := &wire.Leases{Leases: []wire.Lease{}, Next: next}
	for _, name := range names {
		want.Leases = append(want.Leases, leaseOf(m, m.Leases[name]))
	}
	return a.unlike(&wire.Leases{}, want, nil)
}

func (a *asked) differsFromKeys(m *model.Machine) string {
	var present []string
	for name, k := range m.Keys {
		if k.Present {
			present = append(present, name)
		}
	}
	names, next := a.page(present)
	withValues := a.query.Get("values") == "true"
	var got wire.Keys
	if difference := a.unlike(&got, &got, nil); difference != "" {
		return difference
	}
	if n := len(got.Keys); withValues && n > 0 && n < len(names) {
		names, next = names[:n], names[n-1] // a page of large values ends early
	}
	want := &wire.Keys{Keys: []wire.Key{}, Next: next}
	for _, name := range names {
		want.Keys = append(want.Keys, keyOf(name, m.Keys[name], withValues))
	}
	return a.unlike(&got, want, nil)
}

// page is what a list has of these names, and where the next page begins.
func (a *asked) page(all []string) (names []string, next string) {
	limit, prefix, after := 100, a.query.Get("prefix"), a.query.Get("after")
	if n, err := strconv.Atoi(a.query.Get("limit")); err == nil {
		limit = n
	}
	slices.Sort(all)
	for _, name := range all {
		if !strings.HasPrefix(name, prefix) || name <= after {
			continue
		}
		if len(names) == limit {
			return names, names[limit-1]
		}
		names = append(names, name)
	}
	return names, ""
}
