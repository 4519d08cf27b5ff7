package replay

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"fencepost/cluster/check"
	"fencepost/fsm/fsmpb"
	"fencepost/httpapi/wire"
)

// A call is what an exchange asks the API to do.
type call string

const (
	callAcquire    call = "acquire"
	callRenew      call = "renew"
	callRenewMany  call = "renew many"
	callRelease    call = "release"
	callCancel     call = "cancel"
	callPut        call = "put"
	callDelete     call = "delete"
	callFence      call = "fence"
	callTxn        call = "txn"
	callGetKey     call = "get key"
	callGetLease   call = "get lease"
	callListKeys   call = "list keys"
	callListLeases call = "list leases"
	callOther      call = "other"
)

// asked is an exchange, read as the API's contract says.
type asked struct {
	*check.Exchange
	call  call
	name  string // decoded, of the lease or key
	query url.Values

	// Of mutations.
	key      string           // of the request; "": a server made it, and never told
	scope    string           // of the key
	wants    string           // signature of the command that this asks for; "": none is valid
	renewals []*fsmpb.Renewal // in place of a command
}

// read sorts an exchange. What is malformed asks for nothing.
func read(x *check.Exchange) *asked {
	a := &asked{Exchange: x, call: callOther, key: x.Key}
	if a.key == "" {
		a.key = x.Told[wire.HeaderIdempotencyKey] // of a 504
	}
	path, query, _ := strings.Cut(x.Path, "?")
	a.query, _ = url.ParseQuery(query)
	switch {
	case strings.HasPrefix(path, "/v1/leases/"):
		a.readLeaseCall(strings.TrimPrefix(path, "/v1/leases/"))
	case strings.HasPrefix(path, "/v1/kv/"):
		a.readKeyCall(strings.TrimPrefix(path, "/v1/kv/"))
	case x.Method == http.MethodPost && path == "/v1/renew":
		a.call = callRenewMany
		var body wire.RenewManyRequest
		if json.Unmarshal(x.Body, &body) == nil {
			for _, l := range body.Leases {
				a.renewals = append(a.renewals, &fsmpb.Renewal{Name: l.Name, Token: l.Token, TtlMs: l.TTLMS})
			}
		}
	case x.Method == http.MethodPost && path == "/v1/txn":
		a.call, a.scope = callTxn, "POST /v1/txn"
		a.wants = signature(txnOf(x.Body))
	case x.Method == http.MethodGet && path == "/v1/kv":
		a.call = callListKeys
	case x.Method == http.MethodGet && path == "/v1/leases":
		a.call = callListLeases
	}
	return a
}

func (a *asked) readLeaseCall(raw string) {
	if a.Method == http.MethodGet {
		a.call = callGetLease
		a.name, _ = url.PathUnescape(raw)
		return
	}
	i := strings.LastIndexByte(raw, '/')
	if a.Method != http.MethodPost || i < 0 {
		return
	}
	a.name, _ = url.PathUnescape(raw[:i])
	a.scope = "POST /v1/leases/" + a.name + "/" + raw[i+1:]
	switch raw[i+1:] {
	case "acquire":
		a.call = callAcquire
		body := wire.AcquireRequest{TTLMS: 10_000, Slots: 1, Take: 1}
		if json.Unmarshal(a.Body, &body) == nil {
			c := &fsmpb.Acquire{
				Name: a.name, Holder: body.Holder, TtlMs: body.TTLMS, WaitMs: body.WaitMS,
				Slots: body.Slots, Take: body.Take, GraceMs: body.GraceMS, Metadata: pairsOf(body.Metadata),
			}
			a.wants = signature(&fsmpb.Command{Op: &fsmpb.Command_Acquire{Acquire: c}})
		}
	case "renew":
		a.call = callRenew
		var body wire.RenewRequest
		if json.Unmarshal(a.Body, &body) == nil {
			a.renewals = []*fsmpb.Renewal{{Name: a.name, Token: body.Token, TtlMs: body.TTLMS}}
		}
	case "release":
		a.call = callRelease
		var body wire.ReleaseRequest
		if json.Unmarshal(a.Body, &body) == nil {
			a.wants = signature(&fsmpb.Command{Op: &fsmpb.Command_Release{Release: &fsmpb.Release{Name: a.name, Token: body.Token}}})
		}
	case "cancel":
		a.call, a.scope = callCancel, "POST /v1/leases/"+a.name+"/acquire"
		a.wants = signature(&fsmpb.Command{Op: &fsmpb.Command_Cancel{Cancel: &fsmpb.Cancel{Name: a.name}}})
	}
}

