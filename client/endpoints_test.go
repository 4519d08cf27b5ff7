package client

import (
	"testing"

	"fencepost/httpapi/wire"
)

// All nodes that were configured have been replaced, and the last of them that led is
// gone: those that the cluster has told of are asked. As long as one of the configured
// works, nobody else is.
func TestReplacedNodesAreAskedNoMore(t *testing.T) {
	t.Run("they are silent", func(t *testing.T) { replacedNodes(t, true) })
	t.Run("they refuse connections", func(t *testing.T) { replacedNodes(t, false) })
}

func replacedNodes(t *testing.T, silent bool) {
	var s endpoints
	s.configure("http://a:1")
	s.configure("http://b:1")
	s.learn("http://a:1", []wire.Node{{HTTPAddr: "a:1"}, {HTTPAddr: "c:1"}, {HTTPAddr: "d:1"}})
	s.failed(s.find("http://a:1"), silent, "")
	if got := s.pick().base; got != "http://b:1" {
		t.Fatalf("with b left, %s is asked", got)
	}
	s.failed(s.find("http://b:1"), silent, "")
	first := s.pick()
	if first.base != "http://c:1" && first.base != "http://d:1" {
		t.Fatalf("with all configured nodes gone, %s is asked", first.base)
	}
	s.failed(first, silent, "")
	if second := s.pick(); second == first || second.base == "http://a:1" || second.base == "http://b:1" {
		t.Fatalf("after %s, %s is asked", first.base, second.base)
	}
	s.answered(s.find("http://b:1"), "")
	s.failed(s.pick(), silent, "")
	if got := s.pick().base; got != "http://b:1" {
		t.Fatalf("b works again, and %s is asked", got)
	}
}
