package fsm

import (
	"errors"

	"google.golang.org/protobuf/reflect/protoreflect"

	"fencepost/fsm/fsmpb"
)

// Understands is the newest command version that this code can apply. Members
// announce it (fsmpb.Node), and a leader proposes nothing that one of them would
// have to stop at. How a version is added: docs/architecture.md, "Upgrades".
const Understands = 1

// ErrUnknown is in the chain of every error about an entry or a snapshot that
// has what this version does not know: a node that meets one must stop, because
// to skip it would be to diverge (P14).
var ErrUnknown = errors.New("unknown to this version of fencepost")

// since tells in which version a command, field or enum value came, by its full
// name in the schema. What is not named here was there from the first.
func since(name protoreflect.FullName) uint32 {
	switch name {
	default:
		return 1
	}
}

// Needs is the lowest version that a node must understand to apply the command.
func Needs(c *fsmpb.Command) uint32 {
	version := uint32(1)
	note := func(name protoreflect.FullName) { version = max(version, since(name)) }
	eachName(c.ProtoReflect(), note)
	return version
}

// eachName calls see with the full name of each field that is set in the message,
// at any depth, and of each enum value in it.
func eachName(m protoreflect.Message, see func(protoreflect.FullName)) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		see(f.FullName())
		each := func(v protoreflect.Value) {
			switch {
			case f.Message() != nil:
				eachName(v.Message(), see)
			case f.Enum() != nil:
				if value := f.Enum().Values().ByNumber(v.Enum()); value != nil {
					see(value.FullName())
				}
			}
		}
		if !f.IsList() {
			each(v)
			return true
		}
		for i := range v.List().Len() {
			each(v.List().Get(i))
		}
		return true
	})
}