func (a *asked) readKeyCall(raw string) {
	op, verb := &fsmpb.WriteOp{}, ""
	switch a.Method {
	case http.MethodGet:
		a.call = callGetKey
	case http.MethodPut:
		a.call = callPut
		op.Kind, op.Value, op.ContentType = fsmpb.WriteOp_KIND_PUT, a.Body, a.Header["Content-Type"]
	case http.MethodDelete:
		a.call, op.Kind = callDelete, fsmpb.WriteOp_KIND_DELETE
	case http.MethodPost:
		var ok bool
		if raw, ok = strings.CutSuffix(raw, "/fence"); !ok {
			return
		}
		a.call, op.Kind, verb = callFence, fsmpb.WriteOp_KIND_FENCE, "/fence"
	default:
		return
	}
	a.name, _ = url.PathUnescape(raw)
	if a.call == callGetKey {
		return
	}
	op.Key, a.scope = a.name, a.Method+" /v1/kv/"+a.name+verb
	c := &fsmpb.Write{Lease: a.Header[wire.HeaderFencingLease], Ops: []*fsmpb.WriteOp{op}}
	c.Token, _ = strconv.ParseUint(a.Header[wire.HeaderFencingToken], 10, 64)
	if a.Header[wire.HeaderFencingGuard] == wire.GuardHeld {
		c.Guard = fsmpb.Guard_GUARD_HELD
	}
	if match := a.Header["If-Match"]; match != "" {
		version, _ := strconv.ParseUint(strings.Trim(match, `"`), 10, 64)
		op.IfVersion = &version
	} else if a.Header["If-None-Match"] != "" {
		op.IfVersion = new(uint64)
	}
	a.wants = signature(&fsmpb.Command{Op: &fsmpb.Command_Write{Write: c}})
}

func txnOf(document []byte) *fsmpb.Command {
	var body wire.TxnRequest
	if json.Unmarshal(document, &body) != nil {
		return &fsmpb.Command{}
	}
	c := &fsmpb.Write{Token: body.Token, Lease: body.Lease}
	if body.Guard == wire.GuardHeld {
		c.Guard = fsmpb.Guard_GUARD_HELD
	}
	for _, op := range body.Ops {
		asked := &fsmpb.WriteOp{Key: op.Key, ContentType: op.ContentType, IfVersion: op.IfVersion}
		if op.ValueBase64 != nil {
			asked.Value, _ = base64.StdEncoding.DecodeString(*op.ValueBase64)
		}
		for kind := fsmpb.WriteOp_KIND_PUT; kind <= fsmpb.WriteOp_KIND_CHECK; kind++ {
			if opName(kind) == op.Op {
				asked.Kind = kind
			}
		}
		c.Ops = append(c.Ops, asked)
	}
	return &fsmpb.Command{Op: &fsmpb.Command_Write{Write: c}}
}

func opName(kind fsmpb.WriteOp_Kind) string {
	switch kind {
	case fsmpb.WriteOp_KIND_PUT:
		return wire.OpPut
	case fsmpb.WriteOp_KIND_DELETE:
		return wire.OpDelete
	case fsmpb.WriteOp_KIND_FENCE:
		return wire.OpFence
	}
	return wire.OpCheck
}

func pairsOf(metadata map[string]string) (pairs []*fsmpb.Pair) {
	for key, value := range metadata {
		pairs = append(pairs, &fsmpb.Pair{Key: key, Value: value})
	}
	slices.SortFunc(pairs, func(a, b *fsmpb.Pair) int { return cmp.Compare(a.Key, b.Key) })
	return pairs
}

// signature is what a client's command asks for, without whose it is, its key and
// its stamp; "" if it asks for nothing.
func signature(c *fsmpb.Command) string {
	var m proto.Message
	switch op := c.Op.(type) {
	case *fsmpb.Command_Acquire:
		a := proto.CloneOf(op.Acquire)
		a.Principal, a.Request, a.Slots, a.Take = "", nil, max(a.Slots, 1), max(a.Take, 1)
		m = a
	case *fsmpb.Command_Release:
		m = &fsmpb.Release{Name: op.Release.Name, Token: op.Release.Token}
	case *fsmpb.Command_Cancel:
		m = &fsmpb.Cancel{Name: op.Cancel.Name}
	case *fsmpb.Command_Write:
		w := op.Write
		m = &fsmpb.Write{Token: w.Token, Guard: w.Guard, Lease: w.Lease, Ops: w.Ops}
	default:
		return ""
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return fmt.Sprint("not to be written: ", err)
	}
	return fmt.Sprintf("%T", m) + string(b)
}

// decidable are the calls that an entry of the log decides.
func (a *asked) decidable() bool {
	switch a.call {
	case callAcquire, callRenew, callRenewMany, callRelease, callCancel, callPut, callDelete, callFence, callTxn:
		return true
	}
	return false
}

// decided says whether the answer tells what an entry has decided.
func (a *asked) decided() bool {
	if !a.decidable() {
		return false
	}
	switch a.Status {
	case http.StatusOK, http.StatusConflict, http.StatusPreconditionFailed, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// isRead says whether the answer tells the state at its index.
func (a *asked) isRead() bool {
	switch a.call {
	case callGetKey, callGetLease:
		return a.Status == http.StatusOK || a.Status == http.StatusNotFound
	case callListKeys, callListLeases:
		return a.Status == http.StatusOK
	}
	return false
}

func (a *asked) stale() bool { return a.query.Get("consistency") == "stale" }

func (a *asked) String() string {
	return fmt.Sprintf("exchange %d of %s, %s %s, answered %d at index %d", a.ID, a.Client, a.Method, a.Path, a.Status, a.Index)
}
