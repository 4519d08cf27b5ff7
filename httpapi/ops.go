package httpapi

import (
	_ "embed"
	"errors"
	"net/http"

	"fencepost/cluster"
	"fencepost/httpapi/wire"
)

// openAPIDocument describes the API; it is written by hand, and the tests hold
// every answer against it. (Embedding needs a variable; nothing writes to it.)
//
//go:embed openapi.json
var openAPIDocument []byte

func (x *exchange) openAPI() { x.ok(openAPIDocument) }

// live says whether this process should be left running.
func (x *exchange) live() {
	if err := x.h.node.Live(); err != nil {
		x.refuse(wire.CodeNotLive, err.Error())
		return
	}
	x.answer(http.StatusOK, "text/plain; charset=utf-8", []byte("ok\n"))
}

// ready says whether requests may be sent here. A follower that forwards is
// ready.
func (x *exchange) ready() {
	switch err := x.h.node.Ready(); {
	case err == nil:
		x.answer(http.StatusOK, "text/plain; charset=utf-8", []byte("ok\n"))
	case errors.Is(err, cluster.ErrShuttingDown):
		x.refuse(wire.CodeShuttingDown, err.Error())
	default:
		x.refuse(wire.CodeNotReady, err.Error())
	}
}

func (x *exchange) scrape() { x.h.scrape.ServeHTTP(&x.w, x.r) }
